"""ReBaFL's experiments on CIFAR-10, smaller: Tables I to III and Figures 9 and 10 of arXiv 2303.06314.

    PRIVFL_DATA=… python examples/papers/rebafl_cifar.py --out results/rebafl-cifar
    python examples/papers/rebafl_cifar.py --out results/small --small       # digits, under a minute

A condition says who holds what, who answers when, and how long clients train; within a condition and a seed all methods
meet the same partition, initial model and drop-outs. Every finished run is a file of its own in ``runs``, an
interrupted one goes on where it stopped, and commands with different ``--only`` may work in one folder at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import rebafl
from rebafl import EVERY, figures_of

import privfl as pf

TRAINING = replace(rebafl.TRAINING, learning_rate=0.02)
PARTS = ("FedAvg", "R-BSM only", "F-Aug only", "ReBaFL")
PAIR = ("FedAvg", "ReBaFL")
LARGE = ("FedAvg", "FedDyn", "FedRS", "BSM-FedAvg", "SCAFFOLD", "ReBaFL")


@dataclass(frozen=True)
class Condition:
    """One federation and the methods that meet it; ``samples`` None stands for what ``--samples`` says."""

    methods: tuple[str, ...]
    availability: pf.Availability
    clustered: bool = False
    epochs: int = 5
    clients: int = 20
    samples: int | None = None


HALF = pf.Bernoulli(0.5)
CONDITIONS: dict[str, Condition] = {
    "two classes": Condition(tuple(EVERY), HALF),
    "clustered": Condition(PARTS, pf.PerCluster((0.5, 0.5, 0.3, 0.3, 0.2)), clustered=True),
    **{f"drop-out for {s} rounds": Condition(PAIR, pf.Persistent(0.5, s)) for s in (2, 5, 10, 20)},
    **{f"{epochs} local epochs": Condition(PAIR, HALF, epochs=epochs) for epochs in (1, 2, 10, 20)},
    "100 clients": Condition(LARGE, pf.FixedFraction(0.1), clients=100, samples=500),
}
"""Tables I and II; Table II, clustered; Figure 10; Figure 9, whose fifth point is *two classes*; Table III."""


def trained(name: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run: its test accuracy after every round and how many clients answered in it."""
    condition = CONDITIONS[name]
    samples = options.samples if options.small or condition.samples is None else condition.samples
    clients = min(condition.clients, options.clients) if options.small else condition.clients
    kind: Any = pf.Clustered(clients, samples_per_client=samples)
    if not condition.clustered:
        kind = pf.Pathological(clients, classes_per_client=2, samples_per_client=samples)
    task = pf.load(options.dataset, partition=kind, model=options.model, seed=seed)
    training, folder = replace(TRAINING, epochs=condition.epochs), place(name, method, seed, options)
    found = curve(task, EVERY[method], folder, seed, options.rounds, training, condition.availability)
    return {"condition": name, "method": method, "seed": seed, "rounds": options.rounds, **found}


def curve(
    task: pf.Task,
    algorithm: pf.Algorithm,
    folder: Path,
    seed: int,
    rounds: int,
    training: pf.LocalTraining,
    availability: pf.Availability,
) -> dict[str, Any]:
    """A run in ``folder``, from where it stands: accuracies on the test, who answered, and what that took."""
    began = time.process_time()
    pf.simulate(
        task,
        algorithm,
        rounds=rounds,
        training=training,
        availability=availability,
        seed=seed,
        execution=pf.Execution(engine="loop", workers=1),
        out=folder,
        resume=folder.exists(),
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "accuracy": [round(line["test_accuracy"], 4) for line in lines],
        "answered": [line["clients"] for line in lines],
        "processor_seconds": round(time.process_time() - began, 1),
    }


def place(name: str, method: str, seed: int, options: argparse.Namespace) -> Path:
    """The run's folder; its result is the file beside it, with ``.json`` at the end."""
    folder: Path = options.out / "runs" / f"{name}-{method}-{seed}".replace(" ", "-")
    return folder


def results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every finished run in the folder, by condition, method and seed."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in (options.out / "runs").glob("*.json")]
    names, methods = list(CONDITIONS), list(EVERY)
    return sorted(found, key=lambda row: (names.index(row["condition"]), methods.index(row["method"]), row["seed"]))


def main() -> None:
    """Run what is missing, all methods of a seed before the next seed, then print the means and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and run directories")
    parser.add_argument("--only", action="append", choices=CONDITIONS, help="a condition; may be repeated")
    parser.add_argument("--method", action="append", choices=EVERY, help="a method; may be repeated")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="rebafl-cifar")
    parser.add_argument("--samples", type=int, default=250, help="samples of a client where the paper has 1,000")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: under a minute")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.model, options.clients, options.samples = "digits", "two-nn", 10, 60
        options.rounds, options.seeds = 2, 1
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    for name in options.only or CONDITIONS:
        for seed, method in product(range(options.seeds), CONDITIONS[name].methods):
            file = place(name, method, seed, options).with_suffix(".json")
            if (options.method and method not in options.method) or file.exists():
                continue
            row = trained(name, method, seed, options)
            file.write_text(json.dumps(row) + "\n", encoding="utf-8")
            last, swing = (round(figures_of(row["accuracy"])[figure], 2) for figure in ("last", "swing"))
            print(f"{name}, seed {seed}, {method}: last {last}, change {swing}", flush=True)
    rows = results(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "only", "method")}
    text = ",\n".join(json.dumps(row) for row in rows)
    store = f'{{"settings": {json.dumps(settings)},\n"rows": [\n{text}\n]}}\n'
    (options.out / "results.json").write_text(store, encoding="utf-8")
    print("\nmean accuracy of the last rounds (%), change from round to round (points), seeds")
    for name, method in product(CONDITIONS, EVERY):
        found = [figures_of(row["accuracy"]) for row in rows if (row["condition"], row["method"]) == (name, method)]
        if found:
            last, swing = (statistics.mean(one[figure] for one in found) for figure in ("last", "swing"))
            print(f"  {name:24} {method:12} {last:6.2f} {swing:6.2f}   ({len(found)})")


if __name__ == "__main__":
    main()
