"""Attacks against defences: what each of ten attacks gains over guessing under each of seven settings of a run.

    PRIVFL_DATA=… python examples/attack_defences.py --out results/attack-defences
    python examples/attack_defences.py --out results/small --small       # digits, under half a minute

Three federations of the same clients: ``training`` (FedAvg on cross-entropy for many rounds), ``one image`` (one
full-batch step of clients that hold one image each) and ``prototypes`` (ReBaFL). Each runs bare and under the defences
that apply to it; the attacks read what the server or the public saw. Every cell is the advantage over the best null, a
mean over the attacked clients with a 95 % interval, and beside ε of the statement stands the AUC that it allows a
membership attack. What is done is written to ``results.json`` at once, and an interrupted study goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from scipy import stats

import attacks
import privfl as pf
from attacks.images.pixels import Pixels
from attacks.membership.shadow_models import ShadowTraining
from attacks.metrics.distinguishing import auc_ceiling

EPSILONS = {"ε = 8": 8.0, "ε = 3": 3.0, "ε = 1": 1.0}
DEFENCES = ("none", "larger batch", "minimum count", "secure sum", *EPSILONS)
APPLY = {
    "training": ("none", "larger batch", "secure sum", *EPSILONS),
    "one image": ("none", "larger batch", "secure sum", *EPSILONS),
    "prototypes": ("none", "minimum count", "secure sum", *EPSILONS),
}
"""Which defences are tried on which federation; a larger batch of one image is a client of more images."""
MINIMUM = 5
"""Examples of a class below which ReBaFL's clients send no prototype, as a defence."""
NOISE_KEY = 20211
"""Repeats the noise, so that the study repeats; a run to be released leaves it out."""


def task_of(options: argparse.Namespace, size: int) -> pf.Task:
    """Clients of ``size`` examples each, labels dealt at random."""
    partition = pf.GivenSizes(sizes=(size,) * options.clients)
    width = {"hidden": (options.width,)}
    return pf.load(options.dataset, partition=partition, model="two-nn", model_options=width, seed=options.seed)


def protection(federation: str, defence: str, batch: int, size: int) -> pf.Privacy:
    """The mechanisms of a cell."""
    if defence == "secure sum":
        if federation == "prototypes":
            return pf.Privacy(update=(pf.SecureSum(mode="ideal"),))
        return pf.Privacy(update=(pf.Clip(100.0), pf.SecureSum(mode="ideal")))
    if defence not in EPSILONS:
        return pf.Privacy()
    target = EPSILONS[defence]
    training = pf.DPSGD(target_epsilon=target, sample_rate=min(1.0, batch / size))
    if federation != "prototypes":
        return pf.Privacy(training=training, noise_key=NOISE_KEY)
    multiplier = 24 / target  # of the noise on counts and prototypes: a part of the budget, the rest is DP-SGD's
    totals = (pf.NoisyTotal("label_prior", 1.0, multiplier), pf.NoisyTotal("prototypes", 2**0.5, multiplier))
    return pf.Privacy(training=training, statistics=totals, noise_key=NOISE_KEY)


def watched(options: argparse.Namespace, federation: str, defence: str) -> tuple[pf.Task, Any]:
    """The task and the run of one cell, recorded for both observers."""
    size, rounds = options.size, options.rounds
    training = {"learning_rate": 0.1, "batch_size": options.batch, "epochs": options.epochs}
    algorithm: Any = pf.FedAvg(weighting="uniform")
    if federation == "one image":
        size, rounds = (options.images if defence == "larger batch" else 1), 1
        training |= {"batch_size": size, "epochs": 1}
    elif defence == "larger batch":
        training |= {"batch_size": size}
    if federation == "prototypes":
        rounds = 3
        private = defence in EPSILONS
        algorithm = pf.ReBaFL(
            weighting="uniform",
            n_min=MINIMUM if defence == "minimum count" else 1,
            per_sample=private,
            proto_source="global_only" if private else "paper",
            feature_norm=10.0 if private else float("inf"),
        )
    task = task_of(options, size)
    run = pf.simulate(
        task,
        algorithm,
        rounds=rounds,
        training=pf.LocalTraining(**training),
        privacy=protection(federation, defence, training["batch_size"], size),
        seed=options.seed,
        evaluate_every=rounds,
        record=True,
    )
    return task, run


def records(task: pf.Task, rows: torch.Tensor) -> attacks.Records:
    """Training examples of the task."""
    return attacks.Records(task.inputs[rows], task.targets[rows])


def tried(
    options: argparse.Namespace, federation: str, task: pf.Task, defence: str
) -> dict[str, list[Callable[[Any], Any]]]:
    """The attacks on a federation by name: one call for each attacked client, from the transcript to a result.

    Images are asked of every method that reads so many of them: ``wiener`` one, ``spear`` batches without noise.
    """
    secure = defence == "secure sum"
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(options.seed))
    chosen = order[: options.public], order[options.public : options.public + 2000]
    public, others = (attacks.Records(task.test_inputs[rows], task.test_targets[rows]) for rows in chosen)
    clients = list(range(options.attacked))

    def ask(attack: Any, rows: torch.Tensor) -> Callable[[Any], Any]:
        """A membership attack on the records ``rows``."""
        game = attacks.membership_game(records(task, rows), others, torch.Generator().manual_seed(0), public)
        return lambda seen: attack.run(seen, game)

    def look(attack: Any, **truth: torch.Tensor) -> Callable[[Any], Any]:
        """An attack that needs public data only."""
        return lambda seen: attack.run(seen, attacks.Auxiliary(public=public, truth=truth))

    held = [task.clients[client] for client in range(len(task.clients))]
    counts = torch.stack([torch.bincount(task.targets[rows], minlength=task.classes) for rows in held])
    if federation == "one image":
        pixels = Pixels.of(task.name)
        groups = [(None, torch.cat(held))] if secure else [(client, held[client]) for client in clients]
        given: dict[str, dict[str, Any]] = {"gradient-inversion": {"iterations": options.iterations}}
        if defence not in EPSILONS:
            given["gradient-inversion, spear"] = {"method": "spear"}
        if all(len(rows) == 1 for _, rows in groups):
            given["gradient-inversion, wiener"] = {"method": "wiener"}
        calls = {
            name: [
                look(
                    attacks.GradientInversion(client=client, batch=len(rows), **settings),
                    images=pixels.images(task.inputs[rows]),
                )
                for client, rows in groups
            ]
            for name, settings in given.items()
        }
        return calls | {"label-counts": [look(attacks.LabelCounts(), counts=counts)]}
    named = [(None if secure else client, held[client]) for client in clients]
    if federation == "prototypes":
        return {
            "prototype-tracing": [ask(attacks.PrototypeTracing(client=client), rows) for client, rows in named],
            "disclosed-counts": [look(attacks.DisclosedCounts(), counts=counts)],
        }
    shadows = ShadowTraining(count=options.shadows, epochs=options.shadow_epochs, batch_size=20)
    everybody = torch.cat(held)
    return {
        "loss-threshold": [ask(attacks.LossThreshold(), everybody)],
        "lira": [ask(attacks.LiRA(shadows=shadows), everybody)],
        "gradient-alignment": [ask(attacks.GradientAlignment(client=client), rows) for client, rows in named],
        "loss-drop": [ask(attacks.LossDrop(client=client), rows) for client, rows in named],
    }


def cell_of(options: argparse.Namespace, federation: str, defence: str) -> dict[str, Any]:
    """One run and its attacks: ε of the statement, and for every attack what it reached and gained."""
    task, run = watched(options, federation, defence)
    sample = {observer: run.statement.cell("sample", observer).epsilon for observer in ("server", "public")}
    found: dict[str, Any] = {
        "federation": federation,
        "defence": defence,
        "accuracy": run.summary["test_accuracy"],
        "epsilon": {observer: None if value == float("inf") else value for observer, value in sample.items()},
        "delta": run.statement.delta,
        "attacks": {},
    }
    for name, calls in tried(options, federation, task, defence).items():
        results = []
        for call in calls:
            try:
                results.append(call(run.transcript))
            except pf.ConfigError as error:  # what is not sent cannot be attacked, and that is the finding
                found["attacks"].setdefault(name, {"refused": str(error)})
        if results:
            observer = attacks.ATTACKS[name.partition(",")[0]].observer
            found["attacks"][name] = _summary(results, observer, sample, run.statement.delta)
    return found


def _summary(results: list[Any], observer: str, epsilon: Mapping[str, float], delta: float) -> dict[str, Any]:
    measure = results[0].primary
    gains = [result.advantage[measure].value for result in results]
    row = {
        "measure": measure,
        "reached": statistics.mean(result.metrics[measure].value for result in results),
        "advantage": statistics.mean(gains),
        "deviation": statistics.stdev(gains) if len(gains) > 1 else None,
        "results": [_short(result) for result in results],
        "seconds_per_unit": statistics.mean(result.seconds_per_unit for result in results),
        "unit": results[0].unit,
    }
    if measure == "auc":
        row["ceiling"] = auc_ceiling(epsilon[observer], delta)
    return row


def _short(result: Any) -> dict[str, Any]:
    """The measures of a result, its nulls and its advantage, to five decimal places."""
    told = {name: result.to_json()[name] for name in ("metrics", "nulls", "advantage")}
    short: dict[str, Any] = json.loads(json.dumps(told), parse_float=lambda text: round(float(text), 5))
    return short


def table(cells: Mapping[str, Any]) -> str:
    """Advantages as a Markdown table: attacks in rows, defences in columns."""
    lines = ["| attack (measure) | none reaches | " + " | ".join(DEFENCES) + " |", "|---" * (len(DEFENCES) + 2) + "|"]
    names = [(federation, name) for federation in APPLY for name in cells[f"{federation}/none"]["attacks"]]
    for federation, name in names:
        bare = cells[f"{federation}/none"]["attacks"][name]
        texts = [_text(cells.get(f"{federation}/{defence}", {}).get("attacks", {}).get(name)) for defence in DEFENCES]
        lines.append(f"| {name} ({bare['measure'].replace('_', ' ')}) | {bare['reached']:.3g} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _text(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    if "refused" in row:
        return "nothing sent"
    ends, digits = interval(row), 1 if row["measure"] == "psnr" else 2
    text = f"{row['advantage']:+.{digits}f}"
    if ends is not None:
        text += f" [{ends[0]:+.{digits}f}, {ends[1]:+.{digits}f}]"
    return text.replace("-", "−")


def interval(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Ends of a 95 % interval of a cell's advantage, ``None`` where one result has none of its own.

    Over several clients it is Student's; of one message it reaches from the attack's worst end against the null's best
    to the reverse.
    """
    results, measure = row["results"], row["measure"]
    if len(results) > 1:
        half = float(stats.t.ppf(0.975, len(results) - 1)) * row["deviation"] / len(results) ** 0.5
        return row["advantage"] - half, row["advantage"] + half
    reached = results[0]["metrics"][measure]
    best = max((null[measure] for null in results[0]["nulls"].values()), key=lambda one: float(one["value"]))
    if reached["low"] is None or best["low"] is None:
        return None
    return reached["low"] - best["high"], reached["high"] - best["low"]


def main() -> None:
    """Run all cells that are missing; write ``results.json`` and ``table.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--size", type=int, default=40, help="examples of a client")
    parser.add_argument("--attacked", type=int, default=10, help="clients that are attacked one by one")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=100, help="hidden units")
    parser.add_argument("--images", type=int, default=8, help="of a client of the larger batch")
    parser.add_argument("--public", type=int, default=1000, help="held-out examples that the attacker owns")
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--shadow-epochs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=600, help="of a gradient inversion")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="digits, 4 clients, 2 rounds")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.clients, options.size, options.attacked, options.rounds = "digits", 4, 30, 2, 2
        options.width, options.images, options.public, options.shadows, options.shadow_epochs = 32, 3, 200, 4, 2
        options.iterations = 8
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"settings": settings, "cells": {}}
    if stored["settings"] != settings:
        raise pf.ConfigError(f"{path} holds results of other settings; give another --out")
    for federation, defences in APPLY.items():
        for defence in defences:
            key = f"{federation}/{defence}"
            if key in stored["cells"]:
                continue
            began = time.perf_counter()
            stored["cells"][key] = cell_of(options, federation, defence)
            path.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            gains = {name: _text(row) for name, row in stored["cells"][key]["attacks"].items()}
            print(f"{key}: {gains}  ({time.perf_counter() - began:.0f} s)", flush=True)
    (options.out / "table.md").write_text(table(stored["cells"]) + "\n", encoding="utf-8")
    print(table(stored["cells"]))


if __name__ == "__main__":
    main()
