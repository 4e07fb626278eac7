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
import json
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from landscape import LAMBDAS, along
from superfed import TRAINING, calibration, choices, two_nn_without_bias
from torch import Tensor

import privfl as pf
from privfl.algorithms.personal.interpolation import mix
from privfl.simulation.callbacks import Simulation

NOISES: dict[str, Any] = {
    "pair 0.1": pf.PairFlip(0.1),
    "pair 0.4": pf.PairFlip(0.4),
    "symmetric 0.2": pf.SymmetricFlip(0.2),
    "symmetric 0.6": pf.SymmetricFlip(0.6),
}
METHODS: dict[str, Any] = {
    "FedAvg": pf.FedAvg(),
    "FedProx": pf.FedProx(),
    "SCAFFOLD": pf.Scaffold(),
    "Local": pf.Local(),
    "LG-FedAvg": pf.LGFedAvg(),
    "FedPer": pf.FedPer(),
    "APFL": pf.APFL(),
    "pFedMe": pf.PFedMe(),
    "Ditto": pf.Ditto(),
    "FedRep": pf.FedRep(),
    "SuPerFed-MM": pf.SuPerFed(mode="mm", start_fraction=0.4),
    "SuPerFed-LM": pf.SuPerFed(mode="lm", start_fraction=0.6),
}
"""With the authors' L and ν for noisy labels, and this project's defaults for the rivals."""


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


def scores(simulation: Simulation, models: dict[int, Tensor]) -> dict[str, float]:
    """Accuracy of ``models`` on their clients' tests, mean and deviation over clients, and calibration, in per cent."""
    task = simulation.task
    assert task.local_tests is not None
    found = []
    for client, model in models.items():
        rows = task.local_tests[client]
        predicted = simulation.engine.logits(model, task.inputs[rows]).argmax(1)
        found.append(100 * float((predicted == task.targets[rows]).double().mean()))
    spread = {"accuracy": round(statistics.mean(found), 3), "deviation": round(statistics.pstdev(found), 3)}
    return spread | calibration(simulation, models)


def judged(simulation: Simulation) -> dict[str, dict[str, float]]:
    """Label → scores of the clients' models after the last round."""
    algorithm, server, task = simulation.algorithm, simulation.server, simulation.task
    fresh = algorithm.initial_client_state
    states = {client: fresh(client) for client in range(len(task.clients))} | dict(simulation.client_state)
    if isinstance(algorithm, pf.SuPerFed):
        shared, own = server["parameters"], {client: kept["personal"] for client, kept in states.items()}
        tested, validated = along(task, shared, own), along(task, shared, own, task.local_validations)
        clients = tested.clients.tolist()
        labels = choices(tested.accuracy, validated.accuracy)
        return {
            label: scores(
                simulation,
                {
                    client: mix(shared, own[client], LAMBDAS[place])
                    for client, place in zip(clients, places, strict=True)
                },
            )
            for label, places in labels.items()
        }
    models = {}
    for client, kept in states.items():
        own_models = algorithm.personal(server, kept)
        models[client] = next(iter(own_models.values())) if own_models else server["parameters"]
    return {"": scores(simulation, models)}


def run(options: argparse.Namespace, noise: str, method: str, seed: int) -> dict[str, Any]:
    """One run, judged after its last round."""
    found: dict[str, Any] = {}

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        if line["round"] + 1 == options.rounds:
            found.update(judged(simulation))

    began = time.process_time()
    pf.simulate(
        task_of(options, noise, seed),
        METHODS[method],
        rounds=options.rounds,
        training=pf.LocalTraining(epochs=options.epochs, **TRAINING),
        cohort=pf.FixedCohort(options.cohort),
        seed=seed,
        evaluate_every=options.rounds,
        execution=pf.Execution(engine="loop", workers=1),
        callbacks=[watch],
    )
    seconds = round(time.process_time() - began, 1)
    return {"noise": noise, "method": method, "seed": seed, "scores": found, "processor_seconds": seconds}


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
    store = options.out / "superfed-noise.json"
    settings = {name: getattr(options, name) for name in ("dataset", "width", "clients", "cohort", "rounds", "epochs")}
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    done = {(row["noise"], row["method"], row["seed"]) for row in rows}
    for seed, noise, method in product(range(options.seeds), options.noises, options.methods):
        if (noise, method, seed) in done:
            continue
        rows.append(run(options, noise, method, seed))
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        store.write_text(f'{{"settings": {json.dumps(settings)}, "rows": {text}}}\n', encoding="utf-8")
        print(f"{noise}, seed {seed}, {method}:", rows[-1]["scores"], f"{rows[-1]['processor_seconds']} s", flush=True)
    for measure in ("accuracy", "ece_of_clients", "mce_of_clients"):
        print(table(rows, measure), end="\n\n")


if __name__ == "__main__":
    main()
