"""A round of DP-SGD of ten clients on the whole machine, by the clock, over Opacus in a bare loop and over no DP-SGD.

``python benchmarks/dpsgd_cohorts.py [--repeats 12]`` trains ten clients for five steps each on all cores, by the engine
that a run of a thousand rounds chooses by itself; in turn, Opacus takes the fifty steps one after the other, its
products on one thread and on all. The fastest of its ways counts. Over no DP-SGD, both by the loop. Seconds of the
clock, so nothing else may run meanwhile; processor time of one client alone is what ``dpsgd_rounds.py`` measures. To
``benchmarks/results/dpsgd-cohorts.json``, where rows of cases that ``--only`` leaves out stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from dpsgd import MODES
from dpsgd_rounds import BATCH_SIZE, CASES, ROWS, STEPS, WARMUP, Case, opacus_round, ratio_of
from record import conditions, machine
from workload import EngineRound

from privfl.privacy.door.dpsgd import DPSGD

RESULT = Path(__file__).parent / "results" / "dpsgd-cohorts.json"
COHORT, ROUNDS = 10, 1000
CORES = os.cpu_count() or 1


def on_threads(number: int, steps: Callable[[], None]) -> Callable[[], None]:
    """The steps of every client of the round, with ``number`` threads for each product."""

    def train() -> None:
        torch.set_num_threads(number)
        for _ in range(COHORT):
            steps()
        torch.set_num_threads(1)

    return train


def contenders(case: Case, modes: Sequence[str]) -> tuple[dict[str, Callable[[], None]], str, dict[str, str]]:
    """What is timed for ``case``, the engine that was chosen, and why a way of Opacus is not timed."""
    task = case.task(COHORT)
    private = DPSGD(noise_multiplier=1.0, sample_rate=BATCH_SIZE / ROWS)
    chosen = EngineRound(task, BATCH_SIZE, CORES, private, cohort=COHORT, rounds=ROUNDS)
    work = {
        "plain, loop": EngineRound(task, BATCH_SIZE, CORES, cohort=COHORT).round,
        "DP-SGD, loop": EngineRound(task, BATCH_SIZE, CORES, private, cohort=COHORT).round,
        "DP-SGD": chosen.round,
    }
    failed = {}
    for mode in modes:
        try:
            steps = opacus_round(task, BATCH_SIZE, mode)
        except Exception as error:
            failed[mode] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        for threads in sorted({1, CORES}):
            work[f"opacus {mode}, threads: {threads}"] = on_threads(threads, steps)
    return work, type(chosen.engine).__name__, failed


def measured(case: Case, repeats: int, modes: Sequence[str]) -> dict[str, Any]:
    """The row of ``case``."""
    work, engine, failed = contenders(case, modes)
    for _ in range(WARMUP):
        for name in ("plain, loop", "DP-SGD, loop", "DP-SGD"):
            work[name]()
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, train in work.items():
            began = time.perf_counter()
            train()
            spent[name].append(1000 * (time.perf_counter() - began))
    medians = {name: statistics.median(values) for name, values in spent.items()}
    best = min((name for name in medians if name.startswith("opacus")), key=medians.__getitem__, default="")
    return {
        "what": case.what,
        "clients": COHORT,
        "batch size": BATCH_SIZE,
        "steps of a client": STEPS,
        "engine": engine,
        "milliseconds a round": {name: round(value, 1) for name, value in medians.items()},
        "DP-SGD / plain, loop": ratio_of(spent["DP-SGD, loop"], spent["plain, loop"]),
        "best of Opacus": best.removeprefix("opacus "),
        "DP-SGD / best of Opacus": ratio_of(spent["DP-SGD"], spent[best]) if best else None,
        "ways of Opacus that failed": failed,
        "repeats": repeats,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="a cohort's round of DP-SGD over others, by the clock")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--modes", default=",".join(MODES), help="ways of Opacus, by comma")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in CASES if asked.only in case.what]
    before = json.loads(asked.out.read_text(encoding="utf-8"))["rows"] if asked.out.exists() else []
    rows = [row for row in before if row["what"] not in {case.what for case in cases}]
    for case in cases:
        rows.append(measured(case, asked.repeats, [mode for mode in asked.modes.split(",") if mode]))
        print(json.dumps(rows[-1]), flush=True)
    record = {**conditions(machine(os.environ)), "rows": rows}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
