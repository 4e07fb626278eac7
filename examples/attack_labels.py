"""How many labels of a batch its gradient gives away on networks without training: the identity, LLG and a regression.

    PRIVFL_DATA=… python examples/attack_labels.py --out results/attack-labels
    python examples/attack_labels.py --out results/small --small       # digits, a few seconds

Labels are drawn from a fresh Dirichlet(0.5) for every batch, so that many repeat. The attacker has public examples and
the initial network. Writes ``results.json`` and ``table.md``: share of batches whose counts are all right, and share of
labels found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import attacks
import privfl as pf
from attacks.labels.calibration_batches import PureBatches
from attacks.labels.llg import calibrate, llg, row_sums
from attacks.metrics.counts import exact_match, multiset_accuracy
from attacks.observations.head_gradients import HeadGradient, class_gradients
from attacks.observations.label_counts import (
    counts_by_regression,
    counts_from_bias,
    counts_from_weights,
    integer_counts,
)
from privfl.models import Network, build
from privfl.randomness import numpy_stream

CASES = {"digits": "two-nn", "fashion-mnist": "rebafl-fmnist", "cifar10": "rebafl-cifar"}
"""Datasets with the networks that are attacked; the last has features of either sign and a head without bias."""


def split(name: str, size: int) -> tuple[attacks.Records, attacks.Records, int]:
    """Public and private examples, ``size`` of each at most, and the number of classes."""
    data = pf.load_dataset(name)
    inputs, targets = torch.as_tensor(data.inputs[: 2 * size]), torch.as_tensor(data.targets[: 2 * size])
    middle = len(targets) // 2
    public, private = (attacks.Records(inputs[part], targets[part]) for part in (slice(middle), slice(middle, None)))
    return public, private, data.classes


def drawn(private: attacks.Records, classes: int, size: int, trial: int) -> attacks.Records:
    """A batch whose labels follow a fresh Dirichlet(0.5)."""
    random = numpy_stream(trial, "batch", size)
    labels = random.choice(classes, size, p=random.dirichlet([0.5] * classes))
    owned = [np.flatnonzero(private.targets.numpy() == label) for label in range(classes)]
    return private[torch.tensor([random.choice(owned[label]) for label in labels])]


def guesses(network: Network, head: HeadGradient, public: attacks.Records, classes: int, size: int) -> dict[str, Any]:
    """The ways to count labels, by name, each a function that takes nothing."""
    sums = row_sums(head.weight)
    ones = torch.ones(size, *public.inputs.shape[1:])
    pure = PureBatches(public, size, 0)

    with torch.no_grad():
        features = network.features(public.inputs)
        mean = torch.softmax(network.head(features).double(), 1).mean(0)
    total = float(features.sum(1).mean())

    def regressed() -> Tensor:
        known = class_gradients(network, public.inputs, public.targets, classes, bias=head.bias is not None)
        return integer_counts(counts_by_regression(head.vector() * size, known), size)

    ways: dict[str, Callable[[], Tensor]] = {
        "LLG": lambda: llg(sums, size),
        "LLG*": lambda: llg(sums, size, calibrate(network, lambda label, repeat: ones, classes, repeats=1)),
        "LLG+": lambda: llg(sums, size, calibrate(network, pure, classes)),
        "identity, weights": lambda: integer_counts(counts_from_weights(head.weight, mean, size, total), size),
        "regression": regressed,
    }
    bias = head.bias
    if bias is not None:
        ways["identity, bias"] = lambda: integer_counts(counts_from_bias(bias, mean, size), size)
    return ways


def study(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for every batch size and way, on one dataset."""
    public, private, classes = split(name, options.examples)
    rows = []
    for size in options.batches:
        found: dict[str, list[Tensor]] = {}
        truth = []
        for trial in range(options.trials):
            network = build(CASES[name], tuple(public.inputs.shape[1:]), classes, seed=trial)
            batch = drawn(private, classes, size, trial)
            parameters = list(network.head.parameters())
            loss = F.cross_entropy(network(batch.inputs), batch.targets)
            weight, *bias = (part.double() for part in torch.autograd.grad(loss, parameters))
            head = HeadGradient(weight, bias[0] if bias else None)
            truth.append(torch.bincount(batch.targets, minlength=classes))
            for way, guess in guesses(network, head, public, classes, size).items():
                found.setdefault(way, []).append(guess())
        true = torch.stack(truth).numpy()
        for way, counts in found.items():
            guessed = torch.stack(counts).numpy()
            exact, labels = exact_match(guessed, true), multiset_accuracy(guessed, true)
            row = {"dataset": name, "batch": size, "way": way, "exact": exact.value, "labels": labels.value}
            rows.append({**row, "exact_low": exact.low})
            print(f"{name}, {size:3} labels, {way:18} exact {exact.value:.2f}  found {labels.value:.3f}", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each dataset and way, a column for each batch size."""
    batches = sorted({row["batch"] for row in rows})
    lines = [
        "| network | way | " + " | ".join(f"B = {size}" for size in batches) + " |",
        "|---" * (len(batches) + 2) + "|",
    ]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        for way in dict.fromkeys(row["way"] for row in rows if row["dataset"] == name):
            mine = {row["batch"]: row for row in rows if (row["dataset"], row["way"]) == (name, way)}
            cells = [f"{mine[size]['exact']:.0%} ({mine[size]['labels']:.3f})" for size in batches]
            lines.append(f"| `{CASES[name]}`, {name} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all datasets; write ``results.json`` and ``table.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--datasets", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--trials", type=int, default=10, help="networks and batches of each size")
    parser.add_argument("--examples", type=int, default=1000, help="public examples, and private ones")
    parser.add_argument("--small", action="store_true", help="digits, 3 trials of 8 labels")
    options = parser.parse_args()
    if options.small:
        options.datasets, options.batches, options.trials = ["digits"], [8], 3
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    rows: list[dict[str, Any]] = []
    for name in options.datasets:
        rows += study(name, options)
        (options.out / "results.json").write_text(
            json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )
    (options.out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
