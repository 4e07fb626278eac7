"""L2 norms of long rows, added up in float64 in an order that the length of a row alone decides.

PyTorch turns all rows into float64 before it squares them: ten rows of 36,864 numbers take an Intel Xeon 0.32 ms, here
0.05 by a loop that Numba compiles. Until that pays, and without it, NumPy gives the same bits in up to 0.44 ms. Squares
of float32 are exact in float64, so it makes no difference whether a product is fused with a sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from privfl.compiling import once_it_pays

LONG = 8192
"""Numbers of a row from which on this is quicker, if there are several."""
LANES = 64
"""Sums side by side that a norm is added up in."""
BLOCK = 1 << 15
"""Numbers that are squared at once where nothing is compiled: 256 KiB."""
SAVED = 8e-10
"""Seconds that a number takes less by the compiled loop (an Intel Xeon)."""


def suits(values: Tensor) -> bool:
    """Whether :func:`norms` takes ``values``: long rows of float32 on a CPU, which no transform is looking at."""
    if values.dim() == 0 or values.shape[-1] < LONG or values.dtype != torch.float32:
        return False
    return not is_functorch_wrapped_tensor(values) and type(values.data) is Tensor and values.device.type == "cpu"


def norms(values: Tensor) -> Tensor:
    """The L2 norms [...] in float64 along the last dimension of ``values`` [..., n], which :func:`suits`."""
    rows = values.detach().reshape(-1, values.shape[-1]).numpy()
    found = np.empty(len(rows))
    (once_it_pays(_by_rows, rows.size * SAVED) or _in_blocks)(rows, found)
    return torch.from_numpy(found).view(values.shape[:-1])


def _by_rows(values: NDArray[Any], found: NDArray[Any]) -> None:
    """Norms ``found`` [rows] of ``values`` [rows, n]: the square of number i is added to sum i mod LANES; compiled."""
    sums = np.empty(LANES)
    for row in range(len(values)):
        sums[:] = 0.0
        for begin in range(0, values.shape[1], LANES):
            line = values[row, begin : begin + LANES]
            for i in range(len(line)):
                value = np.float64(line[i])  # the square of a large float32 overflows
                sums[i] += value * value
        width = LANES
        while width > 1:
            width //= 2
            for i in range(width):
                sums[i] += sums[i + width]
        found[row] = math.sqrt(sums[0])


def _in_blocks(values: NDArray[Any], found: NDArray[Any]) -> None:
    """The same in NumPy, which adds the lines of a block up one after the other."""
    rows, size = values.shape
    at_once, whole = max(1, BLOCK // size), size // LANES * LANES
    for first in range(0, rows, at_once):
        some = values[first : first + at_once]
        sums = np.zeros((len(some), LANES))
        for begin in range(0, whole, BLOCK):
            squares = some[:, begin : min(begin + BLOCK, whole)].astype(np.float64).reshape(len(some), -1, LANES)
            np.multiply(squares, squares, out=squares)
            squares[:, 0] += sums
            np.add.reduce(squares, axis=1, out=sums)
        rest = some[:, whole:].astype(np.float64)
        sums[:, : rest.shape[1]] += rest * rest
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        np.sqrt(sums[:, 0], out=found[first : first + at_once])
