"""A federation whose clients hold few classes each, and its rounds in plain PyTorch for any loss of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import privfl as pf
from privfl.data.catalog import load_dataset
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.loss import coupled
from privfl.randomness import torch_stream
from tests.algorithms.federation import layered_task

HELD = ((0, 1), (2, 3, 8), (1, 4), (9,), (5, 6, 7, 0))
"""Classes that each client holds; client 3 has a single one."""
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=8, epochs=2, momentum=0.5, weight_decay=0.01)
HALF = pf.Bernoulli(0.5)
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``objective(logits [B, C], targets [B], counts [C])``: the mean loss of a batch of a client with these labels."""


def skewed_task() -> Task:
    """Real digits in float64 and a small network; clients of 14 to 26 samples of their classes."""
    data = load_dataset("digits")
    rng, parts = np.random.default_rng(1), []
    for client, classes in enumerate(HELD):
        mine = np.flatnonzero(np.isin(data.targets.numpy(), classes))
        parts.append(rng.permutation(mine)[: 14 + 3 * client])
    rows, bounds = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    index = ClientIndex.of([np.arange(low, high) for low, high in pairwise(bounds)])
    inputs = data.inputs.flatten(1).double()[rows]
    return replace(layered_task((50,)), inputs=inputs, targets=data.targets[rows], clients=index)


def run(task, algorithm, rounds=3, **options):
    """The run of ``algorithm``, with clients that come and go."""
    options = {
        "training": TRAINING,
        "availability": HALF,
        "execution": pf.Execution(workers=1, engine="loop"),
        **options,
    }
    return pf.simulate(task, algorithm, rounds=rounds, **options)


def counts_of(task: Task, client: int) -> Tensor:
    """How many samples of each class ``client`` holds, float64 [C]."""
    return torch.bincount(task.targets[task.clients[client]], minlength=task.classes).double()


def twin(task: Task, objective: Objective, rounds: int = 3, seed: int = 0) -> Tensor:
    """What :func:`run` ends with, by torch.optim on ``objective`` and means weighted by size."""
    model = task.model(seed)
    start = flatten(model)
    for number in range(rounds):
        moved, seen = torch.zeros_like(start), 0
        for client in HALF.active(number, len(task.clients), seed).tolist():
            rows, counts = task.clients[client], counts_of(task, client)
            nn.utils.vector_to_parameters(start.clone(), model.parameters())
            optimizer = torch.optim.SGD(
                model.parameters(), TRAINING.learning_rate, TRAINING.momentum, weight_decay=TRAINING.weight_decay
            )
            order = torch_stream(seed, "batches", number, client)
            for _ in range(TRAINING.epochs):
                shuffled = rows[torch.randperm(len(rows), generator=order)]
                for batch in shuffled.split(TRAINING.batch_size):
                    optimizer.zero_grad()
                    objective(model(task.inputs[batch]), task.targets[batch], counts).backward()
                    optimizer.step()
            moved += len(rows) * (flatten(model) - start)
            seen += len(rows)
        start = start + moved / seen
    return start


def permuted(task: Task) -> Task:
    """The same clients in another order."""
    return replace(task, clients=ClientIndex.of([task.clients[client].numpy() for client in (4, 2, 0, 3, 1)]))


@coupled
def of_equal_classes(network, inputs, targets, present):
    """Cross-entropy over the number of rows of the same class that are there, which couples the rows of a batch."""
    same = (targets[:, None] == targets) & present
    return F.cross_entropy(network(inputs), targets, reduction="none") / same.sum(1).clamp_min(1)
