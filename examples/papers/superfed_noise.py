"""SuPerFed and its rivals on noisy labels: accuracy and calibration, the MNIST columns of the thesis's Table 2.6.

    PRIVFL_DATA=… python examples/papers/superfed_noise.py --out results/noisy
    python examples/papers/superfed_noise.py --out results/small --small       # digits, under a minute

The clients of ``superfed.py``, but with labels spread evenly (Dirichlet, α = 100, as in the authors' code) and a share
of the training labels flipped: to the next class ("pair") or to any other ("symmetric"). Tests keep the true labels.
Every client is judged on its own test, by its own model where the method makes one, else by the shared one; SuPerFed's
mixture is chosen on a tenth of the training rows, whose labels are as noisy as the rest, and the paper's way, the best
of eleven on the test, stands beside it. Finished runs in ``superfed-noise.json`` are kept.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rivals import METHODS, completed, trained
from superfed import two_nn_without_bias

import privfl as pf

NOISES: dict[str, Any] = {
    "pair 0.1": pf.PairFlip(0.1),
    "pair 0.4": pf.PairFlip(0.4),
    "symmetric 0.2": pf.SymmetricFlip(0.2),
    "symmetric 0.6": pf.SymmetricFlip(0.6),
}


def task_of(options: argparse.Namespace, noise: str, seed: int) -> pf.Task:
    """Evenly spread labels, some of them flipped, and the network of ``superfed.py``."""
    dataset = pf.load_dataset(options.dataset)
    task = pf.Task.from_dataset(
        dataset,
        partition=pf.Dirichlet(clients=options.clients, alpha=100.0),
        model=two_nn_without_bias(dataset, options.width),
        label_noise=NOISES[noise],
        seed=seed,
    )
    return task.with_local_tests(pf.LocalTests(0.2, validation=0.1), seed=seed)


def table(rows: list[dict[str, Any]], measure: str) -> str:
    """Markdown: ``measure`` of every method under every noise, mean ± standard deviation over seeds."""
    noises = [noise for noise in NOISES if any(row["noise"] == noise for row in rows)]
    cells: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for label, values in row["scores"].items():
            name = f"{row['method']}, {label}" if label else row["method"]
            cells.setdefault(name, {}).setdefault(row["noise"], []).append(values[measure])
    lines = [f"| {measure} | {' | '.join(noises)} |", "|---" * (1 + len(noises)) + "|"]
    for name, found in cells.items():
        texts = [
            f"{np.mean(found[noise]):.2f} ± {np.std(found[noise], ddof=len(found[noise]) > 1):.2f}" for noise in noises
        ]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for superfed-noise.json")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--width", type=int, default=200, help="units of each of the three hidden layers")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noises", nargs="+", choices=tuple(NOISES), default=list(NOISES))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: does it run?")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.width, options.clients, options.noises = "digits", 32, 10, ["pair 0.4"]
        options.rounds, options.epochs, options.seeds = 6, 1, 1
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("dataset", "width", "clients", "cohort", "rounds", "epochs")}
    given = {name: settings[name] for name in ("rounds", "epochs", "cohort")}

    def run(noise: str, method: str, seed: int) -> dict[str, Any]:
        return trained(task_of(options, noise, seed), METHODS[method], seed=seed, **given)

    every = product(range(options.seeds), options.noises, options.methods)
    wanted = [{"noise": noise, "method": method, "seed": seed} for seed, noise, method in every]
    rows = completed(options.out / "superfed-noise.json", settings, wanted, run)
    for measure in ("accuracy", "ece_of_clients", "mce_of_clients"):
        print(table(rows, measure), end="\n\n")


if __name__ == "__main__":
    main()
