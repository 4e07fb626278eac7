"""Who held what in a run: recorded beside its results, told and drawn on its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from privfl.data.partitions import PartitionReport
from privfl.errors import DataError
from privfl.simulation.callbacks import Simulation
from privfl.simulation.run_directory import Metrics, RunDirectory

FILE = "clients.json"


def record_clients(simulation: Simulation, line: Metrics) -> None:
    """A callback of ``simulate`` that writes ``clients.json`` once: how many examples of each class a client holds.

    These are true counts. They are for whoever runs the simulation, and covered by no statement.
    """
    report, path = simulation.task.report, simulation.path
    if report is None or path is None or (path / FILE).exists():
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
        facts = json.loads(path.read_text(encoding="utf-8"))
        counts = np.array(facts["counts"], dtype=np.int64)
        entropy, distance = (np.array(facts[name], dtype=float) for name in ("label_entropy", "distance_to_pool"))
        if counts.ndim != 2 or not counts.sum(axis=1).all() or (counts < 0).any() or len(entropy) != len(counts):
            raise ValueError("the counts are no table of clients and classes")
        return PartitionReport(
            counts, entropy, distance, None, int(facts["available"]), int(facts["distinct"]), int(facts["shared"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); remove it to report without it, or repeat the run") from error


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
