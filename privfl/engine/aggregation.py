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
from privfl.engine.measures import NOTHING, Measured
from privfl.engine.order_free_sum import OrderFreeSum, range_of
from privfl.engine.workspace import ClientResult
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog


@dataclass
class CohortSums:
    """What arrived from a cohort: sums of the uploads, who sent them with what weight, and why uploads are missing.

    ``weight`` is Σ of the weights of the uploads that arrived; ``aborted``: a secure sum was given up, nothing arrived.
    ``asked`` are the weights of all who were asked, by client. ``zeroed``: why uploads could not be used that count as
    zeros, because noise must hide that they are missing: for whoever runs the simulation, and not for the server.
    ``shared``: parts of one's own that left something behind while clients trained, in words.
    """

    total: Tensors = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    weight: float = 0.0
    problems: Counter[str] = field(default_factory=Counter)
    aborted: bool = False
    asked: dict[int, float] = field(default_factory=dict)
    zeroed: Counter[str] = field(default_factory=Counter)
    shared: list[str] = field(default_factory=list)


class Aggregator(Protocol):
    """What adds uploads up: in clear (:class:`PlainAggregator`) or so that nobody sees the summands."""

    def add(self, client: int, upload: Tensors, factor: float, known: Measured = NOTHING) -> str:
        """Take one client's upload, some of whose measures are ``known``; why it cannot be used, empty if it can."""

    def close(self, sums: CohortSums) -> None:
        """Write what came together to ``sums``."""


@dataclass
class PlainAggregator:
    """Adds ``fields`` as they are, weighted ones times their client's factor.

    The sums tell neither in which order clients came (a stacked cohort comes in the order of its sizes) nor which
    machine added which of them up (:mod:`privfl.engine.order_free_sum`). They are in float64, so that rounding hides
    nothing from the noise that is added to them; a sum that ``narrows`` ends in the type of the uploads.
    """

    fields: Sequence[Field]
    narrows: bool = False
    sums: dict[str, OrderFreeSum] = field(default_factory=dict)
    apart: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)

    def add(self, client: int, upload: Tensors, factor: float, known: Measured = NOTHING) -> str:
        """Add one upload; why it cannot be added, empty if it can."""
        tops: dict[str, int] = {}
        for kind in self.fields:
            if kind.combine == "sum":
                top = range_of(upload[kind.name], _scale(kind, factor), known.get(kind.name))
                if top is None:
                    return f"sent a '{kind.name}' too large to be added up"
                tops[kind.name] = top
        self.weights[client] = factor
        for kind in self.fields:
            value, name = upload[kind.name], kind.name
            if kind.combine == "each":
                self.apart.setdefault(name, {})[client] = value
            else:
                self.sums.setdefault(name, OrderFreeSum()).add(value, _scale(kind, factor), tops[name])
        return ""

    def merge(self, other: PlainAggregator) -> None:
        """Add all that ``other`` has added, of other clients; ``other`` may not be used afterwards."""
        for name, one in other.sums.items():
            self.sums.setdefault(name, OrderFreeSum()).merge(one)
        for name, values in other.apart.items():
            self.apart.setdefault(name, {}).update(values)
        self.weights |= other.weights

    def close(self, sums: CohortSums) -> None:
        """Fields combined ``each`` come out as [m, ...], by ascending client number as everything else."""
        total = {name: one.total(one.dtype if self.narrows else torch.float64) for name, one in self.sums.items()}
        apart = {
            name: torch.stack([values[client] for client in sorted(values)]) for name, values in self.apart.items()
        }
        sums.total = total | apart
        sums.members = sorted(self.weights)
        sums.weights = [self.weights[client] for client in sums.members]
        sums.weight = sum(sums.weights)


def _scale(kind: Field, factor: float) -> float:
    return factor if kind.weighted else 1.0


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
        problem = aggregator.add(result.client, result.upload, weights[result.client], result.known)
        if problem:
            sums.problems[problem] += 1
        elif result.client_state:
            keeps[result.client] = result.client_state
    aggregator.close(sums)
    for client in sums.members:  # a round that is given up leaves clients as they were, too
        if client in keeps:
            client_state[client] = {**client_state.get(client, {}), **keeps[client]}
    return sums
