"""What several papers do to a data set before it is divided, and how its clients come by tests of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import privfl as pf
from privfl.data.label_noise import LabelNoise
from privfl.data.partitions.base import Partition
from privfl.errors import DataError
from privfl.federation.client_index import ClientIndex
from privfl.models import build

HELD_BACK = 0.2
"""Share of the training rows that judge a setting while it is chosen."""


def tensors(data: pf.Dataset) -> tuple[Tensor, Tensor]:
    """Training and test inputs.

    Raises:
        DataError: they are not in memory.
    """
    if not (isinstance(data.inputs, Tensor) and isinstance(data.test_inputs, Tensor)):
        raise DataError(f"{data.name}: its rows are read from a file one by one; load them whole")
    return data.inputs, data.test_inputs


def changed(data: pf.Dataset, change: Callable[[Tensor], Tensor]) -> pf.Dataset:
    """``data`` with ``change`` done to all inputs."""
    inputs, test = tensors(data)
    return replace(data, inputs=change(inputs), test_inputs=change(test))


def whole(data: pf.Dataset) -> pf.Dataset:
    """``data`` with its test rows among the training rows, for papers whose clients divide their own rows anew."""
    inputs = torch.cat(tensors(data))
    clients = None
    if data.clients is not None and data.test_clients is not None:
        clients = torch.cat([data.clients, data.test_clients])
    return replace(
        data,
        inputs=inputs,
        targets=torch.cat([data.targets, data.test_targets]),
        clients=clients,
        test_inputs=inputs[:1],  # not looked at: the union of the clients' tests takes its place
        test_targets=data.targets[:1],
        test_clients=None,
    )


def rows_of(data: pf.Dataset, train: NDArray[np.int64], test: NDArray[np.int64]) -> pf.Dataset:
    """The training rows ``train`` and the test rows ``test`` of ``data``; clients without training rows are gone."""
    inputs, test_inputs = tensors(data)
    kept, tested = torch.from_numpy(train), torch.from_numpy(test)
    clients = test_clients = names = None
    if data.clients is not None:
        numbers, clients = torch.unique(data.clients[kept], return_inverse=True)
        if data.client_names is not None:
            names = tuple(data.client_names[number] for number in numbers.tolist())
        if data.test_clients is not None:
            tested = tested[torch.isin(data.test_clients[tested], numbers)]
            test_clients = torch.searchsorted(numbers, data.test_clients[tested])
            if not len(tested):
                tested, test_clients = torch.arange(1), None
    return replace(
        data,
        inputs=inputs[kept],
        targets=data.targets[kept],
        clients=clients,
        client_names=names,
        test_inputs=test_inputs[tested],
        test_targets=data.test_targets[tested],
        test_clients=test_clients,
    )


def shrunk(data: pf.Dataset, clients: int | None, rows: int | None) -> pf.Dataset:
    """``data`` with the first ``clients`` of its own clients, and at most ``rows`` of their rows and of the test's."""
    parts = []
    for targets, owners in ((data.targets, data.clients), (data.test_targets, data.test_clients)):
        order = np.random.default_rng(0).permutation(len(targets))
        if clients is not None and owners is not None:
            order = order[owners.numpy()[order] < clients]
        parts.append(np.sort(order[:rows]))
    return data if clients is None and rows is None else rows_of(data, *parts)


def held_back(data: pf.Dataset, seed: int) -> pf.Dataset:
    """The training rows of ``data`` alone, a part of which takes the test's place: settings are chosen on it."""
    order = np.random.default_rng(seed).permutation(len(data.targets))
    cut = max(1, int(HELD_BACK * len(order)))
    inputs, _ = tensors(data)
    judged = replace(data, test_inputs=inputs, test_targets=data.targets, test_clients=data.clients)
    return rows_of(judged, np.sort(order[cut:]), np.sort(order[:cut]))


def with_own_tests(task: pf.Task, data: pf.Dataset) -> pf.Task:
    """``task`` with the test rows of ``data`` as its clients' own tests, as LEAF has divided them."""
    if data.test_clients is None:
        raise DataError(f"{data.name}: nobody owns its test rows, so clients cannot be tested on theirs")
    before, owners = len(task.targets), data.test_clients.numpy()
    parts = [before + np.flatnonzero(owners == client) for client in range(len(task.clients))]
    return replace(
        task,
        inputs=torch.cat([*tensors(data)]),
        targets=torch.cat([task.targets, data.test_targets]),
        local_tests=ClientIndex.allowing_empty(parts),
    )


def divided(
    partition: Callable[[int], Partition] | None,
    model: str,
    *,
    tests: pf.LocalTests | None = None,
    noise: LabelNoise | None = None,
    **options: Any,
) -> Callable[[pf.Dataset, int, int], pf.Task]:
    """What divides a data set by ``partition`` of a number of clients, for ``model`` with ``options``."""

    def divide(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        task = pf.Task.from_dataset(
            data,
            partition=None if partition is None else partition(clients),
            model=model,
            model_options=options,
            label_noise=noise,
            seed=seed,
        )
        return task if tests is None else task.with_local_tests(tests, seed)

    return divide


def network(name: str, data: pf.Dataset, **options: Any) -> torch.nn.Module:
    """The model ``name`` for ``data``, of PyTorch's own generator."""
    return build(name, tuple(data.inputs.shape[1:]), data.classes, vocabulary=data.vocabulary, **options)
