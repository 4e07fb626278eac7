"""``torch.func.vmap`` as privfl calls it: without PyTorch's warnings that an operator is slow under it.

They ask to be reported to PyTorch, once for each operator and place, about a call that users never wrote, and nothing
in the result depends on it. What users call themselves warns as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch._C import _functorch

_SWITCHES: Any = _functorch  # PyTorch's stubs leave out what switches them


class _Quiet:
    """Keeps the warnings off while any thread is inside: PyTorch has one switch for all of them."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            _SWITCHES._set_vmap_fallback_warning_enabled(False)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    _SWITCHES._set_vmap_fallback_warning_enabled(True)


_QUIET = _Quiet()


def vmap(function: Callable[..., Any], in_dims: Any = 0, **options: Any) -> Callable[..., Any]:
    """``torch.func.vmap`` of ``function``; while it is called, operators without a batching rule do not warn."""
    mapped = torch.func.vmap(function, in_dims, **options)

    def call(*args: Any, **given: Any) -> Any:
        with _QUIET():
            return mapped(*args, **given)

    return call
