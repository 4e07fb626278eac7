"""Inputs that need not fit in memory: rows of a memory-mapped array, read and decoded when a batch is taken."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.arrays import check_exact, check_values
from privfl.data.eight_bit import EightBitRows

_PIECE = 1 << 19
"""Values read at once: a piece stays in memory that is used over and over, which costs less than fresh pages."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedRows:
    """Rows of a memory map that answer ``rows[index]`` as a tensor would, and hold nothing but the numbers of the rows.

    What is not asked for is never read: neither copied, nor converted, nor searched for values that are not finite,
    which are refused when a batch meets them. The pages that batches touch count as this process's memory
    until the system needs them elsewhere; it can take them back at any time.

    Attributes:
        array: the whole map [M, ...] of numbers; it is only read.
        index: int64 [N], which row of ``array`` each row is.
        vocabulary: for token ids, how many there are; ``None`` for other inputs.
        scale: what values are multiplied by as they become float32.
        device: where batches go. The map itself stays where it is.
    """

    array: NDArray[Any]
    index: NDArray[np.int64]
    vocabulary: int | None = None
    scale: float = 1.0
    device: torch.device = field(default=torch.device("cpu"))

    @cached_property
    def shape(self) -> torch.Size:
        """[N, ...]."""
        return torch.Size((len(self.index), *self.array.shape[1:]))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The type of what is read: int64 for token ids, else float32."""
        return torch.float32 if self.vocabulary is None else torch.int64

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """A new tensor [*rows.shape, ...] on ``device`` of ``rows``, an int64 tensor [...] (not a number) or a slice.

        Raises:
            DataError: a value is not finite or no float32, or a token id outside the vocabulary.
        """
        where = self.index[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        values = read(self.array, where, self.vocabulary is not None, self.scale)
        flat, read_rows = values.view(-1, *self.shape[1:]), torch.from_numpy(where.ravel())
        check_values("inputs", flat, self.vocabulary, read_rows)
        return values.to(self.device)

    def only(self, rows: Tensor) -> MappedRows:
        """These rows alone, int64 [R]; nothing is read."""
        return replace(self, index=self.index[rows.numpy()])

    def to(self, device: torch.device) -> MappedRows:
        """The same rows, whose batches go to ``device``; nothing is read."""
        return replace(self, device=torch.device(device))


Rows = Tensor | MappedRows | EightBitRows
"""Inputs of many samples: ``rows[index]`` is a batch; so are ``len``, ``shape``, ``dtype``, ``device`` and ``to``."""


def is_mapped(values: object) -> bool:
    """Whether ``values`` is an array whose memory is a file's: ``np.memmap``, or a view of one."""
    while isinstance(values, np.ndarray):
        values = values.base
    return isinstance(values, mmap.mmap)


def read(
    array: NDArray[Any], rows: NDArray[np.int64], tokens: bool, scale: float = 1.0, label: str = "inputs"
) -> Tensor:
    """A new tensor ``[*rows.shape, ...]`` of these rows of ``array``: int64 for ``tokens``, else float32 × ``scale``.

    Many rows are read piece by piece, so nothing of their size but the tensor is allocated.

    Raises:
        DataError: a whole number is larger than float32 holds all of; ``label`` is what the user calls the array.
    """
    kind = np.dtype(np.int64 if tokens else np.float32)
    if rows.ndim == 1 and len(rows) > (most := max(1, _PIECE // max(1, math.prod(array.shape[1:])))):
        values = torch.empty((len(rows), *array.shape[1:]), dtype=torch.int64 if tokens else torch.float32)
        for start in range(0, len(rows), most):
            values[start : start + most] = read(array, rows[start : start + most], tokens, scale, label)
        return values
    taken = array[rows]
    if not tokens:
        check_exact(label, taken, rows)
    values = torch.from_numpy(np.ascontiguousarray(taken, dtype=kind))
    return values if tokens or scale == 1 else values.mul_(scale)
