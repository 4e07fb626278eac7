"""Who held what in a run: recorded beside its results, told and drawn on its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from privfl.data.partitions import PartitionReport
from privfl.errors import DataError
from privfl.federation.task import Task
from privfl.files import read_json
from privfl.simulation.callbacks import Simulation
from privfl.simulation.run_directory import Metrics, RunDirectory

FILE = "clients.json"
TABLE = 1_000_000
"""Up to so many clients times classes they are written as a table, zeros included."""
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
    arrays = {name: getattr(report, name).tolist() for name in ("label_entropy", "distance_to_pool")}
    numbers = {name: int(getattr(report, name)) for name in ("available", "distinct", "shared")}
    RunDirectory(path).write_json(FILE, _counts(report) | arrays | numbers)


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
        held = _held(facts["counts"])
        entropy, distance = (np.array(facts[name], dtype=float) for name in ("label_entropy", "distance_to_pool"))
        if not held.sum(axis=1).all() or (held.data < 0).any() or len(entropy) != held.shape[0]:
            raise ValueError("the counts are no table of clients and classes")
        return PartitionReport(
            held, entropy, distance, None, int(facts["available"]), int(facts["distinct"]), int(facts["shared"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged ({error}); {MEND}") from error


def _counts(report: PartitionReport) -> dict[str, Any]:
    """The counts, as a table of clients and classes, or where that is large as its shape and what is not 0 in it."""
    clients, classes = report.held.shape
    if clients * classes <= TABLE:
        return {"counts": report.counts.tolist()}
    rows, labels = report.held.nonzero()
    told = {"shape": [clients, classes], "clients": rows.tolist(), "classes": labels.tolist()}
    return {"counts": told | {"counts": report.held.data.tolist()}}


def _held(told: Any) -> sparse.csr_array:
    """What :func:`_counts` made of them; raises ValueError, KeyError or TypeError if it did not."""
    if isinstance(told, dict):
        shape, counts, places = (np.array(told[name], dtype=np.int64) for name in ("shape", "counts", "clients"))
        return sparse.csr_array((counts, (places, np.array(told["classes"], dtype=np.int64))), shape=tuple(shape))
    table = np.array(told, dtype=np.int64)
    if table.ndim != 2:
        raise ValueError("the counts are no table of clients and classes")
    return sparse.csr_array(table)


def in_words(report: PartitionReport) -> str:
    """Sizes and label skew in a sentence or two."""
    sizes, distance = report.sizes, report.distance_to_pool
    text = (
        f"{len(sizes):,} clients hold {report.distinct:,} of {report.available:,} training examples, "
        f"{sizes.min():,} to {sizes.max():,} each (median {np.median(sizes):,.0f})."
    )
    if report.held.shape[1] > 1:  # a task that is no classification has one class
        text += (
            f" The classes of a client differ from those of all by {np.median(distance):.2f} in median total variation "
            "(0: alike, 1: nothing in common)."
        )
    return f"{text} {report.shared:,} examples are held by more than one client." if report.shared else text
