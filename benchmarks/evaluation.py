"""Seconds in which an engine evaluates a model on 10,000 images, over a thousand rows at a time by PyTorch's layers.

``python benchmarks/evaluation.py [--repeats 5]``; random images, two workers or as many as there are cores, by the
clock, both in turn. To ``benchmarks/results/evaluation.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dpsgd_rounds import ratio_of
from networks import cnn_network, small_network
from record import conditions, machine
from torch import Tensor

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel

RESULT = Path(__file__).parent / "results" / "evaluation.json"
ROWS, AT_ONCE = 10_000, 1000
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "small CNN": (small_network, (1, 28, 28)),
    "CNN of 1.2 million": (cnn_network, (1, 28, 28)),
    "rebafl-fmnist": ("rebafl-fmnist", (1, 28, 28)),
    "GroupNorm ResNet (resnet8)": ("resnet8", (3, 32, 32)),
    "MLP (two-nn)": ("two-nn", (1, 28, 28)),
}


def by_layers(engine: LoopEngine, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Logits as PyTorch's layers compute them, a thousand rows at a time."""

    def one(space: Any, rows: Tensor) -> Tensor:
        space.own.load(parameters)
        space.own.module.eval()
        with torch.no_grad():
            logits: Tensor = space.own.module(rows)
        return logits.clone()

    return torch.cat(list(engine._with_space(one, torch.split(inputs, AT_ONCE))))


def measured(name: str, repeats: int) -> dict[str, Any]:
    """The row of one network."""
    model, shape = CASES[name]
    inputs, targets = torch.randn(100, *shape), torch.arange(100) % 10
    task = pf.Task.from_arrays(inputs, targets, partition=pf.IID(clients=2), model=model, classes=10)
    algorithm = FedAvg()
    channel, images = RoundChannel.bare(algorithm.fields(), None), torch.randn(ROWS, *shape)
    with LoopEngine(task, algorithm, pf.LocalTraining(), channel) as engine:
        parameters = flatten(task.model(0))
        work: dict[str, Callable[[], Tensor]] = {
            "by layers, a thousand rows": lambda: by_layers(engine, parameters, images),
            "by the engine": lambda: engine.logits(parameters, images),
        }
        spent: dict[str, list[float]] = {what: [] for what in work}
        for attempt in range(repeats + 1):
            for what, compute in work.items():
                began = time.perf_counter()
                compute()
                if attempt:
                    spent[what].append(time.perf_counter() - began)
    medians = {what: round(statistics.median(values), 4) for what, values in spent.items()}
    return {"what": name, "rows": ROWS, "seconds": medians, "engine / layers": ratio_of(*reversed(spent.values()))}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="evaluation by an engine")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="networks whose names hold this")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    rows = []
    for name in (name for name in CASES if asked.only in name):
        rows.append(measured(name, asked.repeats))
        print(json.dumps(rows[-1]), flush=True)
    record = {**conditions(machine(os.environ)), "repeats": asked.repeats, "rows": rows}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
