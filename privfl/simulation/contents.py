"""What objects hold that Python cannot take apart by pickling, and by which names packages have what can be called.

Content is told exactly or not at all: two objects with equal parts compute the same, and what has none here is unknown.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import secrets
import struct
import sys
import types
from collections.abc import Callable, Iterator, ValuesView
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.simulation.origins import own_binary, package_of

_HASHES = ("_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "hmac")
"""Modules whose objects add up bytes to a hash: equal hashes of equal kinds are equal states, or SHA-2 is broken."""
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_MANGLED = re.compile(r"___torch_mangle_\d+")


def name_of(thing: Any) -> str:
    """By which name Python or an installed package has ``thing`` itself, which can be called; empty if by none."""
    if isinstance(thing, np.ufunc):
        packages = [one for one in ("numpy", "scipy.special") if one in sys.modules]
        return next((f"{one}.{thing.__name__}" for one in packages if _found(one, thing.__name__) is thing), "")
    if isinstance(thing, _OPERATORS):
        return str(thing) if str(thing).partition(".")[0] in ("aten", "prim", "prims") else ""
    try:
        module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    except Exception:  # whatever an object of others raises that makes up its attributes
        return ""
    if not (callable(thing) and isinstance(module, str) and isinstance(name, str)):
        return ""
    owner = sys.modules.get(module)
    if owner is None or not package_of(owner):
        return ""
    compiled = _is_cython(thing) and "<" not in name  # which is no closure, of whose cells nobody knows
    return f"{module}.{name}" if compiled or _found(module, name) is thing else ""


def content_of(thing: Any) -> tuple[Any, ...] | None:
    """The parts of what ``thing`` holds, ``None`` where it is of no kind that is known here.

    Raises:
        Exception: whatever its kind raises that cannot be looked into, such as a memoryview that was released.
    """
    if _is_cython(thing):
        if "<" in thing.__qualname__:
            raise ValueError("its cells cannot be read")
        return thing.__qualname__, own_binary(thing.__module__), thing.__defaults__, thing.__kwdefaults__
    if type(thing).__module__ in _HASHES and hasattr(thing, "digest"):
        told = thing.digest(64) if not thing.digest_size else thing.digest()
        return thing.name, thing.digest_size, thing.block_size, told
    for kind, parts in _PARTS.items():
        if isinstance(thing, kind):
            return tuple(parts(thing))
    return None


def _found(module: str, name: str) -> Any:
    """What ``module`` has by the dotted ``name``."""
    thing: Any = sys.modules[module]
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing


def _is_cython(thing: Any) -> bool:
    """Whether Cython compiled the function ``thing``, which writes its address among its attributes."""
    return type(thing).__module__.startswith("_cython_") and type(thing).__name__ == "cython_function_or_method"


def _mapped(memory: mmap.mmap) -> Iterator[Any]:
    yield from (memory[:], memory.tell())


def _stored(storage: Any) -> Iterator[Any]:
    untyped = getattr(storage, "_untyped_storage", storage)
    yield torch.empty(0, dtype=torch.uint8, device=untyped.device).set_(untyped)
    yield getattr(storage, "dtype", None)


def _universal(function: np.ufunc) -> Iterator[Any]:
    """Of one that packages do not have: the function of one's own that it was made from."""
    made_from = gc.get_referents(function)
    if not made_from:
        raise ValueError("it was compiled")
    yield from (function.__name__, function.nin, function.nout, made_from)


def _loaded(library: ctypes.CDLL) -> Iterator[Any]:
    raise ValueError("it is of no package")


def _scripted(thing: Any) -> Iterator[Any]:
    """Of a module or function that TorchScript compiled: its graphs with their constants, and what modules hold.

    Not what it would be saved as: there attributes stand in an order that another seed of Python's hashes changes.
    """
    if isinstance(thing, torch.jit.ScriptFunction):
        yield _graph(thing.inlined_graph)
        return
    yield dict(sorted(thing.state_dict().items()))
    for name, module in sorted(thing.named_modules()):
        compiled = module._c
        kind: Any = torch._C.ConcreteModuleType.from_jit_type(compiled._type())
        yield name, {one: getattr(module, one) for one in sorted(kind.get_attributes()) if hasattr(module, one)}
        yield {one: _graph(compiled._get_method(one).inlined_graph) for one in sorted(compiled._method_names())}


def _graph(graph: Any) -> tuple[str, list[Tensor]]:
    """A graph of TorchScript's as text, without places in files, and the tensors that the text leaves out."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        """Classes of one name are told apart by how many a process had compiled before."""
        return numbers.setdefault(found[0], f"number {len(numbers)}")

    constants = graph.findAllNodes("prim::Constant", recurse=True)
    tensors = [one.t("value") for one in constants if one.hasAttribute("value") and one.kindOf("value") == "t"]
    return _MANGLED.sub(numbered, graph.str(False)), tensors


def _match(match: re.Match[Any]) -> Iterator[Any]:
    yield from (match.re, match.string, match.regs, match.pos, match.endpos)


_PARTS: dict[Any, Callable[[Any], Iterator[Any] | tuple[Any, ...]]] = {
    struct.Struct: lambda made: (made.format,),
    memoryview: lambda view: (np.asarray(view), view.format, view.readonly),
    mmap.mmap: _mapped,
    secrets.SystemRandom: lambda made: (vars(made),),
    ValuesView: lambda values: (list(values),),
    types.CellType: lambda cell: (cell.cell_contents,),
    re.Match: _match,
    np.ufunc: _universal,
    np.flatiter: lambda places: (places.base, places.index),
    torch.finfo | torch.iinfo: lambda limits: (limits.dtype,),
    torch.UntypedStorage | torch.TypedStorage: _stored,
    torch.jit.ScriptModule | torch.jit.ScriptFunction: _scripted,
    ctypes.CDLL: _loaded,
}
"""For each kind the parts of what it holds."""
