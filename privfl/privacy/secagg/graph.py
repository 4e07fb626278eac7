"""Who shares masks and secrets with whom: the complete graph, or a random k-regular one (SecAgg+).

Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS
2020, section 3: the clients are put in a random circle, and each is joined to the k/2 next on either side (Harary, "The
Maximum Connectivity of a Graph", 1962). The graph is public; what must be random is the circle, and it must not be
chosen by whoever corrupts clients. :mod:`~privfl.privacy.secagg.parameters` says which k is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseStream

SEED_BYTES = 32


def neighbours(members: Sequence[int], degree: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Each member's neighbours, ascending; the relation is symmetric and nobody is a neighbour of itself.

    The same arguments give the same graph everywhere: the circle is a uniform permutation of ``members`` as they are
    given, drawn from a ChaCha20 key stream.

    Args:
        members: distinct, at least 2.
        degree: k, neighbours of every member: n − 1 (complete graph, ``seed`` is not used), or even and in 2 … n − 2.
        seed: 32 bytes.

    Raises:
        ConfigError: a member is repeated, there are fewer than 2, the degree is impossible or odd (and not n − 1), or
            the seed is not 32 bytes.
    """
    n = len(members)
    if n < 2 or len(set(members)) != n:
        raise ConfigError(f"a session needs at least 2 distinct members, but {len(set(members))} of {n} are distinct.")
    if not 1 <= degree <= n - 1 or (degree % 2 and degree != n - 1):
        raise ConfigError(
            f"no circle of {n} members has degree {degree}: choose {n - 1} (everybody) or an even number below it."
        )
    if len(seed) != SEED_BYTES:
        raise ConfigError(f"the seed of the graph has {len(seed)} bytes: it must have {SEED_BYTES}.")
    around: Mapping[int, frozenset[int]] = (
        Everybody(tuple(members)) if degree == n - 1 else Circle(tuple(members), degree, seed)
    )
    return {member: tuple(sorted(around[member] - {member})) for member in members}


class Everybody(Mapping[int, frozenset[int]]):
    """The complete graph: around every member, itself included, are all ``members``."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._all = frozenset(members)

    def __getitem__(self, member: int) -> frozenset[int]:
        if member not in self._all:
            raise KeyError(member)
        return self._all

    def __iter__(self) -> Iterator[int]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class Circle(Mapping[int, frozenset[int]]):
    """The random k-regular graph: around each member are itself and the ``degree``/2 next on either side of it.

    A client that asks for its own neighbours pays for the circle (linear in the members) and for them, no more.
    """

    def __init__(self, members: tuple[int, ...], degree: int, seed: bytes) -> None:
        self._reach = degree // 2
        self._circle = [members[place] for place in _permutation(len(members), seed)]
        self._places = {member: place for place, member in enumerate(self._circle)}
        self._asked: dict[int, frozenset[int]] = {}

    def __getitem__(self, member: int) -> frozenset[int]:
        if member not in self._asked:
            place, n = self._places[member], len(self._circle)
            steps = range(place - self._reach, place + self._reach + 1)
            self._asked[member] = frozenset(self._circle[step % n] for step in steps)
        return self._asked[member]

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _permutation(n: int, seed: bytes) -> list[int]:
    """A uniform permutation of 0 … n − 1 by the shuffle of Fisher and Yates; the draws are exactly uniform."""
    stream = NoiseStream(seed)
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        chosen = int(stream.integers(0, last, 1)[0])
        order[last], order[chosen] = order[chosen], order[last]
    return order
