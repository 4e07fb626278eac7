"""What a head tuned on a few balanced images does to FedAvg under drop-out: Figure 1 of ReBaFL, arXiv 2303.06314.

    PRIVFL_DATA=… python examples/papers/rebafl_tuned_head.py --out results/rebafl-tuned-head
    python examples/papers/rebafl_tuned_head.py --out results/small --small       # digits, under a minute

50 clients of two classes, each of whom answers with probability 0.2. Before the data is divided, the server takes 30
training images of every class, with which FedAvg-FT tunes the head of the mean model after every round (the paper's
code takes them from the test images). No method has them at its clients, so within a seed all meet the same partition,
initial model and drop-outs; one more row is FedAvg with every client in every round. Every finished run is a file of
its own in ``runs``, an interrupted one goes on where it stopped, and seeds can be added later.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from rebafl import EVERY, figures_of
from rebafl_cifar import TRAINING, curve

import privfl as pf
from privfl.data.catalog import load_dataset
from privfl.data.set_aside import set_aside

ALL_ANSWER = "FedAvg, all answer"
METHODS = ("FedAvg", "BSM-FedAvg", "FedAvg-FT", "ReBaFL", ALL_ANSWER)


def trained(method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run: its test accuracy after every round and how many clients answered in it."""
    images = options.out / f"server-{seed}.npz"
    rest = set_aside(load_dataset(options.dataset, seed=seed), images, per_class=options.per_class, seed=seed)
    partition = pf.Pathological(options.clients, classes_per_client=2, samples_per_client=options.samples)
    tuned = pf.algorithms.FedAvgFT(images=str(images))
    algorithm = tuned if method == "FedAvg-FT" else pf.FedAvg() if method == ALL_ANSWER else EVERY[method]
    task = pf.Task.from_dataset(rest, partition=partition, model=options.model, seed=seed)
    availability = pf.Bernoulli(1.0 if method == ALL_ANSWER else options.probability)
    found = curve(task, algorithm, place(method, seed, options), seed, options.rounds, TRAINING, availability)
    return {"method": method, "seed": seed, "rounds": options.rounds, **found}


def place(method: str, seed: int, options: argparse.Namespace) -> Path:
    """The run's folder; its result is the file beside it, with ``.json`` at the end."""
    folder: Path = options.out / "runs" / f"{method}-{seed}".replace(",", "").replace(" ", "-")
    return folder


def results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every finished run in the folder, by method and seed."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in (options.out / "runs").glob("*.json")]
    return sorted(found, key=lambda row: (METHODS.index(row["method"]), row["seed"]))


def main() -> None:
    """Run what is missing, all methods of a seed before the next seed, then print the means and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and run directories")
    parser.add_argument("--method", action="append", choices=METHODS, help="a method; may be repeated")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="rebafl-cifar")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--probability", type=float, default=0.2, help="that a client answers in a round")
    parser.add_argument("--samples", type=int, default=250, help="samples of a client where the paper has 1,000")
    parser.add_argument("--per-class", type=int, default=30, help="images of every class that the server has")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, two rounds: under a minute")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.model, options.clients, options.samples = "digits", "two-nn", 10, 60
        options.per_class, options.rounds, options.seeds = 3, 2, 1
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    for seed, method in product(range(options.seeds), METHODS):
        file = place(method, seed, options).with_suffix(".json")
        if (options.method and method not in options.method) or file.exists():
            continue
        row = trained(method, seed, options)
        file.write_text(json.dumps(row) + "\n", encoding="utf-8")
        last, swing = (round(figures_of(row["accuracy"])[figure], 2) for figure in ("last", "swing"))
        print(f"seed {seed}, {method}: last {last}, change {swing}", flush=True)
    rows = results(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "method")}
    text = ",\n".join(json.dumps(row) for row in rows)
    store = f'{{"settings": {json.dumps(settings)},\n"rows": [\n{text}\n]}}\n'
    (options.out / "results.json").write_text(store, encoding="utf-8")
    print("\nmean accuracy of the last rounds (%), change from round to round (points), seeds")
    for method in METHODS:
        found = [figures_of(row["accuracy"]) for row in rows if row["method"] == method]
        if found:
            last, swing = (statistics.mean(one[figure] for one in found) for figure in ("last", "swing"))
            print(f"  {method:20} {last:6.2f} {swing:6.2f}   ({len(found)})")


if __name__ == "__main__":
    main()
