"""What a part holds, as tables whose rows could be examples: arrays of all kinds, lists, and columns side by side."""

from __future__ import annotations

import array
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.recfunctions import structured_to_unstructured
from numpy.typing import NDArray
from torch import Tensor

from privfl.simulation.every_state import EveryState

Array = Tensor | NDArray[Any]
BESIDE = 8
"""Columns that a table may have beside an example's values, such as its target or its number."""
COLUMNS = 4096
"""Columns of equal length that are taken for one table, at most."""
_NUMBERS = "buif"


def arrays_of(held: EveryState) -> list[Array]:
    """The arrays that ``held`` met, those with named columns, of complex numbers, and buffers of numbers among them."""
    found = list(held.arrays)
    for one in held.met(np.ndarray | array.array | memoryview):
        if not isinstance(one, np.ndarray):
            one = _buffer(one)
        elif one.dtype.kind in _NUMBERS:
            continue
        if one.dtype.names is not None:
            named = [name for name in one.dtype.names if one.dtype[name].base.kind in _NUMBERS]
            found += [structured_to_unstructured(one[named], dtype=np.float64)] if named else []
        elif one.dtype.kind == "c":
            found.append(one.real)
        elif one.dtype.kind in _NUMBERS:
            found.append(one)
    return [one.real if isinstance(one, Tensor) and one.is_complex() else one for one in found]


def lists_of(held: EveryState) -> list[Array]:
    """The lists of numbers that ``held`` met, and as tables the lists and mappings of columns of one length."""
    found: list[Array] = [_listed(one) for one in held.lists]
    for one in held.met(list | tuple | Mapping):
        columns = list(one.values() if isinstance(one, Mapping) else one)
        lengths = {_length_of(column) for column in columns} if 1 < len(columns) <= COLUMNS else set()
        if len(lengths) == 1 and max(lengths) > 1:
            found.append(np.column_stack([_listed(column) for column in columns]))
    return found


def tables_in(array: Array, shape: Sequence[int], *, telling: bool) -> Iterator[Array]:
    """The tables [R, width] that ``array`` can be read as, where an example of this ``shape`` is ``width`` values.

    ``telling``: examples do not equal other numbers by chance, so that readings count too that many arrays have.
    """
    width = math.prod(shape)
    if isinstance(array, Tensor):
        if array.is_meta:
            return
        array = array.detach() if array.layout == torch.strided else array.detach().to_dense()
    there = tuple(array.shape)
    if width <= 1:
        return
    if any(math.prod(there[place:]) == width for place in range(len(there))):
        yield array.reshape(-1, width)
    if len(there) == 2 and there[0] == width:  # as a table of pandas lies in memory
        yield array.T
    if len(shape) == 3 and there[-3:] == (*shape[1:], shape[0]) and there[-3:] != tuple(shape):  # channels last
        yield (array.movedim(-1, -3) if isinstance(array, Tensor) else np.moveaxis(array, -1, -3)).reshape(-1, width)
    if not telling:
        return
    if len(there) == 1 and there[0] > width and there[0] % width == 0:  # one row after another
        yield array.reshape(-1, width)
    if len(there) == 2:
        for first in range(there[1] - width + 1 if width < there[1] <= width + BESIDE else 0):
            yield array[:, first : first + width]


def _buffer(held: Any) -> NDArray[Any]:
    """An array over an ``array.array`` or a view of memory; empty if that is no buffer of numbers."""
    try:
        return np.asarray(held)
    except (TypeError, ValueError, BufferError):  # of a type that NumPy does not know, or given back already
        return np.empty(0)


def _length_of(column: Any) -> int:
    """How many numbers a ``column`` has, 0 if it is none."""
    if isinstance(column, Tensor | np.ndarray):
        real = column.dtype.kind in _NUMBERS if isinstance(column, np.ndarray) else not column.is_complex()
        return len(column) if column.ndim == 1 and real else 0
    if isinstance(column, list | tuple):
        return len(column) if all(isinstance(one, int | float | np.number) for one in column) else 0
    return 0


def _listed(numbers: Any) -> NDArray[np.float64]:
    """Numbers as an array; one may be a parameter, or lie on a device."""
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().cpu().numpy()
    if isinstance(numbers, np.ndarray):
        return numbers.astype(np.float64)
    return np.array([one.item() if isinstance(one, Tensor) else one for one in numbers], dtype=np.float64)
