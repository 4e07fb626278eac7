"""What Gaussian noise costs: processor time of a value on one thread, fast and exact, for a large and many small rows.

``python benchmarks/noise_time.py [--repeats 40]`` adds noise to one row of the large CNN's size and to 20 of the small
CNN's, in turn with the same where PyTorch is told to be deterministic, and times the exact operations that a GPU takes
on the CPU. To ``benchmarks/results/noise-time.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from privfl.privacy.door.precision import same_bits
from privfl.privacy.noise.box_muller import pairs
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

RESULT = Path(__file__).parent / "results" / "noise-time.json"
SHAPES = ((1, 1_199_882), (20, 5_386))


def adding(rows: int, size: int, *, exact: bool) -> Callable[[], object]:
    """What adds noise to ``rows`` rows of ``size`` values."""
    streams, values = [NoiseStream(bytes([row] * 32)) for row in range(rows)], torch.zeros(rows, size)

    def add() -> None:
        with same_bits(exact):
            add_gaussian_rows_(streams, values, [1.3] * rows)

    return add


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="what Gaussian noise costs")
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    work = {
        f"{rows} x {size:,}{', exact' if exact else ''}": (adding(rows, size, exact=exact), rows * size)
        for rows, size in SHAPES
        for exact in (False, True)
    }
    words = torch.randint(-(2**63), 2**63 - 1, (3, 1 << 15))
    work["exact operations alone"] = (lambda: pairs(*words), 1 << 16)
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(asked.repeats):
        for name, (do, values) in work.items():
            began = time.thread_time_ns()
            do()
            spent[name].append((time.thread_time_ns() - began) / values)
    rows = [
        {"what": name, "ns a value": {"median": round(statistics.median(one), 2), "least": round(min(one), 2)}}
        for name, one in spent.items()
    ]
    for row in rows:
        print(json.dumps(row))
    record = {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "load": round(os.getloadavg()[0], 1),
        "repeats": asked.repeats,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
