"""Loops that Numba compiles, where it is installed and once a process has work enough for it.

``pip install 'privfl[compiled]'`` brings Numba. To load it takes half a second, so a process whose work is small never
does. What is compiled gives the bits of what stands in its place before and without it, as Numba reorders no operations
unless it is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar, cast

ENOUGH = 0.05
"""Seconds that a process could have saved when Numba is loaded; what has had so much work has most of it to come."""
Function = TypeVar("Function", bound=Callable[..., Any])


class _Forgone:
    """What this process could have saved so far."""

    seconds = 0.0


@cache
def installed() -> bool:
    """Whether Numba is there, loaded or not: the same answer from a process's beginning to its end."""
    return find_spec("numba") is not None


def once_it_pays(function: Function, saved: float) -> Function | None:
    """``function`` compiled, for a call that saves ``saved`` seconds by it; ``None`` while that does not pay."""
    _Forgone.seconds += saved
    return compiled(function) if _Forgone.seconds >= ENOUGH else None


def compiled(function: Function) -> Function | None:
    """``function`` compiled, kept on disk for the next process where that can be written; ``None`` without Numba."""
    return cast("Function | None", _compiled(function))


def wide_vectors() -> None:
    """Ask, first thing in a function that is compiled, for vectors of 512 bits where those pay; else nothing.

    LLVM keeps to 256 bits on Intel's processors, of which the first with 512 lowered their clock for them. The others
    are asked; measured is one of them, where the noise's loop takes 1.5 ns a value instead of 1.7.
    """


@cache
def _register_wide_vectors() -> None:
    """Tell Numba what :func:`wide_vectors` is: an attribute of the function in which it stands."""
    from llvmlite import binding
    from numba import types
    from numba.extending import lower_builtin, type_callable

    pays = binding.get_host_cpu_features().get("avx512vbmi2", False)  # which Ice Lake was the first to have

    def typed(_context: Any) -> Any:
        return lambda: types.none

    def lowered(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if pays:  # a set that knows only the attributes which have no value
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    type_callable(wide_vectors)(typed)
    lower_builtin(wide_vectors)(lowered)


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    try:
        import numba
    except ImportError:
        return None
    _register_wide_vectors()
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        loop = numba.njit(cache=True, **settings)(function)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(**settings)(function)
    _under_its_own_key(loop._cache._cache_file)
    return loop


def _under_its_own_key(kept: Any) -> None:
    """Let what Numba has ``kept`` on disk be taken for nothing but what it was compiled for.

    Its index names a file for each type of arguments and processor, and two processes that compile at once, each for
    another type, may name the same one: then a loop is found that refuses its arguments, or one for another processor.
    A file that says itself what it is for is left alone where it is not that, and so is one that cannot be read; a disk
    that refuses costs the next process its time alone.
    """
    save, load = kept.save, kept.load

    def saved(key: Any, data: Any) -> None:
        with suppress(OSError):
            save(key, (key, data))

    def loaded(key: Any) -> Any:
        try:
            found = load(key)
        except Exception:  # what a damaged pickle raises may be anything
            with suppress(OSError):
                kept.flush()
            return None
        return found[1] if isinstance(found, tuple) and len(found) == 2 and found[0] == key else None

    kept.save, kept.load = saved, loaded


def compiled_so_far() -> int:
    """How many functions this process has compiled, or tried to: that takes seconds, once."""
    return _compiled.cache_info().misses
