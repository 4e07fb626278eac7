"""FedSampling against draws by size with size weights, and against adaptive servers, each at a tuned rate.

    PRIVFL_DATA=… python examples/papers/fedsampling_tuned.py --out results/fedsampling-tuned
    python examples/papers/fedsampling_tuned.py --out results/small --small       # two rounds: does it run?

Fashion-MNIST sorted by class and cut into blocks of log-normal sizes, σ = 1: labels depend on the client, so that it
matters whose examples a step sees, which it does not where labels are assigned at random. Every method takes one
gradient step a round on about K examples. Its rate is the best of three, and of one beyond them where the best is at an
end, by accuracy on 10,000 training images that are held back for it, on a seed that is not compared; adaptive servers
tune η_g with 0.2 at the clients. Finished runs in ``fedsampling-tuned.json`` are kept, so an interrupted study goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

import privfl as pf
from privfl.data.partitions.base import Assignment, Partition, class_pools, consecutive, proportional_sizes

SAMPLES, SIGMA, CLIENTS = 2048, 1.0, 100
TUNING_SEED = 1000
CLIENT_RATE = 0.2
RATES, SERVER_RATES = (0.1, 0.2, 0.4), (0.003, 0.01, 0.03)
ADAPTIVE = {"FedAdam": pf.FedAdam, "FedYogi": pf.FedYogi, "FedAdagrad": pf.FedAdagrad}
METHODS = (
    "centralised",
    "FedSampling",
    "FedAvg, uniform",
    "FedAvg, draws by size",
    "FedAvg, draws by size and size weights",
    *ADAPTIVE,
)
SETTLED = 5
"""Evaluations at the end of a run over which accuracy is averaged, as in ``fedsampling.py``."""


@dataclass(frozen=True)
class SortedLogNormal(Partition):
    """Samples sorted by class, cut into consecutive blocks whose sizes are log-normal; every sample is used.

    Args:
        clients: number of clients, ≥ 1.
        sigma: standard deviation of the logarithm of the sizes.
    """

    clients: int = CLIENTS
    sigma: float = SIGMA

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        weights = rng.lognormal(0, self.sigma, self.clients)
        sizes = proportional_sizes(weights, len(targets), 1, exhaust=True)
        return consecutive(np.concatenate(class_pools(targets, classes, rng)), sizes)


@cache
def data(tuning: bool) -> pf.Dataset:
    """Fashion-MNIST; for tuning, its training images alone, of which 10,000 are the test."""
    full = pf.load_dataset("fashion-mnist")
    if not tuning:
        return full
    order = torch.from_numpy(np.random.default_rng(TUNING_SEED).permutation(len(full.targets)))
    held, kept = order[:10_000], order[10_000:]
    return replace(
        full,
        inputs=full.inputs[kept],
        targets=full.targets[kept],
        test_inputs=full.inputs[held],
        test_targets=full.targets[held],
    )


@cache
def task(seed: int, tuning: bool) -> pf.Task:
    """The federation of one seed, which also draws the partition."""
    return pf.Task.from_dataset(data(tuning), partition=SortedLogNormal(), model="two-nn", seed=seed)


def arguments(method: str, rate: float, federation: pf.Task) -> tuple[Any, dict[str, Any]]:
    """(algorithm, arguments of ``simulate``); m clients hold K examples on average."""
    cohort = max(1, round(SAMPLES * len(federation.clients) / len(federation.clients.rows)))
    given: dict[str, Any] = {
        "training": pf.LocalTraining(learning_rate=rate, batch_size=SAMPLES, steps=1),
        "cohort": pf.FixedCohort(cohort),
    }
    if method in ADAPTIVE:
        training = replace(given["training"], learning_rate=CLIENT_RATE)
        algorithm = ADAPTIVE[method](weighting="uniform", server_learning_rate=rate)
        return algorithm, given | {"training": training}
    if method in ("centralised", "FedSampling"):
        algorithm = pf.Centralized() if method == "centralised" else pf.FedSampling(SAMPLES)
        return algorithm, given | {"cohort": None}
    if "draws by size" in method:
        given["cohort"] = pf.SizeWeightedCohort(cohort)
    return pf.FedAvg(weighting="size" if method.endswith("size weights") else "uniform"), given


def beyond(grid: tuple[float, ...], edge: float) -> float:
    """The next rate after an ``edge`` of ``grid``, as far from it as the edge's neighbour is."""
    near = grid[1] if edge == grid[0] else grid[-2]
    return round(edge * edge / near, 6)


def train(method: str, rate: float, seed: int, tuning: bool, rounds: int) -> dict[str, Any]:
    """One run: accuracy at the end and as the mean of the last evaluations, its curve, processor seconds."""
    began = time.process_time()
    federation = task(seed, tuning)
    algorithm, given = arguments(method, rate, federation)
    run = pf.simulate(
        federation,
        algorithm,
        **given,
        privacy=pf.Privacy(noise_key=seed),
        rounds=rounds,
        seed=seed,
        evaluate_every=5,
        execution=pf.Execution(engine="loop", workers=1),
    )
    curve = [(line["round"] + 1, line["test_accuracy"]) for line in run.metrics if "test_accuracy" in line]
    macro = [line["test_macro_f1"] for line in run.metrics if "test_macro_f1" in line]
    return {
        "method": method,
        "rate": rate,
        "seed": seed,
        "settled": statistics.mean(value for _, value in curve[-SETTLED:]),
        "settled_macro_f1": statistics.mean(macro[-SETTLED:]),
        "accuracy": curve[-1][1],
        "largest_client": int(federation.clients.sizes.max()),
        "seconds": round(time.process_time() - began, 1),
        "curve": curve,
    }


def compared(rows: list[dict[str, Any]]) -> list[str]:
    """Every method's mean ± standard deviation, and FedSampling's paired differences with 95 % intervals, in points."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["method"], {})[row["seed"]] = 100 * row["settled"]
    lines = []
    for method, cells in found.items():
        values = list(cells.values())
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        text = f"{method}: {statistics.mean(values):.2f} ± {spread:.2f}, of {len(values)}"
        both = sorted(set(cells) & set(found.get("FedSampling", {})))
        if method != "FedSampling" and len(both) > 1:
            each = [found["FedSampling"][seed] - cells[seed] for seed in both]
            reach = student.ppf(0.975, len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
            mean = statistics.mean(each)
            text += f"; FedSampling − it {mean:+.2f} [{mean - reach:.2f}, {mean + reach:.2f}]"
        lines.append(text)
    return lines


def main() -> None:
    """Tune, run what is missing, print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for fedsampling-tuned.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--small", action="store_true", help="two rounds, one rate, one seed: does it run?")
    options = parser.parse_args()
    seeds, rounds = (1, 2) if options.small else (options.seeds, options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fedsampling-tuned.json"
    setting = {"samples": SAMPLES, "sigma": SIGMA, "clients": CLIENTS, "rounds": rounds, "client_rate": CLIENT_RATE}
    stored: dict[str, Any] = {"setting": setting, "tuning": [], "rows": []}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["setting"] != setting:
            parser.error(f"{path} holds runs of other settings; give another folder")

    def add(part: str, method: str, rate: float, seed: int) -> None:
        if any((row["method"], row["rate"], row["seed"]) == (method, rate, seed) for row in stored[part]):
            return
        row = train(method, rate, seed, part == "tuning", rounds)
        stored[part].append(row)
        parts = {name: "[\n" + ",\n".join(map(json.dumps, stored[name])) + "\n]" for name in ("tuning", "rows")}
        text = ", ".join(f'"{name}": {value}' for name, value in parts.items())
        path.write_text(f'{{"setting": {json.dumps(setting)}, {text}}}\n', encoding="utf-8")
        print(f"{part}, {method}, rate {rate}, seed {seed}: {row['settled']:.4f} in {row['seconds']} s", flush=True)

    def best(method: str) -> float:
        tried = [row for row in stored["tuning"] if row["method"] == method]
        return float(max(tried, key=lambda row: row["settled"])["rate"])

    for method in METHODS:
        grid = SERVER_RATES if method in ADAPTIVE else RATES
        for rate in grid[:1] if options.small else grid:
            add("tuning", method, rate, TUNING_SEED)
        if not options.small and best(method) in (grid[0], grid[-1]):
            add("tuning", method, beyond(grid, best(method)), TUNING_SEED)
    for seed in range(seeds):
        for method in METHODS:
            add("rows", method, best(method), seed)
    print("\n".join(compared(stored["rows"])))


if __name__ == "__main__":
    main()
