"""Peak memory of a run must not depend on the size of the cohort. Every measurement is a process of its own.

Numba, some 130 MiB, is loaded in all of them: by itself a process loads it once it has had work enough.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from workload import EngineRound, make_task

from privfl import compiling


def child(cohort: int) -> None:
    """Train two rounds with ``cohort`` of 500 clients and print the peak resident memory in MiB.

    ``getrusage`` would not do: a child inherits its parent's peak.
    """
    compiling.ENOUGH = 0.0
    work = EngineRound(make_task("two-cnn", clients=500, samples=20), 20, 2, cohort=cohort)
    for _ in range(2):
        work.round()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    print(json.dumps(int(peak.split()[1]) / 1024))


def run(repeats: int) -> list[dict[str, Any]]:
    """Peak memory with 500 clients in the cohort over that with 10."""
    here = Path(__file__)
    peaks: dict[int, float] = {}
    for cohort in (10, 500):
        command = [sys.executable, str(here), str(cohort)]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=here.parent).stdout
        peaks[cohort] = json.loads(output)
    ratio = peaks[500] / peaks[10]
    return [
        {
            "what": "peak memory, cohort of 500 / cohort of 10, two-cnn (1.7 M parameters)",
            "target": 1.1,
            "median": ratio,
            "min": ratio,
            "max": ratio,
            "mebibytes": {str(cohort): peak for cohort, peak in peaks.items()},
        }
    ]


if __name__ == "__main__":
    child(int(sys.argv[1]))
