"""Streaming aggregation: uploads are added up as they arrive, so memory is that of one model, whatever the cohort.

Only fields that an algorithm needs from ``each`` client are kept apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.workspace import ClientResult
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog


@dataclass
class CohortSums:
    """What arrived from a cohort: sums of the uploads, who sent them with what weight, and why uploads are missing.

    ``weight`` is Σ of the weights of the uploads that arrived; ``aborted``: a secure sum was given up, nothing arrived.
    ``asked`` are the weights of all who were asked, by client. ``zeroed``: why uploads could not be used that count as
    zeros, because noise must hide that they are missing: for whoever runs the simulation, and not for the server.
    """

    total: Tensors = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    weight: float = 0.0
    problems: Counter[str] = field(default_factory=Counter)
    aborted: bool = False
    asked: dict[int, float] = field(default_factory=dict)
    zeroed: Counter[str] = field(default_factory=Counter)


class Aggregator(Protocol):
    """What adds uploads up: in clear (:class:`PlainAggregator`) or so that nobody sees the summands."""

    def add(self, client: int, upload: Tensors, factor: float) -> str:
        """Take one client's upload; why it cannot be used, empty if it can."""

    def close(self, sums: CohortSums) -> None:
        """Write what came together to ``sums``."""


@dataclass
class PlainAggregator:
    """Adds ``fields`` as they are, weighted ones times their client's factor.

    ``wide`` sums are formed in float64, so that their rounding tells neither the order in which clients came (a stacked
    cohort comes in the order of its sizes) nor, where noise is added to a sum, what single clients sent. A sum that
    ``narrows`` leaves in the type of the uploads.
    """

    fields: Sequence[Field]
    wide: bool = False
    narrows: bool = False
    _types: dict[str, torch.dtype] = field(default_factory=dict)
    _total: Tensors = field(default_factory=dict)
    _apart: dict[str, list[Tensor]] = field(default_factory=dict)
    _members: list[int] = field(default_factory=list)
    _factors: list[float] = field(default_factory=list)

    def add(self, client: int, upload: Tensors, factor: float) -> str:
        """Add one upload; there is nothing that could not be added."""
        self._members.append(client)
        self._factors.append(factor)
        for kind in self.fields:
            value, name = upload[kind.name], kind.name
            if kind.combine == "each":
                self._apart.setdefault(name, []).append(value)
                continue
            scale = factor if kind.weighted else 1.0
            if name in self._total:
                self._total[name].add_(value, alpha=scale)
            else:
                self._types[name] = value.dtype
                self._total[name] = (value.double() if self.wide else value) * scale
        return ""

    def close(self, sums: CohortSums) -> None:
        """Fields combined ``each`` come out as [m, ...], by ascending client number as everything else."""
        order = sorted(range(len(self._members)), key=self._members.__getitem__)
        apart = {name: torch.stack([values[place] for place in order]) for name, values in self._apart.items()}
        if self.narrows:
            self._total = {name: value.to(self._types[name]) for name, value in self._total.items()}
        sums.total = self._total | apart
        sums.members = [self._members[place] for place in order]
        sums.weights = [self._factors[place] for place in order]
        sums.weight = sum(sums.weights)


def aggregate_uploads(
    results: Iterable[ClientResult],
    aggregator: Aggregator,
    weights: Mapping[int, float],
    client_state: MutableMapping[int, Tensors],
    check: Callable[[int, DoorLog], None],
) -> CohortSums:
    """Let ``aggregator`` add ``results`` up with their clients' factors; what clients keep goes to ``client_state``.

    ``check`` is called with every client and its door's log, and raises if more left the client than was charged.
    """
    sums = CohortSums()
    keeps: dict[int, Tensors] = {}
    for result in results:
        check(result.client, result.log)
        if result.upload is None:
            sums.problems[result.dropped] += 1
            continue
        if result.zeroed:
            sums.zeroed[result.zeroed] += 1
        problem = aggregator.add(result.client, result.upload, weights[result.client])
        if problem:
            sums.problems[problem] += 1
        elif result.client_state:
            keeps[result.client] = result.client_state
    aggregator.close(sums)
    for client in sums.members:  # a round that is given up leaves clients as they were, too
        if client in keeps:
            client_state[client] = {**client_state.get(client, {}), **keeps[client]}
    return sums
