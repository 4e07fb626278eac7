"""Who held what in a run: recorded beside its results, told and drawn on its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privfl.data.partitions import PartitionReport
from privfl.errors import DataError
from privfl.federation.task import Task
from privfl.files import read_json
from privfl.simulation.callbacks import Simulation
from privfl.simulation.run_directory import Metrics, RunDirectory

FILE = "clients.json"
MEND = "remove it to report without it, or repeat the run"


def record_clients(simulation: Simulation, line: Metrics) -> None:
    """A callback of ``simulate`` that writes ``clients.json`` once: how many examples of each class a client holds.

    These are true counts. They are for whoever runs the simulation, and covered by no statement.
    """
    if simulation.path is not None:
        write_clients(simulation.path, simulation.task)


def write_clients(path: Path, task: Task) -> None:
    """Write ``clients.json`` to the run directory ``path``, unless it is there or nothing is known of the division."""
    report = task.report
    if report is None or (path / FILE).exists():
        return
    arrays = {name: getattr(report, name).tolist() for name in ("counts", "label_entropy", "distance_to_pool")}
    numbers = {name: int(getattr(report, name)) for name in ("available", "distinct", "shared")}
    RunDirectory(path).write_json(FILE, arrays | numbers)


def read_clients(folder: Path) -> PartitionReport | None:
    """What :func:`record_clients` wrote, ``None`` if it wrote nothing.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        facts = read_json(path, MEND)
        counts = np.array(facts["counts"], dtype=np.int64)
        entropy, distance = (np.array(facts[name], dtype=float) for name in ("label_entropy", "distance_to_pool"))
        if counts.ndim != 2 or not counts.sum(axis=1).all() or (counts < 0).any() or len(entropy) != len(counts):
            raise ValueError("the counts are no table of clients and classes")
        return PartitionReport(
            counts, entropy, distance, None, int(facts["available"]), int(facts["distinct"]), int(facts["shared"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged ({error}); {MEND}") from error


def in_words(report: PartitionReport) -> str:
    """Sizes and label skew in a sentence or two."""
    sizes, distance = report.sizes, report.distance_to_pool
    text = (
        f"{len(sizes):,} clients hold {report.distinct:,} of {report.available:,} training examples, "
        f"{sizes.min():,} to {sizes.max():,} each (median {np.median(sizes):,.0f})."
    )
    if report.counts.shape[1] > 1:  # a task that is no classification has one class
        text += (
            f" The classes of a client differ from those of all by {np.median(distance):.2f} in median total variation "
            "(0: alike, 1: nothing in common)."
        )
    return f"{text} {report.shared:,} examples are held by more than one client." if report.shared else text
