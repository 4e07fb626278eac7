"""What values and code are, as a hash: the same in every process, another one where something else is computed.

Code is told by what Python compiled of it and by all that it refers to: helpers, constants, closures, defaults, base
classes. Comments and line numbers do not count. Code of privfl, of the libraries whose versions are recorded and of
Python itself is told by its name, since versions are compared apart; code of other installed packages by its name and
the list of hashes that it was installed with. So are the random generators of the whole process, whose state is no part
of what was asked for.
"""

from __future__ import annotations

import copyreg
import hashlib
import importlib
import io
import logging
import random
import re
import secrets
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from privfl.simulation.contents import content_of, name_of
from privfl.simulation.origins import global_names, own_binary, own_imports, package_of, reads_by_string, told

_PIECE = 1 << 24
_WATCHING = (logging.Logger, logging.Handler, io.IOBase, weakref.ref, type(threading.Lock()), type(threading.RLock()))
"""What watches or guards a computation, and takes no part in its result."""
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
_SLOT = types.MemberDescriptorType
_ADDRESS = "_torchdynamo_wrapper_id"
"""What ``torch.compile`` writes onto a module: where it lies in this process."""
_OFFSET = re.compile(r"__(vectorcall|weaklist|dict)offset__")
"""Where a compiled type keeps what it needs itself; some tell an address."""
_CONTAINERS = (list, tuple, deque, Set, Mapping, np.ndarray, partial, Enum, io.BytesIO, io.StringIO)
_REDUCING = ("__reduce_ex__", "__reduce__", "__getstate__")
_NAMED = (*_DESCRIPTORS, types.MethodDescriptorType, types.ClassMethodDescriptorType, torch.dtype, torch.device)
_BOOKKEEPING = re.compile(
    r"__(module|dict|weakref|doc|firstlineno|static_attributes|dataclass_\w+|match_args|orig_bases|parameters)__"
    r"|__(annotat\w+|abstractmethods|slots|slotnames|qualname|classcell|type_params)__|_abc_impl"
    r"|__pydantic_(core_schema|validator|serializer)__"
)
"""What Python writes into a class beside what stands in it, and Pydantic with the address of the class."""
_EVERYBODYS: Mapping[str, Any] = {
    "random": getattr(random.random, "__self__", None),
    "numpy.random": getattr(np.random.rand, "__self__", None),
    "torch": torch.default_generator,
}
"""The random generators of the whole process."""
OF_EVERY_MODULE = {f"__{one}__" for one in ("name", "doc", "package", "loader", "spec", "file", "cached", "builtins")}
_GENERATED = re.compile(r"__(init|repr|eq|hash|setattr|delattr|lt|le|gt|ge|replace|getstate|setstate)__")
"""Methods that ``dataclass`` writes."""


class Identity:
    """The hash of one thing, with all that it refers to.

    Args:
        thing: settings, a function, a class, a model, arrays, …

    Attributes:
        digest: 64 hexadecimal digits.
        unknown: the types that were met and cannot be told apart by their content; the hash holds their names alone.
    """

    def __init__(self, thing: Any) -> None:
        self.unknown: set[str] = set()
        self._done: dict[tuple[int, bool], bytes] = {}
        self._open: dict[int, int] = {}
        self._dead: set[int] = set()
        self._kept: list[Any] = []  # a number of id() names one object only while that lives
        self.digest = self._of(thing, loose=True).hex()

    @property
    def arrays(self) -> list[Tensor | NDArray[Any]]:
        """The tensors and arrays of numbers among what was met, each once."""
        return [one for one in self.met(Tensor | np.ndarray) if isinstance(one, Tensor) or one.dtype.kind in "buif"]

    @property
    def lists(self) -> list[list[Any]]:
        """The lists of numbers alone among what was met, the values of tables of such among them, each once."""
        met = (one for one in self.met(list | tuple | deque | Mapping) if one)
        lists = (list(one.values() if isinstance(one, Mapping) else one) for one in met)
        return [one for one in lists if all(_is_number(number) and id(number) not in self._dead for number in one)]

    def met(self, kinds: Any) -> list[Any]:
        """What was met of these ``kinds``, each once."""
        return list(
            {id(one): one for one in self._kept if isinstance(one, kinds) and id(one) not in self._dead}.values()
        )

    def _of(self, thing: Any, *, loose: bool) -> bytes:
        """The hash of ``thing``; ``loose`` where it is a setting, whose 1 and 1.0, lists and tuples are the same."""
        atom = _atom(thing, loose)
        if atom is not None:
            return _hash(type(thing).__name__ if not loose or isinstance(thing, str | bytes) else "", atom)
        place = id(thing)
        if place in self._open:
            return _hash("again", self._open[place])
        if (place, loose) not in self._done:
            self._open[place] = len(self._open)
            self._kept.append(thing)
            found, written_on = self._inside(thing, loose), self._written_on(thing)
            self._done[place, loose] = self._each("on", [found, written_on]) if written_on else found
            del self._open[place]
        return self._done[place, loose]

    def _each(self, kind: str, things: Iterable[Any], loose: bool = False) -> bytes:
        return _hash(kind, *(self._of(thing, loose=loose) for thing in things))

    def _items(self, kind: str, items: Mapping[Any, Any], loose: bool = False) -> bytes:
        return self._each(kind, (part for pair in items.items() for part in pair), loose)

    def _everybodys(self, thing: Any) -> str:
        """Of what the whole process has the random generator ``thing`` is, empty if it is none."""
        return next((name for name, one in _EVERYBODYS.items() if one is thing), "")

    def _inside(self, thing: Any, loose: bool) -> bytes:
        if name := self._everybodys(thing):
            return _hash("everybody's", name)
        if isinstance(thing, Tensor):
            try:
                return _tensor(thing)
            except RuntimeError:  # somebody kept a tensor of a vmap that is over, and nobody can say what it holds
                self.unknown.add("torch:Tensor")
                self._dead.add(id(thing))
                return secrets.token_bytes(32)
        if isinstance(thing, np.ndarray) and thing.dtype != object:
            return _hash("array", thing.dtype.str, thing.shape, *_array_pieces(thing))
        if isinstance(thing, np.ndarray | list | tuple | deque | Set):
            if isinstance(thing, Set):
                return _hash("set", *sorted(self._of(one, loose=loose) for one in thing))
            kind = "sequence" if loose else type(thing).__name__
            return self._each(kind, thing.tolist() if isinstance(thing, np.ndarray) else thing, loose)
        if isinstance(thing, Mapping):
            return self._items("mapping", _in_order(thing) if loose else thing, loose)
        if isinstance(thing, partial):
            return self._each("partial", (thing.func, thing.args, thing.keywords), loose)
        if isinstance(thing, io.BytesIO | io.StringIO):
            return self._each("buffer", (thing.getvalue(), thing.tell()))
        if isinstance(thing, _NAMED) or (isinstance(thing, _WATCHING) and package_of(type(thing))):
            return _hash("named", type(thing).__qualname__, repr(thing) if isinstance(thing, _NAMED) else "")
        if isinstance(thing, types.ModuleType):
            return self._module(thing)
        if isinstance(thing, type):
            return self._class(thing)
        return self._code_or_object(thing, loose)

    def _written_on(self, thing: Any) -> dict[str, Any]:
        """What stands in slots of ``thing``, and on a container or member beside its content."""
        bases = [base for base in type(thing).__mro__ if not package_of(base)]
        slots = [name for base in bases for name, one in vars(base).items() if isinstance(one, _SLOT)]
        slots = [name for name in slots if not _OFFSET.fullmatch(name)]
        found = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        if isinstance(thing, _CONTAINERS) and hasattr(thing, "__dict__") and not isinstance(thing, np.memmap):
            found |= vars(thing)
        if isinstance(thing, defaultdict):
            found["default_factory"] = thing.default_factory
        return found

    def _code_or_object(self, thing: Any, loose: bool) -> bytes:
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, types.CodeType):
            return self._code(thing)
        if isinstance(thing, types.MethodType | staticmethod | classmethod):
            return self._each("method", (thing.__func__, getattr(thing, "__self__", None)))
        if isinstance(thing, property):
            return self._each("property", (thing.fget, thing.fset, thing.fdel))
        if isinstance(thing, cached_property):
            return self._of(thing.func, loose=False)
        if isinstance(thing, types.BuiltinFunctionType | types.MethodWrapperType):
            owner: Any = thing.__self__
            if isinstance(owner, types.ModuleType):
                owner = None if owner.__name__ == "builtins" else own_binary(owner.__name__) or owner
            return self._each("builtin", (thing.__qualname__, owner))
        if isinstance(thing, Enum):
            return self._each("member", (type(thing), thing.name, thing.value), loose)
        wrapped = getattr(thing, "__wrapped__", None)
        if callable(wrapped) and package_of(type(thing)):  # such as functools.cache around a function
            return self._each("wrapped", (type(thing), wrapped))
        if name := name_of(thing):
            return _hash("by name", name, told(name.partition(".")[0]))
        try:
            content = content_of(thing)
        except Exception:  # whatever a type of others raises that cannot be looked into
            return self._unknown(type(thing))
        if content is not None:
            beside = {} if package_of(type(thing)) else getattr(thing, "__dict__", {})
            return self._each("content", (type(thing), *content, beside))
        return self._object(thing, loose)

    def _object(self, thing: Any, loose: bool) -> bytes:
        kind = type(thing)
        settings = is_dataclass(thing)
        if settings and package_of(kind):
            own = {item.name: getattr(thing, item.name) for item in fields(thing) if item.init}
        elif hasattr(thing, "__dict__"):
            lazy = {name for base in kind.__mro__ for name in lazy_names(base)}
            own = {name: value for name, value in vars(thing).items() if name not in lazy and name != _ADDRESS}
            if isinstance(thing, nn.Module):  # hooks are numbered through the whole process
                own = {
                    name: list(value.values()) if "_hooks" in name and isinstance(value, Mapping) else value
                    for name, value in own.items()
                }
        else:
            try:
                reduce = copyreg.dispatch_table.get(kind)
                reduced = thing.__reduce_ex__(2) if reduce is None else reduce(thing)
            except Exception:  # whatever a type of others raises that cannot be taken apart
                return self._unknown(kind)
            if isinstance(reduced, str):
                return _hash("global", reduced)
            parts = [list(part) if isinstance(part, Iterator) else part for part in reduced]
            return self._each("object", (kind, *parts))
        state = self._items("state", own, loose and settings)
        if isinstance(thing, nn.Module) or kind.__module__.partition(".")[0] == "privfl":
            return _hash("object", self._of(kind, loose=False), state)
        try:  # what it holds beside, as a random generator, an error or a kind of text does
            reduced = thing.__reduce_ex__(2)
        except Exception:
            return self._unknown(kind)
        usual = all(getattr(kind, name) is getattr(object, name) for name in _REDUCING)
        given: tuple[Any, ...] = (reduced,) if isinstance(reduced, str) else reduced[: 2 if usual else None]
        beside = [list(part) if isinstance(part, Iterator) else part for part in given]
        return _hash("object", self._of(kind, loose=False), state, self._each("beside", beside))

    def _unknown(self, kind: type) -> bytes:
        self.unknown.add(f"{kind.__module__}:{kind.__qualname__}")
        return _hash("unknown", kind.__module__, kind.__qualname__)

    def _class(self, kind: type) -> bytes:
        if package := package_of(kind):
            return _hash(package, kind.__module__, kind.__qualname__)
        made_by = [] if type(kind) is type else [self._of(type(kind), loose=False)]
        made_by += [] if (binary := own_binary(kind.__module__)) is None else [binary]
        return _hash("class", self._each("bases", kind.__bases__), self._items("body", self._body(kind)), *made_by)

    def _body(self, kind: type) -> dict[str, Any]:
        return {
            name: part
            for name, part in sorted(vars(kind).items())
            if not _BOOKKEEPING.fullmatch(name)
            and not isinstance(part, _DESCRIPTORS)
            and not (is_dataclass(kind) and _GENERATED.fullmatch(name) and _is_generated(part))
        }

    def _module(self, module: types.ModuleType) -> bytes:
        if package := package_of(module):
            return _hash(package, module.__name__)
        own = {name: part for name, part in sorted(vars(module).items()) if name not in OF_EVERY_MODULE}
        if (binary := own_binary(module.__name__)) is not None:
            own["its file"] = binary
        return self._items("module", own)

    def _function(self, function: types.FunctionType) -> bytes:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        given = (function.__defaults__, function.__kwdefaults__, cells)
        if package := package_of(function):
            return self._each(package, (function.__module__, function.__qualname__, *given))
        imports = sorted(self._imported(function.__code__, function.__globals__.get("__package__")))
        return _hash(
            "function",
            self._code(function.__code__),
            self._each("given", given),
            self._items("globals", self._used(function)),
            self._items("attributes", vars(function)),
            *imports,
        )

    def _used(self, function: types.FunctionType) -> dict[str, Any]:
        """The globals that ``function`` reads, by name."""
        if reads_by_string(function.__code__):
            self.unknown.add("builtins:globals")
        names = global_names(function.__code__) - OF_EVERY_MODULE
        return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}

    def _imported(self, code: types.CodeType, package: str | None) -> Iterator[bytes]:
        """Hashes of the modules of one's own that ``code`` imports where it runs."""
        for name in own_imports(code, package):
            try:
                found = importlib.import_module(name)
            except Exception:  # whatever a module of the user's own raises; it may well never be asked for
                continue
            if not package_of(found):
                file = Path(getattr(found, "__file__", None) or "")
                yield _hash("import", file.read_bytes() if file.is_file() else "", self._of(found, loose=False))

    def _code(self, code: types.CodeType) -> bytes:
        constants = [self._code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        return _hash("code", code.co_code, code.co_exceptiontable, repr(names), counts, self._each("", constants))


def _in_order(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries of ``mapping`` as they are written, without writing values, which may be long, where words decide."""
    words = all(type(key) is str for key in mapping)
    return dict(sorted(mapping.items(), key=(lambda entry: repr(entry[0])) if words else repr))


def _hash(kind: str, *parts: Any) -> bytes:
    """A hash of ``parts``, each with its length, so that no two lists of parts run into one."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _atom(thing: Any, loose: bool) -> bytes | None:
    """What ``thing`` is where it is no more than its value, ``None`` where it is more."""
    if isinstance(thing, np.generic):
        thing = thing.item()
    if loose and isinstance(thing, int) and not isinstance(thing, bool | Enum) and abs(thing) < 1 << 53:
        thing = float(thing)
    if thing is None or thing is Ellipsis or type(thing) in (bool, int, float, complex, str, bytes, range, slice):
        return repr(thing).encode("utf-8", "surrogatepass")
    return None


def _is_number(thing: Any) -> bool:
    if isinstance(thing, Tensor):
        return thing.ndim == 0 and not thing.is_meta and not thing.is_complex()
    return isinstance(thing, float | np.floating | np.integer) or (type(thing) is int and abs(thing) < 1 << 53)


def _tensor(tensor: Tensor) -> bytes:
    if is_lazy(tensor):  # it has neither shape nor values yet
        return _hash("tensor", type(tensor).__name__, str(tensor.dtype))
    tensor = tensor.detach()
    kind = (str(tensor.dtype), tuple(tensor.shape), str(tensor.layout))
    if tensor.is_meta:
        return _hash("tensor", *kind)
    dense = tensor.cpu() if tensor.layout == torch.strided else tensor.cpu().to_dense()
    flat = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return _hash("tensor", *kind, hashlib.sha256(flat.view(torch.uint8).numpy().data).digest())


def _array_pieces(array: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """Hashes of the content of ``array``, which may be larger than memory, piece by piece."""
    rows = array.reshape(1) if array.ndim == 0 else array
    step = max(1, _PIECE // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        yield hashlib.sha256(np.ascontiguousarray(rows[start : start + step]).tobytes()).digest()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def lazy_names(kind: type) -> frozenset[str]:
    """The properties that stand in ``kind``, not in its bases, and are worked out once."""
    return _lazy_names_of_package(kind) if package_of(kind) else _find_lazy_names(kind)


def _find_lazy_names(kind: type) -> frozenset[str]:
    return frozenset(name for name, part in vars(kind).items() if isinstance(part, cached_property))


_lazy_names_of_package = cache(_find_lazy_names)  # a tensor's class alone has six hundred names, and none changes


def _is_generated(part: Any) -> bool:
    """Whether ``dataclass`` wrote ``part`` of a class from the fields, whose values are looked at themselves."""
    inner = getattr(part, "__wrapped__", part)
    return isinstance(inner, types.FunctionType) and inner.__code__.co_filename == "<string>"
