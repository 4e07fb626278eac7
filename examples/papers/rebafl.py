"""ReBaFL against FedAvg and its own parts under drop-out: Table I and Figure 3 of arXiv 2303.06314 on Fashion-MNIST.

    PRIVFL_DATA=… python examples/papers/rebafl.py --out results/rebafl
    python examples/papers/rebafl.py --out results/small --small       # digits, under a minute
    PRIVFL_DATA=… python examples/papers/rebafl.py --full --plan     # the paper's tables: docs/results/full.md

Every client holds two classes and 1,000 images; in a round each client answers with probability p. Within a pair of
(clients, p, seed) all methods meet the same partition, initial model and drop-outs. What is done is written to
``results.json`` at once, and an interrupted study goes on where it stopped: call the command again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any

import full
import numpy as np
import torch

import privfl as pf
from privfl.federation.client_index import ClientIndex
from privfl.randomness import numpy_stream

METHODS: dict[str, Any] = {
    "FedAvg": pf.FedAvg(),
    "BSM-FedAvg": pf.BalancedFedAvg(),
    "R-BSM only": pf.ReBaFL(mu=0.0),
    "F-Aug only": pf.ReBaFL(epsilon=1.0),
    "ReBaFL": pf.ReBaFL(),
}
RIVALS: dict[str, Any] = {
    "FedProx": pf.FedProx(mu=0.001),
    "SCAFFOLD": pf.Scaffold(weighting="size"),
    "FedDyn": pf.FedDyn(alpha=1e-4),
    "MOON": pf.MOON(),
    "FedRS": pf.FedRS(),
    "FedLC": pf.FedLC(),
    "FedBABU": pf.FedBABU(finetune_epochs=0),
}
"""The other rows of Table I, with the settings of the paper's code; FedBABU is judged by its shared model there."""
EVERY = METHODS | RIVALS
AS_CODED: dict[str, Any] = {"FedDyn clipped": pf.FedDyn(alpha=1e-4, max_gradient_norm=10.0)}
"""Rivals with what only their authors' code does; no row of Table I, so they are run where ``--group`` names them."""
TUNED = "FedAvg-FT"
"""The rival of §3.3, whose server tunes the head on images of its own; no row of Table I either."""
OWN_IMAGES = 30
"""Images of every class that this server has."""
TRAINING = pf.LocalTraining(learning_rate=0.01, batch_size=50, epochs=5, momentum=0.5, weight_decay=5e-4)
TAIL = 10
"""Rounds at the end of a curve over which accuracy is averaged."""


@dataclass(frozen=True)
class Group:
    """Methods that are compared with the same clients, drop-outs and number of rounds."""

    clients: int
    probability: float
    rounds: int
    methods: tuple[str, ...]

    @property
    def key(self) -> tuple[int, float]:
        return self.clients, self.probability


PAIR = ("FedAvg", "ReBaFL")
FULL = (
    Group(20, 0.5, 200, tuple(METHODS)),
    Group(50, 0.5, 200, tuple(METHODS)),
    Group(50, 0.1, 200, PAIR),
    Group(50, 0.3, 200, PAIR),
)


def groups(options: argparse.Namespace) -> tuple[Group, ...]:
    """What is run: what ``--group`` names, or what these pages show."""
    if not options.group:
        return FULL
    found = []
    for text in options.group:
        clients, probability, rounds, methods = text.split(":")
        names = tuple(METHODS) if methods == "all" else tuple(methods.split(","))
        found.append(Group(int(clients), float(probability), int(rounds), names))
    return tuple(found)


class Paused(Exception):
    """A curve has come as far as it should for now."""


def with_images_of_the_server(task: pf.Task, file: Path, seed: int) -> pf.Task:
    """``task`` without some training images of every class, which are written to the server's ``file``.

    Classes, drop-outs, initial model and nearly all images of a client are those that the other methods meet; where the
    dataset is divided after images were set aside, as :mod:`rebafl_tuned_head` does for all its methods, they are not.
    """
    labels, stream = task.targets.numpy(), numpy_stream(seed, "set-aside")
    drawn = [stream.choice(np.flatnonzero(labels == one), OWN_IMAGES, replace=False) for one in range(task.classes)]
    own = np.sort(np.concatenate(drawn))
    np.savez_compressed(file, images=task.inputs[torch.from_numpy(own)].numpy(), labels=labels[own])
    held = (task.clients[client].numpy() for client in range(len(task.clients)))
    return replace(task, clients=ClientIndex.of([rows[~np.isin(rows, own)] for rows in held]), report=None)


def advance(group: Group, method: str, seed: int, until: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run up to round ``until``, from where it stands; its test accuracy after every round so far."""
    folder = options.out / "runs" / f"{group.clients}-{group.probability}-{method.replace(' ', '-')}-{seed}"
    partition = pf.Pathological(group.clients, classes_per_client=2, samples_per_client=options.samples)
    task = pf.load(options.dataset, partition=partition, model=options.model, seed=seed)
    file = options.out / f"server-{group.clients}-{seed}.npz"
    if method == TUNED:
        task, algorithm = with_images_of_the_server(task, file, seed), pf.algorithms.FedAvgFT(images=str(file))
    else:
        algorithm = (EVERY | AS_CODED)[method]

    def pause(simulation: Any, line: dict[str, Any]) -> None:
        if until <= line["round"] + 1 < group.rounds:
            raise Paused

    with suppress(Paused):
        pf.simulate(
            task,
            algorithm,
            rounds=group.rounds,
            training=TRAINING,
            availability=pf.Bernoulli(group.probability),
            seed=seed,
            execution=pf.Execution(engine="loop", workers=1, checkpoint_seconds=0.0),
            out=folder,
            resume=folder.exists(),
            callbacks=[pause],
        )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "clients": group.clients,
        "probability": group.probability,
        "method": method,
        "seed": seed,
        "accuracy": [line["test_accuracy"] for line in lines],
        "answered": [line["clients"] for line in lines],
        "known_prototypes": [line["known_prototypes"] for line in lines if "known_prototypes" in line],
    }


def figures_of(accuracy: list[float]) -> dict[str, float]:
    """What is reported of one curve, in percent.

    ``last``: mean of the last rounds; ``best``; ``swing``: standard deviation of the change from one round to the next
    in the second half of the run, the measure of stability.
    """
    half = accuracy[len(accuracy) // 2 :]
    changes = [after - before for before, after in pairwise(half)]
    return {
        "last": 100 * statistics.mean(accuracy[-TAIL:]),
        "spread": 100 * statistics.pstdev(accuracy[-TAIL:]),
        "best": 100 * max(accuracy),
        "swing": 100 * statistics.pstdev(changes) if changes else 0.0,
    }


def key(row: dict[str, Any]) -> tuple[int, float, str, int]:
    """What tells one curve from another."""
    return row["clients"], row["probability"], row["method"], row["seed"]


def by_group(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, float], dict[str, list[list[float]]]]]:
    """(clients, p) → method → curves over the seeds, cut to the rounds that all seeds of the method have."""
    for clients, probability in sorted({key(row)[:2] for row in rows}, key=lambda pair: (pair[0], -pair[1])):
        mine = [row for row in rows if key(row)[:2] == (clients, probability)]
        found = {
            name: [row["accuracy"] for row in mine if row["method"] == name] for name in (*EVERY, *AS_CODED, TUNED)
        }
        yield (
            (clients, probability),
            {name: [curve[: min(map(len, curves))] for curve in curves] for name, curves in found.items() if curves},
        )


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """``dropout.png``: accuracy over rounds, one panel for each (clients, p); ``stability.png``: the swings."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    from privfl.study.chart import COLOURS, DASHES

    found = list(by_group(rows))
    if not any(name in METHODS for _, methods in found for name in methods):
        print("no figure: all methods are rivals, which are in the table")
        return
    ordered = ("FedAvg", "ReBaFL", "R-BSM only", "F-Aug only", "BSM-FedAvg")
    colours, dashes = dict(zip(ordered, COLOURS, strict=False)), dict(zip(ordered, cycle(DASHES), strict=False))
    figure = Figure(figsize=(3.3 * len(found) + 0.8, 3.4), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, ((clients, probability), methods) in zip(panels, found, strict=True):
        for name, curves in methods.items():
            if name not in colours:  # the rivals are in the table: thirteen lines cannot be told apart
                continue
            mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
            style = {"color": colours[name], "linestyle": dashes[name], "linewidth": 1.6}
            axes.plot(range(1, len(mean) + 1), mean, label=name, **style)
            if len(curves) > 1:
                low, high = ([bound(values) for values in zip(*curves, strict=True)] for bound in (min, max))
                axes.fill_between(range(1, len(mean) + 1), low, high, color=colours[name], alpha=0.15, linewidth=0)
        axes.set_title(f"{clients} clients, p = {probability}", fontsize=10)
        axes.set_xlabel("round")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    panels[0].set_ylabel("test accuracy")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.savefig(out / "dropout.png", dpi=150)

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    names = [name for name in METHODS if any(name in methods for _, methods in found)]
    width, labelled = 0.8 / len(names), set()
    hatches = dict(zip(ordered, ("", "//", "..", "xx", "--"), strict=True))
    for place, (_, methods) in enumerate(found):
        for number, (name, curves) in enumerate((one, two) for one, two in methods.items() if one in colours):
            at = place + (number - (len(names) - 1) / 2) * width
            height = statistics.mean(figures_of(accuracy)["swing"] for accuracy in curves)
            label = None if name in labelled else name
            axes.bar(at, height, width * 0.9, color=colours[name], hatch=hatches[name], edgecolor="white", label=label)
            labelled.add(name)
    axes.set_xticks(range(len(found)), [f"{clients} clients\np = {p}" for (clients, p), _ in found])
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.set_ylabel("change from round to round\n(standard deviation, points)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out / "stability.png", dpi=150)


def main() -> None:
    """Run what is missing, then print the table and draw the figures."""
    if full.asked():
        full.run("rebafl")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, figures and run directories")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--model", default="rebafl-fmnist")
    parser.add_argument("--samples", type=int, default=1000, help="samples of a client")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--group",
        action="append",
        metavar="M:P:ROUNDS:METHODS",
        help="instead of everything: clients, probability, rounds, and methods by comma or 'all'; may be repeated",
    )
    parser.add_argument("--full", action="store_true", help="the paper's tables; see --full --help")
    parser.add_argument("--turns", type=int, default=1, help="all curves advance by this part of their rounds in turn")
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: under a minute")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.model, options.samples, options.seeds = "digits", "two-nn", 100, 1
        options.group = ["10:0.5:6:all", "10:0.2:6:FedAvg,ReBaFL"]
        options.turns = 2
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    for turn, seed in product(range(1, options.turns + 1), range(options.seeds)):
        for group in groups(options):
            until = math.ceil(group.rounds * turn / options.turns)
            for method in group.methods:
                place = next((i for i, row in enumerate(rows) if key(row) == (*group.key, method, seed)), len(rows))
                if place < len(rows) and len(rows[place]["accuracy"]) >= until:
                    continue
                began = time.process_time()
                row = advance(group, method, seed, until, options)
                before = rows[place]["processor_seconds"] if place < len(rows) else 0.0
                row["processor_seconds"] = round(before + time.process_time() - began, 1)
                rows[place : place + 1] = [row]
                settings = {name: value for name, value in vars(options).items() if name not in ("out", "group")}
                store.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")
                print(group.key, method, f"seed {seed}, round {until}:", figures_of(row["accuracy"]), flush=True)
    for (clients, probability), methods in by_group(rows):
        print(f"\n{clients} clients, p = {probability}: last {TAIL} rounds, best, change from round to round (%)")
        for name, curves in methods.items():
            found = [figures_of(accuracy) for accuracy in curves]
            last, best, swing = (statistics.mean(one[part] for one in found) for part in ("last", "best", "swing"))
            print(f"  {name:12} {last:6.2f} {best:6.2f} {swing:6.2f}   ({len(curves)} seeds, {len(curves[0])} rounds)")
    draw(rows, options.out)


if __name__ == "__main__":
    main()
