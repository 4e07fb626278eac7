"""All ways to cut a sparse graph while everybody confirms one whole list of survivors.

What is claimed for the threshold of :func:`privfl.privacy.secagg.parameters.least_sparse`, tried out: every client of a
small circle is an accomplice, has dropped out, is inside a part whose sum the server wants alone, or outside of it. Who
is inside gets all letters but those from outside, whose masks would stay; the masks with whoever has dropped count as
known. A client confirms a list only if it holds the letters of all its neighbours on it.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from privfl.privacy.secagg.parameters import least_sparse
from privfl.privacy.secagg.rules import confirmations

INSIDE, OUTSIDE, DROPPED, CORRUPT = range(4)
"""Where a client of a circle is."""
Labels = NDArray[np.uint8]


def cuts(clients: int, degree: int, below: int = 0, block: int = 1 << 20) -> tuple[int, int]:
    """How many labelled circles there are with somebody inside and outside, and in how many the inside opens alone.

    The threshold is the least that is safe for the accomplices of that circle, less ``below``. Circles for which that
    exceeds the holders of a share are left out: no session has them.
    """
    tried = opened = 0
    for start in range(0, 4**clients, block):
        index = np.arange(start, min(start + block, 4**clients))
        labels = [(index >> 2 * place & 3).astype(np.uint8) for place in range(clients)]
        legal, opens = _opens(labels, degree, below)
        tried += int(legal.sum())
        opened += int((legal & opens).sum())
    return tried, opened


def searched(
    clients: int, degree: int, corrupt: float, draws: int, random: np.random.Generator, below: int = 0
) -> tuple[int, int]:
    """The same for ``draws`` circles of any size, drawn where cuts are to be expected.

    Inside are one to three arcs, between them and the rest there are gaps of dropped clients about as wide as
    neighbourhoods reach, and a few clients anywhere are moved elsewhere. Every client is corrupt with probability
    ``corrupt``, wherever it is.
    """
    labels = np.full((draws, clients), OUTSIDE, np.uint8)
    places = np.arange(clients)
    for _ in range(3):
        present = random.random(draws) < 2 / 3
        start, length = random.integers(clients, size=draws), random.integers(1, clients, size=draws)
        gap = random.integers(0, degree // 2 + 3, size=draws)
        offset = (places - start[:, None]) % clients
        inner = (offset < length[:, None]) & present[:, None]
        outer = (offset < (length + gap)[:, None]) | (offset >= (clients - gap)[:, None])
        labels[outer & present[:, None] & (labels != INSIDE)] = DROPPED
        labels[inner] = INSIDE
    moved = random.random(labels.shape) < random.choice([0, 0.02, 0.1], size=(draws, 1))
    labels[moved] = random.integers(3, size=int(moved.sum()))
    labels[random.random(labels.shape) < corrupt] = CORRUPT
    legal, opens = _opens(list(labels.T), degree, below)
    return int(legal.sum()), int((legal & opens).sum())


def _around(marks: list[NDArray[np.bool_]], place: int, degree: int) -> Labels:
    """How many of the neighbours of ``place`` are marked."""
    steps = [step for distance in range(1, degree // 2 + 1) for step in (distance, -distance)]
    return reduce(np.add, (marks[(place + step) % len(marks)].astype(np.uint8) for step in steps))


def _opens(labels: list[Labels], degree: int, below: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    n = len(labels)
    inside, outside, dropped, corrupt = ([one == label for one in labels] for label in range(4))
    honest = [~one for one in corrupt]
    most = reduce(np.maximum, (np.where(honest[place], _around(corrupt, place, degree), 0) for place in range(n)))
    threshold = np.array([least_sparse(degree, held) for held in range(degree + 1)])[most] - below
    legal = np.logical_or.reduce(inside) & np.logical_or.reduce(outside) & (threshold <= degree + 1)
    signing = [outside[v] | (inside[v] & (_around(outside, v, degree) == 0)) for v in range(n)]
    accomplices = reduce(np.add, (one.astype(np.int16) for one in corrupt))
    signed = reduce(np.add, (one.astype(np.int16) for one in signing)) + accomplices
    opens = signed >= np.array([confirmations(n, held) for held in range(n + 1)])[accomplices]
    for v in range(n):
        theirs = _around(corrupt, v, degree)
        letters = 1 + theirs + _around(inside, v, degree) + _around(dropped, v, degree)
        shares = signing[v] + theirs + _around(signing, v, degree)
        opens &= ~inside[v] | ((letters >= threshold) & (shares >= threshold))
    return legal, opens
