"""Where code comes from: a package whose version or installation tells it, or its user, whose code is looked at."""

from __future__ import annotations

import dis
import hashlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "numpy", "scipy", "opacus", "cryptography", "dp_accounting", "sklearn", "pydantic", "privfl")
"""Packages whose code is told by their version."""
_CODES = 4096
"""Codes whose instructions are remembered; they never change, and are asked for in every round."""


def package_of(thing: Any) -> str:
    """What tells the code of the package that ``thing`` comes from, empty if it is the user's own."""
    if isinstance(thing, types.FunctionType):  # not its __module__, which functools.wraps copies
        name = thing.__globals__.get("__name__")
        name = name if name in sys.modules else thing.__module__  # unless it was generated
    else:
        name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    package = told(name.partition(".")[0]) if isinstance(name, str) else ""
    return "" if package and isinstance(thing, type) and _has_own_methods(thing) else package


@cache
def _has_own_methods(kind: type) -> bool:
    """Whether a class has methods of one's own, whatever its module is called."""
    methods = [part for part in vars(kind).values() if isinstance(part, types.FunctionType)]
    return any(part.__globals__.get("__name__") in sys.modules and not package_of(part) for part in methods)


@cache
def told(package: str) -> str:
    """The same of the name of a package: ``"library"``, the hash of what was installed, or nothing."""
    if package in LIBRARIES or package == "builtins":
        return "library"
    if package == "__main__":
        return ""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    origin = None if spec is None else spec.origin
    if package in sys.stdlib_module_names and origin in (None, "built-in", "frozen"):
        return "library"
    if origin is None:
        return ""
    paths, file = {name: Path(path) for name, path in sysconfig.get_paths().items()}, Path(origin)
    if any(file.is_relative_to(paths[one]) for one in ("purelib", "platlib")):
        return _installed(package)
    # A file of the user's own may bear the name of a module of Python.
    return "library" if any(file.is_relative_to(paths[one]) for one in ("stdlib", "platstdlib")) else ""


def _installed(package: str) -> str:
    """The hashes of the files of an installed ``package``, as its installer wrote them down."""
    found = []
    for name in set(importlib.metadata.packages_distributions().get(package, ())):
        for file in importlib.metadata.distribution(name).files or ():
            if file.hash is not None and file.parts[0] != "..":
                found.append(f"{file.as_posix()} {file.hash.value}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest() if found else ""


def own_binary(name: str | None) -> bytes | None:
    """The hash of the file of the module ``name``, if it is the user's own and was compiled; ``None`` else."""
    module = sys.modules.get(name or "")
    file = Path(getattr(module, "__file__", None) or "")
    if module is None or not file.name.endswith(tuple(EXTENSION_SUFFIXES)) or package_of(module):
        return None
    return hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""


@lru_cache(_CODES)
def global_names(code: types.CodeType) -> frozenset[str]:
    """The global names that ``code`` reads, nested functions and classes included."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(found.union(*(global_names(one) for one in code.co_consts if isinstance(one, types.CodeType))))


@lru_cache(_CODES)
def reads_by_string(code: types.CodeType) -> bool:
    """Whether ``code`` may read globals that it does not name."""
    names = global_names(code)
    return bool(names & {"globals", "eval", "exec"}) or ("sys" in names and "modules" in _names(code))


def _names(code: types.CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def own_imports(code: types.CodeType, package: str | None) -> Iterator[str]:
    """What modules of one's own that ``code`` of ``package`` imports where it runs may be called."""
    for name in (*_imports(code), *_imported_by_string(code)):
        if not told(name.partition(".")[0]):
            yield from (name, f"{package}.{name}".rstrip("."))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from own_imports(inner, package)


@lru_cache(_CODES)
def _imported_by_string(code: types.CodeType) -> tuple[str, ...]:
    """The texts in ``code`` that may name modules for a function that imports them."""
    if not {"import_module", "__import__", "modules"} & {*code.co_names}:
        return ()
    return tuple(one for one in code.co_consts if isinstance(one, str) and all(map(str.isidentifier, one.split("."))))


@lru_cache(_CODES)
def _imports(code: types.CodeType) -> tuple[str, ...]:
    """The names of the modules that ``code`` imports, nested functions and classes not included."""
    return tuple(str(one.argval) for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME")
