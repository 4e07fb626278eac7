"""A function that a step hands to the door must not tell anybody how often it is called: that depends on the batch.

An empty batch takes no pass, a large one several, and a length of which nothing is known yet is tried first. A function
that counts its calls, or keeps what it saw, would take that past the noise.
"""

from __future__ import annotations

import hashlib
import random
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from privfl.errors import ConfigError
from privfl.privacy.clipping.known import known_function
from privfl.privacy.clipping.row_wise import said_of
from privfl.randomness import times_used
from privfl.references import shipped

DEPTH = 6
"""How far into what a function holds is looked, from one thing to the next."""
SAMPLE = 1 << 12
"""Numbers of a tensor that are compared: all of a small one, and of a large one as many, at equal distances."""
_VALUES = (type(None), bool, int, float, complex, str, bytes)


@contextmanager
def untouched(function: Callable[..., Any], usual: Callable[..., Any]) -> Iterator[None]:
    """Refuse that ``function`` changes anything it holds while the block calls it.

    Not the ``usual`` loss of the task, which is watched over a whole round, nor what is known.

    Raises:
        ConfigError: it does.
    """
    if function is usual or known_function(function) or _wraps(function, usual):
        yield
        return
    used, before, generators = times_used(), held_by(function), _of_the_process()
    yield
    if _of_the_process() != generators and used[0] == used[1] == times_used()[0]:  # privfl itself used none meanwhile
        raise ConfigError(
            f"{said_of(function)} draws from a random generator of the whole process (or another client's step did "
            "meanwhile), and a step could tell by it how often it was called, which depends on the batch; let the "
            "algorithm ask for random_numbers and pass them on"
        )
    if held_by(function) != before:
        raise ConfigError(
            f"{said_of(function)} changes something outside of it that it holds, and a step could tell by it how often "
            "it was called, which depends on the batch; let it return what it computes and change nothing"
        )


def held_by(thing: Any) -> Hashable:
    """What ``thing`` reaches by closures, arguments, fields and globals, as what is equal while nobody changes it."""
    return _held(thing, DEPTH, set())


def _held(thing: Any, depth: int, seen: set[int]) -> Hashable:
    if isinstance(thing, _VALUES):
        return type(thing), thing
    if isinstance(thing, Tensor):
        return id(thing), 0 if thing.is_inference() else thing._version, sampled(thing)
    if depth == 0 or id(thing) in seen or isinstance(thing, ModuleType) or _of_privfl(thing):
        return id(thing)
    if isinstance(thing, type) and not _of_ones_own(thing.__module__):
        return id(thing)
    seen.add(id(thing))  # so that what refers to itself, or is reached in many ways, is looked at once

    def each(parts: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple(_held(part, depth - 1, seen) for part in parts)

    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return id(thing), hashlib.sha256(np.ascontiguousarray(thing).data).digest()
    if isinstance(thing, FunctionType):
        read = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        cells = [_content(cell) for cell in thing.__closure__ or ()]
        return id(thing), each((*cells, *read, thing.__defaults__, thing.__kwdefaults__, vars(thing)))
    if isinstance(thing, partial):
        return id(thing), each((thing.func, thing.args, thing.keywords))
    if isinstance(thing, MethodType):
        return each((thing.__func__, thing.__self__))
    if isinstance(thing, Mapping):
        return id(thing), each(thing.keys()), each(thing.values())
    if isinstance(thing, list | tuple | deque):
        return id(thing), each(thing)
    if isinstance(thing, Set):
        return id(thing), frozenset(each(thing))
    if isinstance(thing, type):
        return id(thing), each(_data_of(thing)), each(thing.__bases__)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(thing, name)]
    own = {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots if name != "__weakref__"}}
    return id(thing), tuple(own), each(own.values()), each([type(thing)]), _hidden(thing, own)


def _wraps(function: Any, usual: Callable[..., Any]) -> bool:
    """Whether ``function`` is code of privfl around the ``usual`` loss: it counts nothing, whatever else it holds."""
    if function is usual or known_function(function):
        return True
    if isinstance(function, partial):
        return not function.keywords and all(_wraps(part, usual) for part in (function.func, *function.args))
    return isinstance(function, MethodType) and shipped(type(function.__self__)) and known_function(function.__func__)


def _data_of(kind: type) -> list[Any]:
    """What stands in a class beside methods and what Python itself writes."""
    own = (one for name, one in vars(kind).items() if not (name.startswith("__") or name == "_abc_impl"))
    return [one for one in own if not isinstance(one, FunctionType | classmethod | staticmethod | property)]


def _of_the_process() -> Hashable:
    """The random generators of the whole process, as what is equal while nobody draws from them."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - whoever draws from it is looked for
    words = [one.tobytes() if isinstance(one, np.ndarray) else one for one in numpy["state"].values()]
    kept = numpy.get("has_gauss"), numpy.get("gauss")  # the second of two normal numbers
    return random.getstate(), *words, *kept, torch.get_rng_state().numpy().tobytes()


def sampled(tensor: Tensor) -> Hashable:
    """Numbers of ``tensor``, since its version does not tell of what is written by way of its ``data``."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    if (
        not plain
        or tensor.is_quantized
        or tensor.is_complex()
        or is_functorch_wrapped_tensor(tensor)
        or type(tensor.data) is not Tensor
    ):
        return None
    flat = tensor.detach().view(-1)[:: -(-tensor.numel() // SAMPLE) or 1].contiguous()
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).numpy().tobytes()


@cache
def _of_ones_own(module: str) -> bool:
    """Whether the module of that name is neither privfl's, nor Python's, nor installed."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or module.partition(".")[0] == "privfl":
        return module == "__main__"
    paths = {Path(path).resolve() for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    return isinstance(file, str) and not any(Path(file).resolve().is_relative_to(path) for path in paths)


def _of_privfl(thing: Any) -> bool:
    """Whether it is privfl's own, such as the door itself, which notes what it is asked."""
    kind = thing if isinstance(thing, FunctionType) else type(thing)
    return kind.__module__.partition(".")[0] == "privfl"


def _hidden(thing: Any, own: Mapping[str, Any]) -> str:
    """What an iterator or a random generator holds where nobody looks in, in words."""
    try:
        if isinstance(thing, np.random.Generator):
            return repr(thing.bit_generator.state)
        if isinstance(thing, torch.Generator):
            return repr(thing.get_state().tolist())
        if hasattr(thing, "getstate"):
            return repr(thing.getstate())
        return "" if own else repr(thing.__reduce_ex__(2))
    except Exception:  # whatever an object of others raises that cannot be taken apart
        return ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None
