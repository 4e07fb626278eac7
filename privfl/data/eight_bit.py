"""Inputs that stay 8-bit: bytes in memory, which become float32 when a batch is taken."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 2**28
"""8-bit inputs whose float32 copy would take more bytes than this stay 8-bit; smaller ones are converted once."""


@dataclass(frozen=True, eq=False, repr=False)
class EightBitRows:
    """Rows of bytes that answer ``rows[index]`` as their float32 tensor would, with the same bits.

    Attributes:
        pixels: uint8 [M, ...], the whole array, shared with whoever gave it; it is only read.
        index: int64 [N], which row of ``pixels`` each row is; None for all of them in order.
        scale: what values are multiplied by as they become float32.
    """

    pixels: Tensor
    index: Tensor | None = None
    scale: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """[N, ...]."""
        return torch.Size((len(self), *self.pixels.shape[1:]))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.pixels.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The type of what is read."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        """Where the bytes and the batches are."""
        return self.pixels.device

    @property
    def _version(self) -> int:
        return self.pixels._version

    def __len__(self) -> int:
        return len(self.pixels if self.index is None else self.index)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """A new tensor [*rows.shape, ...] of ``rows``, an int64 tensor [...] (not a number) or a slice."""
        values = self.pixels[rows if self.index is None else self.index[rows]].to(torch.float32)
        return values if self.scale == 1 else values.mul_(self.scale)

    def only(self, rows: Tensor) -> EightBitRows:
        """These rows alone, int64 [R]; no byte of them is copied."""
        return replace(self, index=rows if self.index is None else self.index[rows])

    def to(self, device: torch.device) -> EightBitRows:
        """The same rows with their bytes on ``device``, where batches are converted; what is there is not copied."""
        index = None if self.index is None else self.index.to(device)
        return replace(self, pixels=self.pixels.to(device), index=index)


def stay_eight_bit(array: NDArray[Any], scale: float) -> bool:
    """Whether :class:`EightBitRows` take the place of a float32 copy of ``array`` [N, ...]."""
    with np.errstate(over="ignore"):
        finite = math.isfinite(np.float32(255) * np.float32(scale))
    return bool(array.dtype == np.uint8 and 4 * array.size > LARGE and finite)


def eight_bit_rows(array: NDArray[np.uint8], index: Tensor | None, scale: float) -> EightBitRows:
    """The rows ``index`` of ``array``, not copied unless torch cannot read its layout."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes to it
        return EightBitRows(torch.from_numpy(array), index, scale)
