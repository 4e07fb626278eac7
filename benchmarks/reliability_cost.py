"""What it costs a run that nothing can damage it: ``python benchmarks/reliability_cost.py``.

Rounds of one small run (FedAvg, 4 clients, 49 parameters, so that a round does next to nothing but write), each way of
writing with parts of the care left out, interleaved. Writes benchmarks/results/reliability/cost.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import privfl as pf  # noqa: E402
from privfl import files, lock  # noqa: E402
from tests.runs.interrupted_work import task  # noqa: E402

ROUNDS, REPEATS = 40, 5
WAYS: dict[str, dict[str, Any]] = {
    "a checkpoint a minute": {"checkpoint_seconds": 60.0},
    "a checkpoint every round": {"checkpoint_seconds": 0.0},
    "a checkpoint and a transcript every round": {"checkpoint_seconds": 0.0, "record": True},
}


@contextlib.contextmanager
def everything() -> Iterator[None]:
    """As it is."""
    yield


@contextlib.contextmanager
def without_folders() -> Iterator[None]:
    """Folders are not forced to disk."""
    with patch.object(files, "sync_folder", lambda path: None):
        yield


@contextlib.contextmanager
def without_looking() -> Iterator[None]:
    """Nobody looks whether the folder is still held."""
    with patch.object(lock.FolderLock, "check", lambda held: None):
        yield


@contextlib.contextmanager
def without_disk() -> Iterator[None]:
    """Nothing is forced to disk."""
    with patch.object(os, "fsync", lambda descriptor: None):
        yield


CARE: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "all": everything,
    "folders not forced to disk": without_folders,
    "no look at the lock": without_looking,
    "nothing forced to disk": without_disk,
}


def seconds(way: dict[str, Any], folder: Path) -> float:
    """Of one round, the start and the end of the run left out."""
    moments: list[float] = []
    options = dict(way)
    execution = pf.Execution(
        device="cpu", engine="loop", workers=1, checkpoint_seconds=options.pop("checkpoint_seconds")
    )
    pf.simulate(
        task(),
        pf.FedAvg(),
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        execution=execution,
        out=folder,
        callbacks=[lambda simulation, line: moments.append(time.perf_counter())],
        **options,
    )
    return (moments[-2] - moments[0]) / (ROUNDS - 2)


def main() -> None:
    """Measure and record."""
    rows: list[dict[str, Any]] = []
    for name, way in WAYS.items():
        found: dict[str, list[float]] = {care: [] for care in CARE}
        for _ in range(REPEATS):
            for care, left_out in CARE.items():
                with tempfile.TemporaryDirectory(dir=".") as folder, left_out():
                    found[care].append(1e3 * seconds(way, Path(folder) / "run"))
        for care, measured in found.items():
            low, high = min(measured), max(measured)
            row = {"way": name, "care": care, "milliseconds": round(statistics.median(measured), 3)}
            rows.append({**row, "low": round(low, 3), "high": round(high, 3), "load": round(os.getloadavg()[0], 1)})
            print(rows[-1], flush=True)
    path = ROOT / "benchmarks" / "results" / "reliability" / "cost.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
