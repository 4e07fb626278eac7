"""Importing dp_accounting without the half of SciPy that few commands use.

dp_accounting imports ``scipy.signal``, ``scipy.stats``, ``scipy.optimize`` and ``scipy.fft``, which takes half a second
of every start, and most runs compute all they claim without them. While it is being imported placeholders stand for
those that nobody has imported yet; each loads its module when something of it is used. Nobody else meets one: they are
taken out of ``sys.modules`` before the import returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

LIBRARY = "dp_accounting"
LATE = ("scipy.signal", "scipy.stats", "scipy.optimize", "scipy.fft")


class Placeholder(ModuleType):
    """Stands for a module of SciPy in those who import it meanwhile."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:  # taken hold of during the import, and used afterwards
            return Part(self.__name__, name)
        return getattr(import_module(self.__name__), name)


class Part:
    """Stands for a part of such a module: a function, a distribution."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def _real(self) -> Any:
        module, name = self._place
        return getattr(import_module(module), name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._real()(*given, **named)


@contextmanager
def placeholders() -> Iterator[None]:
    """Placeholders in ``sys.modules``, for the time being."""
    standing = {name: Placeholder(name) for name in LATE if name not in sys.modules}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name, placeholder in standing.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]


class _Importer(MetaPathFinder, Loader):
    """Finds dp_accounting as everybody would, and runs it among placeholders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != LIBRARY:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._own, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        with placeholders():
            self._own.exec_module(module)


def install() -> None:
    """Let the first import of dp_accounting in this process be such a one."""
    if LIBRARY not in sys.modules and not any(isinstance(finder, _Importer) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Importer())
