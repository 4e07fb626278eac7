"""One copy of an algorithm serves a whole stack of clients: nothing of one of them may get into what another sends.

A field of the object is one for all of them, where each client alone would have its own; so where a claim rests on
clients staying apart, an algorithm from outside that changes a field is not stacked. Its steps run once for all, by
``torch.func.vmap``, under a guard (:mod:`privfl.privacy.clipping.guard`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from torch.func import vmap

from privfl.algorithms.base import Algorithm, Tensors
from privfl.privacy.clipping.guard import CLIENT, Made


class NotStacked(Exception):
    """Clients of a stack would not be as they are alone; says why."""


def fields_of(algorithm: Algorithm) -> bytes:
    """What ``algorithm`` holds, as bytes that stay the same while nobody changes it.

    Raises:
        NotStacked: it cannot be told.
    """
    held = io.BytesIO()
    try:
        pickle.Pickler(held, protocol=pickle.HIGHEST_PROTOCOL).dump(vars(algorithm))
    except Exception as error:  # whatever an object of others raises that cannot be pickled
        raise NotStacked(f"nobody can tell whether {algorithm.name} changes what it holds ({error})") from error
    return held.getvalue()


def check_fields(algorithm: Algorithm, before: bytes) -> None:
    """Refuse that one object serves a stack if it does not hold what it held ``before``.

    Raises:
        NotStacked: it does not.
    """
    if fields_of(algorithm) != before:
        raise NotStacked(f"{algorithm.name} changes a field of its own, which all clients of a stack would share")


def for_each_client(work: Callable[..., Tensors], said: str, *, guarded: bool) -> Callable[..., Tensors]:
    """``work`` for all clients of a stack at once; ``guarded`` if it is not known to keep them apart.

    ``said`` names it in a sentence. The function that is returned raises a ``ConfigError`` where a guard refuses.
    """
    if not guarded:
        return vmap(work)

    def call(*values: Any) -> Tensors:
        made = Made(1, CLIENT)

        def one(*own: Any) -> Tensors:
            with made.of(None, *own):
                return work(*own)

        found: Tensors = vmap(one)(*values)
        made.refuse_kept(said)
        return found

    return call
