"""Every algorithm on the stand-in CUDA device, by both engines, with and without DP-SGD, held to the CPU's numbers.

``python benchmarks/stand_in_device.py`` trains one round of each of them and writes, for each, whether it agrees, its
kernel launches and the times that the host waited for the device; then those of one step of stacks of 10 and 50
clients, the noise apart. To ``benchmarks/results/stand-in-device.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know the device

from tests.device.cases import CASES, compare, small_task
from tests.device.stand_in import stand_in_cuda
from tests.device.test_budgets import NOISY, a_round, of_noise

RESULT = Path(__file__).parent / "results" / "stand-in-device.json"


def main() -> int:
    """Run all cases; the exit status says whether all agree."""
    parser = argparse.ArgumentParser(description="every algorithm on the stand-in CUDA device")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    task, rows, began = small_task(), [], time.thread_time()
    for algorithm, engine, private in CASES:
        row = {"algorithm": algorithm, "engine": engine, "dp-sgd": private}
        try:
            counts = compare(task, algorithm, engine, private)
            row |= {"agrees": True, "launches": counts.launches.total(), "waits": counts.waits.total()}
        except Exception as error:
            row |= {"agrees": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    agree = sum(row["agrees"] for row in rows)
    print(f"{agree} of {len(rows)} agree")
    steps = []
    for clients in (10, 50):
        for dpsgd in (None, NOISY):
            with stand_in_cuda() as counts:
                (many, long), (few, short) = (a_round(counts, clients, dpsgd, steps) for steps in (3, 2))
            noise = of_noise(many - few)
            row = {"clients": clients, "dp-sgd": dpsgd is not None, "launches": (many - few).total() - noise}
            steps.append(row | {"launches of noise": noise, "waits": (long - short).total()})
            print(json.dumps(steps[-1]), flush=True)
    record = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_seconds": round(time.thread_time() - began),
        "agree": agree,
        "steps": steps,
        "rows": rows,
    }
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if agree == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
