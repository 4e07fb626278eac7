"""Streaming aggregation: uploads are added up as they arrive, so memory is that of one model, whatever the cohort."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field

from privfl.algorithms.base import Tensors
from privfl.engine.workspace import ClientResult
from privfl.privacy.door import DoorLog


@dataclass
class Sums:
    """What arrived from a cohort: weighted sums of the uploads, the sum of weights, and why uploads are missing."""

    total: Tensors = field(default_factory=dict)
    weight: float = 0.0
    problems: Counter[str] = field(default_factory=Counter)


def add_up(
    results: Iterable[ClientResult],
    factors: Mapping[int, float],
    kept: MutableMapping[int, Tensors],
    check: Callable[[int, DoorLog], None],
) -> Sums:
    """Add ``results`` up, each times its client's factor; what clients keep goes to ``kept``.

    ``check`` is called with every client and its door's log, and raises if more left the client than was charged.
    """
    sums = Sums()
    for result in results:
        check(result.client, result.log)
        if result.upload is None:
            sums.problems[result.dropped] += 1
            continue
        if result.kept:
            kept[result.client] = result.kept
        factor = factors[result.client]
        sums.weight += factor
        for name, value in result.upload.items():
            if name in sums.total:
                sums.total[name].add_(value, alpha=factor)
            else:
                sums.total[name] = value * factor
    return sums
