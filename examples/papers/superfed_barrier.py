"""The null of SuperFed's loss barrier, and how wide the minima are: what Figure 2.4 of the thesis would have to show.

    PRIVFL_DATA=… python examples/papers/superfed_barrier.py --out results/barrier
    python examples/papers/superfed_barrier.py --out results/small --small       # digits, seconds

The federation, the training and the seeds of ``superfed.py``, 50 clients. A barrier is max ℓ(λ) − max(ℓ(0), ℓ(1)) on a
client's own test, of the mixtures of two models: SuPerFed's two end points; FedAvg's model and a client's that trained
alone from the same initial model; the same from another initial model. Width is the rise of a client's loss when every
layer is moved by a random direction of ``r`` times its own length. Finished runs in ``superfed-barrier.json`` are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from landscape import Evaluator, along
from superfed import STARTS, TRAINING, task_of
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.personal.interpolation import mix
from privfl.simulation.callbacks import Simulation

RADII, DIRECTIONS = (0.1, 0.2, 0.4), 5
METHODS = ("FedAvg", "Local", "Local, another initial model", "SuPerFed-MM", "SuPerFed-MM, ν = 0")


def algorithm_of(method: str, clients: int) -> Any:
    """The algorithm, with the paper's start of phase II."""
    if method.startswith("SuPerFed"):
        nu = 0.0 if method.endswith("ν = 0") else None
        return pf.SuPerFed(mode="mm", start_fraction=STARTS["mm"].get(clients), nu=nu)
    return pf.FedAvg() if method == "FedAvg" else pf.Local()


def redrawn(task: pf.Task, seed: int) -> pf.Task:
    """``task`` with an initial model of the same law and a stream of its own."""
    build = task.model

    def network(*given: Any) -> nn.Module:
        built, stream = build(*given), torch.Generator().manual_seed(1000 + seed)
        for weight in built.parameters():
            nn.init.xavier_normal_(weight, generator=stream)
        return built

    return replace(task, model=network)


def train(options: argparse.Namespace, method: str, seed: int) -> tuple[pf.Task, Tensor, dict[int, Tensor]]:
    """(task, the server's model [size], the clients' own models) after the last round."""
    task = task_of(options, options.clients, seed)
    task = redrawn(task, seed) if method.endswith("initial model") else task
    found: dict[str, Any] = {}

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        if line["round"] + 1 == options.rounds:
            found["server"] = simulation.server["parameters"].clone()
            name = "personal" if method.startswith("SuPerFed") else "parameters"
            own = {client: kept[name].clone() for client, kept in simulation.client_state.items() if name in kept}
            if name == "personal":  # clients that phase II never reached have an untrained end
                fresh = simulation.algorithm.initial_client_state
                own = {client: model for client, model in own.items() if not torch.equal(model, fresh(client)[name])}
            found["own"] = own

    pf.simulate(
        task,
        algorithm_of(method, options.clients),
        rounds=options.rounds,
        training=pf.LocalTraining(epochs=options.epochs, **TRAINING),
        cohort=pf.FixedCohort(options.cohort),
        seed=seed,
        evaluate_every=options.rounds,
        execution=pf.Execution(engine="loop", workers=1),
        callbacks=[watch],
    )
    return task, found["server"], found["own"]


def widths(task: pf.Task, models: Mapping[int, Tensor], seed: int) -> dict[str, float]:
    """Mean loss of the clients' ``models`` on their own tests, and its mean rise at every radius."""
    assert task.local_tests is not None
    evaluate = Evaluator(task)
    stream = torch.Generator().manual_seed(seed)
    size = next(iter(models.values())).numel()
    noise = torch.randn(DIRECTIONS, size, generator=stream)
    rises: dict[float, list[float]] = {radius: [] for radius in RADII}
    plain = []
    for client, model in models.items():
        rows = task.local_tests[client]
        inputs, targets = task.inputs[rows], task.targets[rows]
        plain.append(evaluate(model, inputs, targets)[0])
        for radius, direction in product(RADII, noise):
            moved = model.clone()
            pairs = zip(layers(evaluate, moved), layers(evaluate, direction), strict=True)
            for layer, way in pairs:
                layer += radius * layer.norm() / way.norm() * way
            rises[radius].append(evaluate(moved, inputs, targets)[0] - plain[-1])
    return {"loss": statistics.mean(plain)} | {f"{radius:g}": statistics.mean(rises[radius]) for radius in RADII}


def layers(evaluate: Evaluator, parameters: Tensor) -> list[Tensor]:
    """Views of the layers in ``parameters`` [size]."""
    return list(evaluate.layout.named_views(parameters).values())


def measure(task: pf.Task, federated: Tensor, own: Mapping[int, Tensor]) -> tuple[list[float], dict[str, list[float]]]:
    """Barriers of the clients between ``federated`` and their own models, and both curves' means over λ."""
    curves = along(task, federated, own)
    means = {"loss": curves.loss.mean(0), "accuracy": curves.accuracy.mean(0)}
    return curves.barriers.round(5).tolist(), {name: value.round(5).tolist() for name, value in means.items()}


def one_seed(options: argparse.Namespace, seed: int, write: Callable[[dict[str, Any]], None]) -> None:
    """Every method of a seed; FedAvg's model comes first, since two of the others are mixed with it."""
    began = time.process_time()
    task, shared, _ = train(options, "FedAvg", seed)
    everyone = range(len(task.clients))
    width = widths(task, dict.fromkeys(everyone, shared), seed)
    seconds = round(time.process_time() - began, 1)
    write({"method": "FedAvg", "widths": {"its one model": width}, "seconds": seconds})
    for method in options.methods:
        if method == "FedAvg":
            continue
        began = time.process_time()
        _, server, own = train(options, method, seed)
        mixed = method.startswith("SuPerFed")
        federated = server if mixed else shared
        barriers, curve = measure(task, federated, own)
        ends = {f"λ = {lam:g}": {k: mix(federated, model, lam) for k, model in own.items()} for lam in (0.0, 0.5, 1.0)}
        if not mixed:
            ends = {"own models": ends["λ = 1"]}
        found = {label: widths(task, models, seed) for label, models in ends.items()}
        seconds = round(time.process_time() - began, 1)
        write({"method": method, "barriers": barriers, "curve": curve, "widths": found, "seconds": seconds})


def main() -> None:
    """Run the seeds that are missing, then print every method's mean barrier and widths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for superfed-barrier.json")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--width", type=int, default=200, help="units of each of the three hidden layers")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: does it run?")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.width, options.clients = "digits", 32, 10
        options.rounds, options.epochs, options.seeds = 8, 2, 1
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "superfed-barrier.json"
    settings = {name: getattr(options, name) for name in ("dataset", "width", "clients", "cohort", "rounds", "epochs")}
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []

    def write(row: dict[str, Any], seed: int) -> None:
        rows.append({"seed": seed, **row})
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        store.write_text(f'{{"settings": {json.dumps(settings)}, "rows": {text}}}\n', encoding="utf-8")
        mean = f"barrier {np.mean(row['barriers']):.4f}, " if "barriers" in row else ""
        print(f"seed {seed}, {row['method']}: {mean}{row['widths']}", flush=True)

    for seed in range(options.seeds):
        if not set(options.methods) <= {row["method"] for row in rows if row["seed"] == seed}:
            rows[:] = [row for row in rows if row["seed"] != seed]  # FedAvg's model was not kept: the seed begins anew
            one_seed(options, seed, lambda row, seed=seed: write(row, seed))


if __name__ == "__main__":
    main()
