"""The bound on what one client may add to a sum: its update, scaled down to a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.errors import ConfigError
from privfl.privacy.mechanisms.mechanism import ChannelRound, Kind, Mechanism, Tensors
from privfl.privacy.noise.source import NoiseStream

LANES = 512
"""Sums that a norm is added up in."""
BLOCK = 32 * LANES
"""Numbers that are squared at once where nothing is compiled: 128 KiB."""
SAVED = 4e-10
"""Seconds that a number takes less by the compiled loop (AMD EPYC)."""


@dataclass(frozen=True)
class Clip(Mechanism):
    """Scale a client's update to L2 norm at most ``max_norm`` > 0, before its weight is applied.

    A bound, not yet protection: leaving one client out then moves the sum by at most ``max_norm``.

    Args:
        max_norm: largest L2 norm of an update, > 0.
    """

    kind: ClassVar[Kind] = "bound"
    nonexpansive: ClassVar[bool] = True  # it projects onto a ball

    max_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ConfigError(f"Clip's max_norm is {self.max_norm!r}; give a positive number")

    def norm_bound(self, server: Tensors) -> float:
        """``max_norm``, whatever the server has learnt."""
        return self.max_norm

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """``update`` scaled in place."""
        return scale_to_norm(update, self.max_norm)


def norm(update: Tensor) -> float:
    """The L2 norm of ``update`` (float32 or float64), added up in float64.

    On a CPU the squares of float32 are added up in :data:`LANES` sums side by side, the same with and without Numba: a
    factor that clips may not depend on what is installed.
    """
    if type(update.data) is not Tensor or update.device.type != "cpu" or update.dtype != torch.float32:
        return float(torch.linalg.vector_norm(update, dtype=torch.float64))
    values, sums = update.detach().reshape(-1).numpy(), np.zeros(LANES)
    (once_it_pays(_add_squares, len(values) * SAVED) or _add_squares_in_blocks)(values, sums)
    return math.sqrt(math.fsum(sums.tolist()))


def _add_squares(values: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """Add the square of number i of ``values`` [size] to ``sums`` [LANES] at i mod LANES; compiled."""
    lanes = len(sums)
    for begin in range(0, len(values), lanes):
        line = values[begin : begin + lanes]
        for i in range(len(line)):
            value = np.float64(line[i])  # the square of a large float32 overflows
            sums[i] += value * value


def _add_squares_in_blocks(values: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """The same in NumPy, which adds the lines of a block up one after the other."""
    whole = len(values) // LANES * LANES
    for begin in range(0, whole, BLOCK):
        squares = values[begin : min(begin + BLOCK, whole)].reshape(-1, LANES).astype(np.float64)
        np.multiply(squares, squares, out=squares)
        squares[0] += sums
        np.add.reduce(squares, axis=0, out=sums)
    rest = values[whole:].astype(np.float64)
    sums[: len(rest)] += rest * rest


def scale_to_norm(update: Tensor, max_norm: float) -> Tensor:
    """``update`` scaled in place to L2 norm at most ``max_norm``; the factor is shrunk by 1e-6 to cover rounding."""
    length = norm(update)
    if length > max_norm * (1 - 1e-6):
        update.mul_(max_norm * (1 - 1e-6) / length)
    return update
