"""Streaming aggregation: uploads are added up as they arrive, so memory is that of one model, whatever the cohort.

Only fields that an algorithm needs from ``each`` client are kept apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.workspace import ClientResult
from privfl.privacy.channel import Field
from privfl.privacy.door import DoorLog


@dataclass
class Sums:
    """What arrived from a cohort: sums of the uploads, who sent them with what weight, and why uploads are missing."""

    total: Tensors = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def weight(self) -> float:
        """Σ of the weights of the uploads that arrived."""
        return sum(self.factors)


def add_up(
    results: Iterable[ClientResult],
    fields: Sequence[Field],
    factors: Mapping[int, float],
    kept: MutableMapping[int, Tensors],
    check: Callable[[int, DoorLog], None],
) -> Sums:
    """Add ``results`` up, weighted fields times their client's factor; what clients keep goes to ``kept``.

    Fields combined ``each`` come out as [m, ...] in the order of the cohort's client numbers.

    ``check`` is called with every client and its door's log, and raises if more left the client than was charged.
    """
    sums = Sums()
    apart: dict[str, list[Tensor]] = {kind.name: [] for kind in fields if kind.combine == "each"}
    for result in results:
        check(result.client, result.log)
        if result.upload is None:
            sums.problems[result.dropped] += 1
            continue
        if result.kept:
            kept[result.client] = {**kept.get(result.client, {}), **result.kept}
        factor = factors[result.client]
        sums.members.append(result.client)
        sums.factors.append(factor)
        for kind in fields:
            value, name = result.upload[kind.name], kind.name
            if kind.combine == "each":
                apart[name].append(value)
                continue
            scale = factor if kind.weighted else 1.0
            if name in sums.total:
                sums.total[name].add_(value, alpha=scale)
            else:
                sums.total[name] = value * scale
    return _in_order(sums, apart)


def _in_order(sums: Sums, apart: Mapping[str, list[Tensor]]) -> Sums:
    """``sums`` by ascending client number, whatever the order in which an engine trained."""
    order = sorted(range(len(sums.members)), key=sums.members.__getitem__)
    if order:
        sums.total |= {name: torch.stack([values[place] for place in order]) for name, values in apart.items()}
    sums.members = [sums.members[place] for place in order]
    sums.factors = [sums.factors[place] for place in order]
    return sums
