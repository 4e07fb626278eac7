"""A client's round of DP-SGD: over the same round without it, and over the fastest of Opacus' ways in a bare loop.

``python benchmarks/dpsgd_rounds.py [--repeats 12]`` trains one client for five steps by the loop engine on one worker,
in turn with five steps of Opacus on batches of as many rows as the engine's Poisson batches have on average. Processor
time, since what else the machine does then matters least; the rows name the fastest way of Opacus, and what the others
took or why they failed. To ``benchmarks/results/dpsgd-rounds.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dpsgd import MODES, opacus_step
from networks import cnn_network
from workload import EngineRound

import privfl as pf
from privfl.federation.task import Task
from privfl.privacy.door.dpsgd import DPSGD

RESULT = Path(__file__).parent / "results" / "dpsgd-rounds.json"
BATCH_SIZE, STEPS = 10, 5
ROWS = BATCH_SIZE * STEPS
"""Rows of the client, whose round is one epoch."""
WARMUP = 12
"""Rounds of the engine that are not timed: it finds out which lengths of passes round alike when one first occurs."""


@dataclass(frozen=True)
class Case:
    """A network and the shape of its inputs, which are token ids below ``vocabulary`` if that is not 0."""

    what: str
    model: Any
    shape: tuple[int, ...]
    vocabulary: int = 0

    def task(self, clients: int = 2) -> Task:
        """Random rows; what is in them does not matter for time."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(clients * ROWS, *self.shape, generator=generator)
        if self.vocabulary:
            inputs = torch.randint(self.vocabulary, (clients * ROWS, *self.shape), generator=generator)
        targets = torch.randint(10, (len(inputs),), generator=generator)
        named = {"vocabulary": self.vocabulary} if self.vocabulary else {}
        return pf.Task.from_arrays(
            inputs,
            targets,
            test=(inputs[:1], targets[:1]),  # else a fifth of the rows would be held out
            partition=pf.IID(clients=clients),
            model=self.model,
            classes=10,
            **named,
        )


CASES = (
    Case("MLP (two-nn)", "two-nn", (1, 28, 28)),
    Case("CNN of 1.2 million", cnn_network, (1, 28, 28)),
    Case("GroupNorm ResNet (resnet8)", "resnet8", (3, 32, 32)),
    Case("text Transformer", "transformer", (30,), vocabulary=10_000),
)


def opacus_round(task: Task, batch_size: int, mode: str) -> Callable[[], None]:
    """As many steps of Opacus in ``mode``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = opacus_step(task, batch_size, mode)

    def train() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(STEPS):
                step()

    train()
    return train


def contenders(case: Case, modes: Sequence[str]) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """What is timed for ``case``, and why a way of Opacus is not."""
    task = case.task()
    private = DPSGD(noise_multiplier=1.0, sample_rate=BATCH_SIZE / ROWS)
    work = {
        "plain": EngineRound(task, BATCH_SIZE, 1, cohort=1).round,
        "privfl": EngineRound(task, BATCH_SIZE, 1, private, cohort=1).round,
    }
    failed = {}
    for mode in modes:
        try:
            work[f"opacus {mode}"] = opacus_round(task, BATCH_SIZE, mode)
        except Exception as error:
            failed[mode] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return work, failed


def measured(case: Case, repeats: int, modes: Sequence[str]) -> dict[str, Any]:
    """The row of ``case``."""
    work, failed = contenders(case, modes)
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(WARMUP):
        work["plain"]()
        work["privfl"]()
    for _ in range(repeats):
        for name, train in work.items():
            began = time.process_time()
            train()
            spent[name].append(1000 * (time.process_time() - began) / STEPS)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    best = min((name for name in medians if name.startswith("opacus")), key=medians.__getitem__, default="")
    return {
        "what": case.what,
        "batch size": BATCH_SIZE,
        "processor milliseconds a step": {name: round(value, 3) for name, value in medians.items()},
        "DP-SGD / plain": ratio_of(spent["privfl"], spent["plain"]),
        "best of Opacus": best.removeprefix("opacus "),
        "DP-SGD / best of Opacus": ratio_of(spent["privfl"], spent[best]) if best else None,
        "ways of Opacus that failed": failed,
    }


def ratio_of(over: list[float], under: list[float]) -> dict[str, float]:
    ratios = sorted(one / other for one, other in zip(over, under, strict=True))
    return {"median": round(statistics.median(ratios), 3), "min": round(ratios[0], 3), "max": round(ratios[-1], 3)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="a round of DP-SGD over others")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--alone", action="store_true", help="leave Opacus out")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in (one for one in CASES if asked.only in one.what):
        rows.append(
            measured(case, asked.repeats, () if asked.alone else MODES) | {"load": round(os.getloadavg()[0], 1)}
        )
        print(json.dumps(rows[-1]), flush=True)
    record = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "repeats": asked.repeats,
        "rows": rows,
    }
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
