"""Hash trees: one signature under many entries, each of which can be shown to be signed without the others.

Merkle, "A Digital Signature Based on a Conventional Encryption Function", CRYPTO 1987. Two nodes are hashed in the
order of their values, so that a path needs no directions; a leaf says itself which entry it is. Leaves and inner nodes
are hashed under different prefixes, so that neither passes for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

HASH_BYTES = 32
_LEAF, _NODE = b"\0", b"\1"
_NOTHING = bytes(HASH_BYTES)


def depth_for(entries: int) -> int:
    """Levels above the leaves of a tree that has room for so many ``entries`` (1 or more)."""
    return (entries - 1).bit_length()


def leaf(entry: bytes) -> bytes:
    """The 32-byte leaf of an entry."""
    return sha256(_LEAF + entry).digest()


class Tree:
    """The tree over ``leaves``, at most 2^``depth`` of them; what is missing counts as zeros."""

    def __init__(self, leaves: Sequence[bytes], depth: int) -> None:
        self._levels = [list(leaves)]
        for _ in range(depth):
            below = self._levels[-1]
            if len(below) % 2 or not below:
                below.extend([_NOTHING] * (2 - len(below) % 2))
            self._levels.append([_joined(*pair) for pair in zip(below[::2], below[1::2], strict=True)])

    @property
    def root(self) -> bytes:
        """32 bytes that fix all leaves."""
        return self._levels[-1][0]

    def paths(self) -> list[bytes]:
        """For every leaf, in their order, its neighbour and those of the nodes above it: 32 bytes for each level."""
        above = [b""]
        for level in reversed(self._levels[:-1]):
            above = [level[place ^ 1] + above[place >> 1] for place in range(len(level))]
        return above


def root_over(one: bytes, path: bytes) -> bytes:
    """The root of a tree in which the leaf ``one`` has this ``path``."""
    for start in range(0, len(path), HASH_BYTES):
        one = _joined(one, path[start : start + HASH_BYTES])
    return one


def _joined(one: bytes, other: bytes) -> bytes:
    return sha256(_NODE + (one + other if one < other else other + one)).digest()
