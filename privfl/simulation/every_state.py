"""All that a thing carries, where it matters who left it there: caches, slots, attributes of values, and the like.

A fingerprint leaves these alone, since they change while the same is computed. Whether one client's code left something
for the next, and whether a part holds training examples, is asked of them too.
"""

from __future__ import annotations

import functools
import gc
import logging
import secrets
import threading
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from privfl.simulation.identity import OF_EVERY_MODULE, Identity, lazy_names
from privfl.simulation.origins import package_of, reads_by_string

_CACHE = type(functools.cache(len))
_LOCK = type(threading.Lock())
_FRAMES = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
_OF_ALL_LOGGERS = {"manager", "parent", "root", "_cache"}
"""What loggers share, and what each remembers of the levels that it was asked for."""
_COMPILER, _MARK = "torch._dynamo.", "_dynamo_static_input_type"
"""What compiles a model at its first pass, and the word that it then writes onto parameters."""


class EveryState(Identity):
    """The hash of one thing with all that it carries; a new one each time where that cannot be told.

    Two hashes of one thing in one process differ if anything changed in between that its code can reach by fields,
    slots, caches, closures, globals or modules of one's own; installed packages and their classes aside. What nothing
    can look into (what a thread or a context has of its own, an object of other packages that cannot be pickled) has
    another hash each time.

    Args:
        thing: what is looked at.
        loaded: tensors that are filled anew before anybody reads them, wherever they are reached: which of them stands
            where counts, and what is written onto them, but not their values.
        apart: what ``thing`` lists piece by piece; where it is reached as a whole, which of them it is counts alone.
    """

    def __init__(self, thing: Any, *, loaded: Sequence[Tensor] = (), apart: Sequence[Any] = ()) -> None:
        self._loaded = {id(one): position for position, one in enumerate(loaded)}
        self._apart = {id(one): position for position, one in enumerate(apart)}
        super().__init__(thing)

    def _everybodys(self, thing: Any) -> str:
        return ""  # a client may leave something in it

    def _inside(self, thing: Any, loose: bool) -> bytes:
        if (place := self._apart.get(id(thing))) is not None:
            return self._each("apart", [place])
        position, beside = self._loaded.get(id(thing)), list(_beside(thing))
        found = super()._inside(thing, loose) if position is None else self._each("loaded", [position])
        return self._each("beside", [found, *beside]) if beside else found

    def _object(self, thing: Any, loose: bool) -> bytes:
        kind = type(thing)
        if kind in _FRAMES:
            frame = getattr(thing, _FRAMES[kind])
            return self._each("frame", () if frame is None else (frame.f_code, frame.f_lasti, dict(frame.f_locals)))
        if kind.__qualname__ == "_lru_list_elem":  # of a cache of limited size, which refers to all it holds
            return self._each("link", ())
        if _of_compiler(thing) and hasattr(thing, "__dict__"):
            return self._each("compiler's", [kind])
        return super()._object(thing, loose)

    def _unknown(self, kind: type) -> bytes:
        super()._unknown(kind)
        return secrets.token_bytes(32)

    def _used(self, function: types.FunctionType) -> dict[str, Any]:
        given = function.__globals__
        if reads_by_string(function.__code__):
            return {name: given[name] for name in given.keys() - OF_EVERY_MODULE}
        return super()._used(function)


def _beside(thing: Any) -> Iterator[Any]:
    """What is written onto ``thing``, or into it where only its own code looks."""
    if isinstance(thing, types.ModuleType) or (isinstance(thing, type | types.FunctionType) and package_of(thing)):
        return
    if isinstance(thing, type | types.FunctionType):
        yield thing.__doc__
        return
    if isinstance(thing, Tensor) and thing.is_leaf and thing.grad is not None:
        yield thing.grad
    if isinstance(thing, weakref.ref):
        yield thing()
    if isinstance(thing, _LOCK):
        yield thing.locked()
    if isinstance(thing, _CACHE) and not package_of(thing.__wrapped__):
        yield [one for one in gc.get_referents(thing) if one is not vars(thing)]
    if hasattr(thing, "__dict__") and not isinstance(thing, np.memmap):  # whose file is no state of a part
        bases = [base for base in type(thing).__mro__ if package_of(base)]
        lazy = {name for base in bases for name in lazy_names(base)}
        left_out = lazy | (_OF_ALL_LOGGERS if isinstance(thing, logging.Logger) else set())
        left_out |= {name for name, value in vars(thing).items() if _is_flag_of_compiler(thing, name, value)}
        yield {name: value for name, value in vars(thing).items() if name not in left_out}


def _of_compiler(thing: Any) -> bool:
    """Whether ``thing`` is an object of PyTorch's compiler, whose flags change when it compiles."""
    kind = type(thing)
    return kind.__module__.startswith(_COMPILER) and bool(package_of(kind))


def _is_flag_of_compiler(thing: Any, name: str, value: Any) -> bool:
    """Whether ``name`` of ``thing`` is what PyTorch's compiler notes when it compiles, which tells nothing of data."""
    if isinstance(thing, Tensor):
        return name == _MARK and value in ("guarded", "unguarded")
    return _of_compiler(thing) and (value is None or isinstance(value, bool))
