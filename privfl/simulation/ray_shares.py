"""How a cohort is divided among workers: so that all are done at the same time, and what clients keep need not move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SLACK = 1.05
"""How much longer than the fairest division a worker may take so that a client need not move."""


def divide(work: Mapping[int, float], speeds: Sequence[float], homes: Mapping[int, int]) -> list[list[int]]:
    """The clients of each worker, in the order of ``work``.

    Clients with most work are placed first, each where it is done first, or at home if that is not overfull.

    Args:
        work: of each client, > 0.
        speeds: work that each worker does in a second, > 0.
        homes: the worker that knows what a client keeps, where one does.

    >>> divide({0: 3.0, 1: 1.0, 2: 2.0, 3: 2.0}, [1.0, 1.0], {})
    [[0, 1], [2, 3]]
    """
    fair = sum(work.values()) / sum(speeds)
    until = [0.0] * len(speeds)
    place: dict[int, int] = {}
    for client in sorted(work, key=lambda one: -work[one]):
        ends = [end + work[client] / speed for end, speed in zip(until, speeds, strict=True)]
        best = min(range(len(speeds)), key=ends.__getitem__)
        home = homes.get(client, best)
        place[client] = home if ends[home] <= max(SLACK * fair, ends[best]) else best
        until[place[client]] = ends[place[client]]
    return [[client for client in work if place[client] == worker] for worker in range(len(speeds))]
