"""ReBaFL (Xu et al., arXiv 2303.06314): Tables I, II and III."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rebafl import EVERY, TRAINING, figures_of

import privfl as pf
from full.data import divided
from full.table import Column, Method, Table
from privfl.simulation.callbacks import Simulation

ROUNDS = 200
SAMPLES = 1000
"""Of a client, but for Table III, which divides all there are."""
METHODS = {name: Method(algorithm) for name, algorithm in EVERY.items()} | {
    name: Method(replace(EVERY[name], n_min=1)) for name in ("R-BSM only", "F-Aug only", "ReBaFL")
}
"""With the paper's prototypes, which have no least number of examples."""
PARTS = tuple(name for name in EVERY if name in ("FedAvg", "R-BSM only", "F-Aug only", "ReBaFL"))
SCALED = tuple(name for name in EVERY if name not in ("R-BSM only", "F-Aug only", "FedLC"))
"""The rows of Table II and of Table III."""
ASSUMED = (
    "three seeds, the mean of the last ten rounds: the paper prints one number and does not say of which round",
    "momentum 0.5: of the authors' code, not in the text",
)


def judge(simulation: Simulation) -> dict[str, float]:
    """Mean accuracy of the last rounds, the best, and how it swings from round to round, in per cent."""
    return figures_of([line["test_accuracy"] for line in simulation.metrics])


def divide(kind: Any, model: str, samples: int | None) -> Callable[[pf.Dataset, int, int], pf.Task]:
    """What deals ``samples`` to every client, or all that there are; of a small part of the data never more than that
    has of two classes."""

    def dealt(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        rows = len(data.targets)
        each = min(samples or rows // clients, max(5, rows // (2 * data.classes)))
        return divided(partial(kind, samples_per_client=each), model)(data, clients, seed)

    return dealt


COLUMN = Column(
    name="",
    data=partial(pf.load_dataset, "fashion-mnist"),
    divide=divide(pf.Pathological, "rebafl-fmnist", SAMPLES),
    rounds=ROUNDS,
    training=TRAINING,
    methods=METHODS,
    judge=judge,
    measures={"last": 2, "best": 2, "swing": 2},
    ours="ReBaFL",
    given={"availability": pf.Bernoulli(0.5)},
    curve=True,
    assumed=ASSUMED,
)
CIFAR = replace(
    COLUMN,
    data=partial(pf.load_dataset, "cifar10"),
    divide=divide(pf.Pathological, "rebafl-cifar", SAMPLES),
    training=replace(TRAINING, learning_rate=0.02),
)
CLUSTERED = replace(
    CIFAR,
    name="Table II, clustered",
    clients=20,
    divide=divide(pf.Clustered, "rebafl-cifar", SAMPLES),
    methods={name: METHODS[name] for name in PARTS},
    given={"availability": pf.PerCluster((0.5, 0.5, 0.3, 0.3, 0.2))},
)
LARGE = replace(
    CIFAR,
    divide=divide(pf.Pathological, "rebafl-cifar", None),
    methods={name: METHODS[name] for name in SCALED},
    given={"availability": pf.FixedFraction(0.1)},
    assumed=(*ASSUMED, "200 rounds: the number of Table I"),
)
TABLE = Table(
    "ReBaFL, Tables I, II and III",
    (
        *(replace(COLUMN, name=f"Table I, Fashion-MNIST, {clients} clients", clients=clients) for clients in (20, 50)),
        *(replace(CIFAR, name=f"Table I, CIFAR-10, {clients} clients", clients=clients) for clients in (20, 50)),
        CLUSTERED,
        *(replace(LARGE, name=f"Table III, {clients} clients", clients=clients) for clients in (100, 200, 500)),
    ),
)
"""Table II with two classes a client is four rows of Table I's CIFAR-10, 20 clients."""
