"""SuPerFed-MM and -LM against FedAvg and training alone: the MNIST columns of Table 2.3 in the authors' thesis.

    PRIVFL_DATA=… python examples/papers/superfed.py --out results/superfed
    python examples/papers/superfed.py --out results/small --small       # digits, under a minute
    PRIVFL_DATA=… python examples/papers/superfed.py --full --plan     # the paper's tables: docs/results/full.md

Clients hold two label-sorted shards each and keep 20 % of them for their own test. The paper takes, for every client,
the best of eleven mixtures *on that test*; here a tenth of the training rows chooses the mixture, and the paper's way
is reported beside it. Within a pair of (clients, seed) all methods meet the same partition, initial model, cohorts and
batches. What is done is written to ``results.json`` at once, and an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import full
import numpy as np
import torch
from landscape import LAMBDAS, Curves, Landscape, along, corners, draw_curves, draw_landscapes, landscape
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.personal.interpolation import mix
from privfl.metrics.calibration import expected_calibration_error, maximum_calibration_error
from privfl.models.dense import two_nn
from privfl.simulation.callbacks import Simulation

TRAINING: dict[str, Any] = {
    "learning_rate": 0.01,
    "batch_size": 10,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "learning_rate_decay": 0.99,
}
STARTS = {"mm": {50: 0.6, 100: 0.4}, "lm": {50: 0.8, 100: 0.6}}
"""L of the authors' commands, by mode and number of clients."""
METHODS = ("FedAvg", "SuPerFed-MM", "SuPerFed-LM", "Local")
PLACES = 5
"""Decimal places of what is stored."""
MIDDLE = 5
"""The place of λ = 0.5 in a curve."""


def algorithm_of(method: str, clients: int) -> Any:
    """The algorithm, with the paper's start of phase II for this number of clients."""
    if method in ("FedAvg", "Local"):
        return getattr(pf, method)()
    mode: Any = method[-2:].lower()
    return pf.SuPerFed(mode=mode, start_fraction=STARTS[mode].get(clients))


def two_nn_without_bias(dataset: pf.Dataset, width: int) -> Callable[[], nn.Module]:
    """What builds the authors' bias-free "TwoNN" with layers of ``width`` units, Xavier-normal."""
    shape = tuple(dataset.inputs.shape[1:])

    def network() -> nn.Module:
        built = two_nn(shape, dataset.classes, hidden=(width,) * 3, bias=False)
        for weight in built.parameters():
            nn.init.xavier_normal_(weight)
        return built

    return network


def task_of(options: argparse.Namespace, clients: int, seed: int) -> pf.Task:
    """Two label-sorted shards for every client, and the authors' network."""
    dataset = pf.load_dataset(options.dataset)
    partition = pf.LabelSorted(clients=clients, blocks_per_client=2)
    model = two_nn_without_bias(dataset, options.width)
    task = pf.Task.from_dataset(dataset, partition=partition, model=model, seed=seed)
    return task.with_local_tests(pf.LocalTests(0.2, validation=0.1), seed=seed)


def choices(accuracy: Any, validation: Any) -> dict[str, Any]:
    """Label → the place in the λ grid [clients] that each client uses; of equals the middle, then from 0 on."""
    order = np.array([MIDDLE, *(place for place in range(len(LAMBDAS)) if place != MIDDLE)])
    clients = len(accuracy)
    found = {
        "λ best on the test": order[accuracy[:, order].argmax(1)],
        "λ by validation": order[validation[:, order].argmax(1)],
    }
    return found | {f"λ = {LAMBDAS[place]:g}": np.full(clients, place) for place in (0, MIDDLE, -1)}


def calibration(simulation: Simulation, models: Mapping[int, Tensor]) -> dict[str, float]:
    """ECE and MCE in percent of ``models``, each on its own client's test.

    ``ece`` and ``mce`` are over all clients' rows together, ``…_of_clients`` the mean of the clients' own values, which
    a test of a hundred rows inflates.
    """
    task, every, own = simulation.task, [], []
    assert task.local_tests is not None
    for client, model in models.items():
        rows = task.local_tests[client]
        pair = simulation.engine.logits(model, task.inputs[rows]).double().softmax(1), task.targets[rows]
        every.append(pair)
        own.append([100 * metric(*pair) for metric in (expected_calibration_error, maximum_calibration_error)])
    probabilities, targets = (torch.cat(part) for part in zip(*every, strict=True))
    ece, mce = np.array(own).mean(0)
    return {
        "ece": round(100 * expected_calibration_error(probabilities, targets), 3),
        "mce": round(100 * maximum_calibration_error(probabilities, targets), 3),
        "ece_of_clients": round(float(ece), 3),
        "mce_of_clients": round(float(mce), 3),
    }


def measured(simulation: Simulation, resolution: int) -> dict[str, Any]:
    """What is known of the clients' mixtures after the last round; a ``resolution`` of 0 leaves the landscape out."""
    task, model = simulation.task, simulation.server["parameters"]
    fresh = {
        client: simulation.algorithm.initial_client_state(client)["personal"] for client in range(len(task.clients))
    }
    own = fresh | {client: client_state["personal"] for client, client_state in simulation.client_state.items()}
    moved = [client for client in fresh if not torch.equal(own[client], fresh[client])]
    found = along(task, model, own)
    validation = along(task, model, own, task.local_validations)

    def chosen(places: Any) -> dict[int, Tensor]:
        pairs = zip(found.clients.tolist(), places, strict=True)
        return {client: mix(model, own[client], LAMBDAS[place]) for client, place in pairs}

    row: dict[str, Any] = {
        "accuracy": found.accuracy.round(PLACES).tolist(),
        "loss": found.loss.round(PLACES).tolist(),
        "validation_accuracy": validation.accuracy.round(PLACES).tolist(),
        "moved": moved,
        "calibration": {
            label: calibration(simulation, chosen(places))
            for label, places in choices(found.accuracy, validation.accuracy).items()
        },
    }
    if resolution and moved:
        assert task.local_tests is not None
        around = landscape(task, corners(simulation, moved[0]), task.local_tests[moved[0]], resolution=resolution)
        row["landscape"] = {name: np.round(value, PLACES).tolist() for name, value in vars(around).items()}
        row["landscape_client"] = moved[0]
    return row


def run(options: argparse.Namespace, clients: int, method: str, seed: int) -> dict[str, Any]:
    """One run to its end, from where it stands."""
    folder = options.out / "runs" / f"{clients}-{method}-{seed}"
    task, found = task_of(options, clients, seed), {}

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        if line["round"] + 1 == options.rounds:
            found["last"] = line
            server, clients_of = simulation.server["parameters"], range(len(task.clients))
            if method == "FedAvg":
                found["calibration"] = calibration(simulation, dict.fromkeys(clients_of, server))
            elif method == "Local":
                models = {
                    client: client_state["parameters"] for client, client_state in simulation.client_state.items()
                }
                found["calibration"] = calibration(simulation, models)
            else:
                found["mixtures"] = measured(simulation, options.resolution if seed == 0 else 0)

    def train() -> None:
        pf.simulate(
            task,
            algorithm_of(method, clients),
            rounds=options.rounds,
            training=pf.LocalTraining(epochs=options.epochs, **TRAINING),
            cohort=pf.FixedCohort(options.cohort),
            seed=seed,
            evaluate_every=options.rounds,
            execution=pf.Execution(engine="loop", workers=1),
            out=folder,
            resume=folder.exists(),
            callbacks=[watch],
        )

    began = time.process_time()
    train()
    if not found:  # it had ended before its row was written, and what it ended in is gone
        shutil.rmtree(folder)
        train()
    row = {"clients": clients, "method": method, "seed": seed, "rounds": options.rounds, **found}
    return row | {"processor_seconds": round(time.process_time() - began, 1)}


def outcomes(row: dict[str, Any]) -> dict[str, list[float]]:
    """Label → accuracies of the clients, or [mean, deviation] of them where no more is known, in percent."""
    prefix = {"FedAvg": "local", "Local": "personal"}.get(row["method"])
    if prefix:
        parts = [f"{prefix}_accuracy_{part}" for part in ("of_clients", "deviation")]
        return {row["method"]: [100 * row["last"][part] for part in parts]}
    accuracy = 100 * np.array(row["mixtures"]["accuracy"])
    validation = np.array(row["mixtures"]["validation_accuracy"])
    moved = row["mixtures"]["moved"]
    everybody = np.arange(len(accuracy))
    columns = {label: accuracy[everybody, places] for label, places in choices(accuracy, validation).items()}
    columns["λ = 1, clients trained in phase II"] = accuracy[moved, -1]
    return {
        f"{row['method']}, {name}": [float(values.mean()), float(values.std())]
        for name, values in columns.items()
        if len(values)
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mean over clients (averaged over seeds), and their deviation; one column for each number of clients."""
    sizes = sorted({row["clients"] for row in rows})
    cells: dict[str, dict[int, list[list[float]]]] = {}
    for row in rows:
        for label, pair in outcomes(row).items():
            cells.setdefault(label, {}).setdefault(row["clients"], []).append(pair)
    lines = [
        "| method | " + " | ".join(f"K = {size} (seeds)" for size in sizes) + " |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for label, by_size in cells.items():
        texts = []
        for size in sizes:
            pairs = by_size.get(size, [])
            means = [statistics.mean(part) for part in zip(*pairs, strict=True)]
            seeds = ", ".join(f"{pair[0]:.2f}" for pair in pairs)
            texts.append(f"{means[0]:.2f} ± {means[1]:.2f} ({seeds})" if pairs else "–")
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def calibration_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: ECE and MCE over all clients' rows, and the clients' mean ECE, averaged over the seeds, in percent."""
    sizes = sorted({row["clients"] for row in rows})
    names = {"ece": "ECE", "mce": "MCE", "ece_of_clients": "mean ECE of clients"}
    cells: dict[str, dict[tuple[int, str], list[float]]] = {}
    for row in rows:
        mixtures = row.get("mixtures", {}).get("calibration", {})
        found = {f"{row['method']}, {label}": values for label, values in mixtures.items()}
        found |= {row["method"]: row["calibration"]} if "calibration" in row else {}
        for label, values in found.items():
            for name in names:
                cells.setdefault(label, {}).setdefault((row["clients"], name), []).append(values[name])
    keys = [(size, name) for size in sizes for name in names]
    lines = ["| method | " + " | ".join(f"K = {size}, {names[name]}" for size, name in keys) + " |"]
    lines.append("|---" * (1 + len(keys)) + "|")
    for label, by_key in cells.items():
        texts = [f"{statistics.mean(by_key[key]):.2f}" if key in by_key else "–" for key in keys]
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """``lambda-K.png``: the curves of the clients that were trained in phase II; ``landscape-K.png``: for seed 0."""
    for clients in sorted({row["clients"] for row in rows}):
        mine = [row for row in rows if row["clients"] == clients and "mixtures" in row and row["mixtures"]["moved"]]
        groups: dict[str, Curves] = {}
        around: dict[str, Landscape] = {}
        for method in METHODS:
            parts = [row["mixtures"] for row in mine if row["method"] == method]
            if not parts:
                continue
            stacked = {
                name: np.concatenate([np.array(part[name])[part["moved"]] for part in parts])
                for name in ("accuracy", "loss")
            }
            groups[method] = Curves(np.linspace(0, 1, 11), np.arange(len(stacked["loss"])), **stacked)
            around |= {
                f"{method}, client {part['landscape_client']}": Landscape(
                    **{name: np.array(value) for name, value in part["landscape"].items()}
                )
                for part in parts
                if "landscape" in part
            }
        if groups:
            title = f"{clients} clients: those trained in phase II, mean and middle 80 %"
            draw_curves(groups, title).savefig(out / f"lambda-{clients}.png", dpi=150)
        if around:
            draw_landscapes(around).savefig(out / f"landscape-{clients}.png", dpi=150)


def main() -> None:
    """Run what is missing, then print the table and draw the figures."""
    if full.asked():
        full.run("superfed")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, figures and run directories")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--width", type=int, default=200, help="units of each of the three hidden layers")
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--resolution", type=int, default=25, help="points on each side of the landscape")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: under a minute")
    parser.add_argument(
        "--full", action="store_true", default=argparse.SUPPRESS, help="the paper's tables: --full --help"
    )
    options = parser.parse_args()
    if options.small:
        options.dataset, options.width, options.clients = "digits", 32, [10]
        options.rounds, options.epochs, options.seeds, options.resolution = 8, 2, 1, 9
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    done = {(row["clients"], row["method"], row["seed"]) for row in rows}
    for clients, seed, method in product(options.clients, range(options.seeds), options.methods):
        if (clients, method, seed) in done:
            continue
        rows.append(run(options, clients, method, seed))
        settings = {name: value for name, value in vars(options).items() if name not in ("out", "clients", "methods")}
        store.write_text(
            json.dumps({"settings": settings, "training": TRAINING, "rows": rows}) + "\n", encoding="utf-8"
        )
        summary = {label: f"{pair[0]:.2f} ± {pair[1]:.2f}" for label, pair in outcomes(rows[-1]).items()}
        print(f"K = {clients}, seed {seed}", summary, f"{rows[-1]['processor_seconds']} s", flush=True)
    print(table(rows))
    print(calibration_table(rows))
    draw(rows, options.out)


if __name__ == "__main__":
    main()
