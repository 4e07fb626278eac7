"""One copy of an algorithm serves a whole stack of clients: nothing of one of them may get into what another sends.

A field of the object is one for all of them, where each client alone would have its own; so where a claim rests on
clients staying apart, an algorithm from outside that changes a field is not stacked. Its steps run once for all, by
``torch.func.vmap``, under a guard (:mod:`privfl.privacy.clipping.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from privfl.algorithms.base import Algorithm, Tensors
from privfl.privacy.clipping.guard import CLIENT, Made
from privfl.privacy.clipping.quiet_vmap import vmap
from privfl.privacy.door.untouched import held_by


class NotStacked(Exception):
    """Clients of a stack would not be as they are alone; says why."""


def fields_of(algorithm: Algorithm) -> Hashable:
    """What ``algorithm`` holds, as what is equal while nobody changes it."""
    return held_by(vars(algorithm))


def check_fields(algorithm: Algorithm, before: Hashable) -> None:
    """Refuse that one object serves a stack if it does not hold what it held ``before``.

    Raises:
        NotStacked: it does not.
    """
    if fields_of(algorithm) != before:
        raise NotStacked(f"{algorithm.name} changes a field of its own, which all clients of a stack would share")


def for_each_client(work: Callable[..., Tensors], *, guarded: bool) -> Callable[..., Tensors]:
    """``work`` for all clients of a stack at once; ``guarded`` if it is not known to keep them apart.

    The function that is returned raises a ``ConfigError`` where the guard refuses; what was kept is when it is used.
    """
    if not guarded:
        return vmap(work)

    def call(*values: Any) -> Tensors:
        made = Made(1, CLIENT)

        def one(*own: Any) -> Tensors:
            with made.of(None, *own):
                return work(*own)

        found: Tensors = vmap(one)(*values)
        made.check()
        return found

    return call
