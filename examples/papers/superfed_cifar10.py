"""SuPerFed and its nine rivals on CIFAR-10: the column for 100 clients of the thesis's Table 2.3.

    PRIVFL_DATA=… python examples/papers/superfed_cifar10.py --out results/cifar10
    python examples/papers/superfed_cifar10.py --out results/small --small       # digits, under a minute

The clients of ``superfed.py``, with two label-sorted shards each, the authors' bias-free "TwoCNN" and images resized to
28 x 28. Every client is judged on its own test, by its own model where the method makes one, else by the shared one;
SuPerFed's mixture is chosen on a tenth of the training examples, and the paper's way, the best of eleven on the test,
stands beside it. Beside the rivals there is SuPerFed-MM without the angle between its two models (ν = 0), and mixing
from the first round on (L = 0). Finished runs in ``superfed-cifar10.json`` are kept.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import rivals
import torch.nn.functional as F

import privfl as pf
from privfl.models.convolutional import two_cnn

SIDE = 28
"""Pixels on each side of the authors' images."""
METHODS: dict[str, Any] = rivals.METHODS | {
    "SuPerFed-MM, ν = 0": pf.SuPerFed(mode="mm", start_fraction=0.4, nu=0.0),
    "SuPerFed-MM, L = 0": pf.SuPerFed(mode="mm", start_fraction=0.0),
}


def resized(dataset: pf.Dataset, held_out: int) -> pf.Dataset:
    """``dataset`` with images of ``SIDE`` pixels and its first ``held_out`` test images: clients have their own."""
    shrink = partial(F.interpolate, size=(SIDE, SIDE), mode="bilinear", antialias=True)
    return replace(
        dataset,
        inputs=shrink(dataset.inputs),
        test_inputs=shrink(dataset.test_inputs[:held_out]),
        test_targets=dataset.test_targets[:held_out],
    )


def task_of(options: argparse.Namespace, dataset: pf.Dataset, seed: int) -> pf.Task:
    """Two label-sorted shards for every client, and the authors' network."""
    partition = pf.LabelSorted(clients=options.clients, blocks_per_client=2)
    network = partial(
        two_cnn,
        tuple(dataset.inputs.shape[1:]),
        dataset.classes,
        hidden=(options.width, options.width),
        bias=False,
        padding=1,
        pool_padding=1,
    )
    task = pf.Task.from_dataset(dataset, partition=partition, model=network, seed=seed)
    return task.with_local_tests(pf.LocalTests(0.2, validation=0.1), seed=seed)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: accuracy and calibration of every method, mean ± standard deviation over seeds."""
    measures = {"accuracy": "accuracy", "deviation": "deviation over clients", "ece_of_clients": "ECE of clients"}
    cells: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        for label, values in row["scores"].items():
            cells.setdefault(f"{row['method']}, {label}" if label else row["method"], []).append(values)
    lines = [f"| method | {' | '.join(measures.values())} | seeds |", "|---" * (2 + len(measures)) + "|"]
    for name, found in cells.items():
        texts = []
        for measure in measures:
            values = [one[measure] for one in found]
            texts.append(f"{np.mean(values):.2f} ± {np.std(values, ddof=len(values) > 1):.2f}")
        lines.append(f"| {name} | {' | '.join(texts)} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for superfed-cifar10.json")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--width", type=int, default=200, help="units of the two hidden layers")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: does it run?")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.width, options.clients = "digits", 16, 10
        options.rounds, options.seeds = 2, [0]
    options.out.mkdir(parents=True, exist_ok=True)
    dataset = resized(pf.load_dataset(options.dataset), held_out=500)
    settings = {name: getattr(options, name) for name in ("dataset", "width", "clients", "cohort", "rounds", "epochs")}
    given = {name: settings[name] for name in ("rounds", "epochs", "cohort")}

    def run(method: str, seed: int) -> dict[str, Any]:
        return rivals.trained(task_of(options, dataset, seed), METHODS[method], seed=seed, **given)

    wanted = [{"method": method, "seed": seed} for seed, method in product(options.seeds, options.methods)]
    print(table(rivals.completed(options.out / "superfed-cifar10.json", settings, wanted, run)))


if __name__ == "__main__":
    main()
