"""All that a thing carries, where it matters who left it there: caches, slots, attributes of values, and the like.

A fingerprint leaves these alone, since they change while the same is computed. Whether one client's code left something
for the next, and whether a part holds training examples, is asked of them too.
"""

from __future__ import annotations

import functools
import gc
import logging
import secrets
import sys
import threading
import types
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from privfl.simulation.identity import OF_EVERY_MODULE, Identity, global_names, is_lazy, own_imports, package_of

_CACHE = type(functools.cache(len))
_LOCK = type(threading.Lock())
_FRAMES = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
_OF_ALL_LOGGERS = {"manager", "parent", "root", "_cache"}
"""What loggers share, and what each remembers of the levels that it was asked for."""
_TOLD_WHOLE = (Tensor, nn.Module)
"""Kinds whose content is looked at without taking them apart as pickling does."""


class EveryState(Identity):
    """The hash of one thing with all that it carries; a new one each time where that cannot be told.

    Two hashes of one thing in one process differ if anything changed in between that its code can reach by fields,
    slots, caches, closures, globals or modules of one's own. What nothing can look into (what a thread or a context has
    of its own, an object of other packages that cannot be pickled) has another hash each time.
    """

    def _inside(self, thing: Any, loose: bool) -> bytes:
        beside = list(_beside(thing))
        return super()._inside(thing, loose) + (self._each("beside", beside) if beside else b"")

    def _object(self, thing: Any, loose: bool) -> bytes:
        kind = type(thing)
        if kind in _FRAMES:
            frame = getattr(thing, _FRAMES[kind])
            return self._each("frame", () if frame is None else (frame.f_code, frame.f_lasti, dict(frame.f_locals)))
        if _is_link(thing):
            return self._each("link", [one for one in gc.get_referents(thing) if not _is_link(one)])
        found = super()._object(thing, loose)
        if not hasattr(thing, "__dict__") or isinstance(thing, _TOLD_WHOLE) or _is_privfls(kind):
            return found
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception:  # whatever a type of others raises that cannot be taken apart
            return self._unknown(kind)
        parts = [reduced] if isinstance(reduced, str) else reduced
        return found + self._each("reduced", [list(one) if isinstance(one, Iterator) else one for one in parts])

    def _unknown(self, kind: type) -> bytes:
        super()._unknown(kind)
        return secrets.token_bytes(32)

    def _used(self, function: types.FunctionType) -> dict[str, Any]:
        given, code = function.__globals__, function.__code__
        imported = own_imports(code, given.get("__package__"))
        modules = {f"import {name}": sys.modules[name] for name in imported if name in sys.modules}
        names = global_names(code)
        by_string = names & {"globals", "eval", "exec"} or ("sys" in names and "modules" in _names(code))
        found = {name: given[name] for name in given.keys() - OF_EVERY_MODULE} if by_string else super()._used(function)
        return {**modules, **found}


def _beside(thing: Any) -> Iterator[Any]:
    """What is written onto ``thing``, or into it where only its own code looks."""
    kind = type(thing)
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
    if isinstance(thing, defaultdict):
        yield thing.default_factory
    if isinstance(thing, _CACHE) and not package_of(thing):
        yield [one for one in gc.get_referents(thing) if isinstance(one, dict) and one is not vars(thing)]
    slots = [name for base in kind.__mro__ if not package_of(base) for name in _slots(base)]
    own = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    if hasattr(thing, "__dict__"):
        lazy = {name for base in kind.__mro__ if package_of(base) for name, one in vars(base).items() if is_lazy(one)}
        left_out = lazy | (_OF_ALL_LOGGERS if isinstance(thing, logging.Logger) else set())
        own |= {name: value for name, value in vars(thing).items() if name not in left_out}
    if own:
        yield own


def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType))


def _is_link(thing: Any) -> bool:
    """Whether ``thing`` is an entry of a cache of limited size, which refers to its neighbours too."""
    return type(thing).__qualname__ == "_lru_list_elem"


def _is_privfls(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "privfl"


def _names(code: types.CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names, *(name for one in inner for name in _names(one))}
