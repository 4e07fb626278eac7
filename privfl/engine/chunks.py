"""How a cohort is divided into stacks of clients, and how a stack's tensors come together and change places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.devices import to_device

Item = TypeVar("Item")


def chunks_of(ordered: list[Item], chunk: int, workers: int) -> list[list[Item]]:
    """At most ``chunk`` clients each; if one chunk for each of the ``workers`` is enough, all get as much work."""
    if len(ordered) <= chunk * workers:
        return [part for first in range(workers) if (part := ordered[first::workers])]
    return [ordered[first : first + chunk] for first in range(0, len(ordered), chunk)]


def reorder(local: Tensors, order: Sequence[int]) -> None:
    """Put the clients of every tensor of ``local`` [clients, ...] in ``order``, in place of the dictionary."""
    if list(order) != list(range(len(order))):
        for name, value in local.items():
            local[name] = value[to_device(torch.tensor(order), value.device)]


def stacked(values: Sequence[Tensor]) -> Tensor:
    """[clients, ...] copies of ``values``; one tensor that all clients begin with is copied once for each."""
    first = values[0]
    if all(value is first for value in values):
        return first.expand(len(values), *first.shape).clone()
    return torch.stack(list(values))
