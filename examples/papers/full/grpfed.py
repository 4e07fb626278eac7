"""GRP-FED (Chou et al., arXiv 2108.13858): Table 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import privfl as pf
from full.data import rows_of, whole
from full.table import Column, Method, Table
from privfl.metrics.personalisation import personalisation
from privfl.models import Network
from privfl.models.residual import resnet1d, resnet32
from privfl.simulation.callbacks import Simulation

HIDDEN = 128
"""Units of the classifier's hidden layer."""
RARE = ("S", "e", "Q")
"""Beats that leave twelve kinds of the fifteen: those with fewer than 83."""
METHODS = {
    "Local": Method(pf.Local()),
    "FedAvg": Method(pf.FedAvg(weighting="uniform")),
    "AFL": Method(pf.AFL()),
    "q-FFL": Method(pf.QFedAvg()),
    "per-FedAvg": Method(pf.PerFedAvg(weighting="uniform")),
    "pFedMe": Method(pf.PFedMe(weighting="uniform")),
    "LG-FedAvg": Method(pf.LGFedAvg(weighting="uniform")),
    "GRP-FED": Method(pf.GRPFed()),
}
ASSUMED = (
    "100 rounds, a fifth of the clients in each, three seeds, a classifier of 128 hidden units",
    "a stratified fifth of every client's rows is its test, and all of them together the global one",
    "settings of the rivals besides rate, batch and epochs: this project's defaults",
)


def headed(body: nn.Module, features: int, classes: int) -> Network:
    """``body`` and the shared classifier of two layers."""
    head = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    return Network(body, head, features)


def heartbeat_net() -> Network:
    """A 1-D ResNet of five convolutions."""
    return headed(resnet1d((1, 140), 12).body, 64, 12)


def picture_net() -> Network:
    """ResNet-32: there is no ResNet of 30 layers."""
    return headed(resnet32((3, 32, 32), 10).body, 64, 10)


def heartbeats() -> pf.Dataset:
    """All beats of twelve kinds of the 47 patients."""
    data = whole(pf.load_dataset("mitbih", classes="symbols"))
    assert data.class_names is not None
    kept = [number for number, name in enumerate(data.class_names) if name not in RARE]
    new = torch.full((len(data.class_names),), -1)
    new[kept] = torch.arange(len(kept))
    rows = np.flatnonzero((new[data.targets] >= 0).numpy())
    found = rows_of(data, rows, np.arange(1))
    return replace(
        found,
        targets=new[found.targets],
        test_targets=new[found.test_targets].clamp(0),
        classes=len(kept),
        class_names=tuple(data.class_names[number] for number in kept),
    )


def federation(
    model: Callable[[], nn.Module], partition: Callable[[int], pf.LongTail] | None
) -> Callable[[pf.Dataset, int, int], pf.Task]:
    """Clients that hold a fifth of their rows back, the union of which is the global test."""

    def divide(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        dealt = None if partition is None else partition(clients)
        task = pf.Task.from_dataset(data, partition=dealt, model=model, seed=seed)
        return task.with_local_tests(pf.LocalTests(0.2, global_test="union"), seed)

    return divide


def judge(simulation: Simulation) -> dict[str, float]:
    """T_g, T_l, T_p and T_r: macro-F1 between 0 and 1."""
    algorithm, server, task = simulation.algorithm, simulation.server, simulation.task
    assert task.local_tests is not None
    shared, logits = server["parameters"], simulation.engine.logits
    of_shared = logits(shared, task.test_inputs)
    own, everywhere = [], []
    total = torch.zeros_like(of_shared)
    for client in np.flatnonzero(task.local_tests.sizes).tolist():
        state = {**algorithm.initial_client_state(client), **simulation.client_state.get(client, {})}
        models = list(algorithm.personal(server, state).values())
        model: Tensor = models[0] if models else shared
        rows = task.local_tests[client]
        own.append((logits(model, task.inputs[rows]).argmax(1), task.targets[rows]))
        found = logits(model, task.test_inputs) if models else of_shared
        total += found.softmax(1)
        everywhere.append(found.argmax(1))
    return personalisation(own, everywhere, task.test_targets, total if algorithm.ensemble else of_shared)


COLUMN = Column(
    name="Table 1, MIT-BIH",
    data=heartbeats,
    divide=federation(heartbeat_net, None),
    rounds=100,
    training=pf.LocalTraining(learning_rate=5e-3, momentum=0.9, batch_size=64, epochs=5),
    methods=METHODS,
    judge=judge,
    measures={"T_g": 3, "T_l": 3, "T_p": 3, "T_r": 3},
    ours="GRP-FED",
    given={"cohort": pf.FixedCohort(9)},
    assumed=(*ASSUMED, "47 patients, the paper counts 46; which 12 kinds of beats is not said"),
)
TABLE = Table(
    "GRP-FED, Table 1",
    (
        COLUMN,
        replace(
            COLUMN,
            name="Table 1, CIFAR-10",
            data=partial(pf.load_dataset, "cifar10"),
            divide=federation(picture_net, partial(pf.LongTail, rho=0.7, tau=0.5)),
            clients=50,
            given={"cohort": pf.FixedCohort(10)},
            assumed=(*ASSUMED, "ResNet-32 for ResNet-30; sizes fall by a power law, class shares geometrically"),
        ),
    ),
)
