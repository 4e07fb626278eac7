"""The bound on what one client may add to a sum: its update, scaled down to a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privfl.errors import ConfigError


@dataclass(frozen=True)
class Clip:
    """Scale a client's update to L2 norm at most ``max_norm`` > 0, before its weight is applied.

    A bound, not yet protection: one client then moves the sum by at most ``max_norm`` (zero-out relation).

    Args:
        max_norm: largest L2 norm of an update, > 0.
    """

    max_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ConfigError(f"Clip's max_norm is {self.max_norm!r}; give a positive number")

    def apply(self, update: Tensor) -> Tensor:
        """``update`` scaled in place; the norm is taken in float64 and the factor shrunk by 1e-6 to cover rounding."""
        norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        if norm > self.max_norm * (1 - 1e-6):
            update.mul_(self.max_norm * (1 - 1e-6) / norm)
        return update
