"""100,000 clients of 20 images: set-up time, memory as rounds go by, and round time as the cohort grows.

Measured in a process of its own, with Numba loaded, which takes 100 MiB once there was work enough. The images are
8-bit (1.6 GB) and stay so; as float32 they would take 6.3 GB.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from networks import WORKS
from rounds import BATCH_SIZE, LEARNING_RATE, NEVER, timed_gaps

import privfl as pf
from privfl import compiling
from privfl.federation.cohorts import Selection

CLIENTS, SAMPLES, COHORTS = 100_000, 20, (1000, 500)
ROUNDS, WARMUP, EARLY = 10, 2, 2
began_rounds: list[float] = []


class Watched(pf.FixedCohort):
    """A fixed cohort that notes when it is drawn, with which a round begins."""

    def draw(self, *arguments: Any, **named: Any) -> Selection:
        """Note the time, then draw."""
        began_rounds.append(time.perf_counter())
        return super().draw(*arguments, **named)


def resident(key: str) -> float:
    """MiB of resident memory of this process: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def measured(clients: int, cohorts: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Set-up seconds, MiB after each round of the first run, peak MiB, and median seconds by cohort and repeat."""
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 2, (clients * SAMPLES, 1, 28, 28), dtype=np.uint8)
    classes = draws.integers(0, 10, len(pixels))
    began = time.perf_counter()
    task = pf.Task.from_arrays(
        pixels,
        classes,
        test=(pixels[:1000], classes[:1000]),
        partition=pf.IID(clients=clients),
        model=WORKS["small"].network,
    )
    memory: list[float] = []
    trained_by: dict[int, str] = {}
    seconds: dict[int, list[float]] = {cohort: [] for cohort in cohorts}
    for _ in range(repeats):
        for cohort in cohorts:
            ends: list[float] = []

            def after(simulation: Any, line: Any, ends: list[float] = ends) -> None:
                ends.append(time.perf_counter())
                memory.append(resident("VmRSS"))
                trained_by[line["clients"]] = type(simulation.engine).__name__

            pf.simulate(
                task,
                pf.FedAvg(weighting="uniform"),
                rounds=ROUNDS + 1,
                cohort=Watched(cohort),
                training=pf.LocalTraining(learning_rate=LEARNING_RATE, batch_size=BATCH_SIZE),
                evaluate_every=NEVER,
                execution=pf.Execution(device="cpu"),
                callbacks=[after],
            )
            seconds[cohort].append(statistics.median(timed_gaps(ends, WARMUP)))
    return {
        "setup": began_rounds[0] - began,
        "memory": memory[:ROUNDS],
        "peak": max(resident("VmHWM"), *memory),  # Linux counts both in batches: the peak may lag behind
        "seconds": [seconds[cohort] for cohort in cohorts],
        "trained_by": list(trained_by.values()),
    }


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that ``measured`` gives."""
    early, late = found["memory"][EARLY - 1], found["memory"][-1]
    large, small = found["seconds"]
    ratios = [over / under for over, under in zip(large, small, strict=True)]
    values: dict[str, tuple[float, list[float]]] = {
        "seconds from arrays to the first round": (4.0, [found["setup"]]),
        "resident memory after round 10 / after round 2": (1.05, [late / early]),
        "peak resident memory in GB": (2.5, [found["peak"] * 2**20 / 1e9]),
        "round, cohort 1,000 / cohort 500": (2.3, ratios),
    }
    details = {"seconds": found["seconds"], "mebibytes": found["memory"], "trained_by": found["trained_by"]}
    return [
        {
            "what": f"{name}, 100,000 clients of 20 images, small model",
            "target": target,
            "median": statistics.median(each),
            "min": min(each),
            "max": max(each),
            **details,
        }
        for name, (target, each) in values.items()
    ]


def run(repeats: int) -> list[dict[str, Any]]:
    """Set-up, memory and round time; at most three repeats of the rounds."""
    command = [sys.executable, __file__, str(min(repeats, 3))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    return rows(json.loads(done.stdout))


if __name__ == "__main__":
    compiling.ENOUGH = 0.0
    print(json.dumps(measured(CLIENTS, COHORTS, int(sys.argv[1]))))
