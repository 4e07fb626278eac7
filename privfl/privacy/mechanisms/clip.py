"""The bound on what one client may add to a sum: its update, scaled down to a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privfl.privacy.mechanisms.mechanism import ChannelRound, Kind, Mechanism, Tensors
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.norms import norms, suits
from privfl.validation import check_bound


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
        check_bound("Clip's max_norm", self.max_norm)

    def norm_bound(self, server: Tensors) -> float:
        """``max_norm``, whatever the server has learnt."""
        return self.max_norm

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """``update`` scaled in place."""
        return scale_to_norm(update, self.max_norm)


def norm(update: Tensor) -> float:
    """The L2 norm of ``update`` (float32 or float64), added up in float64, the same with and without Numba."""
    flat = update.reshape(-1)
    found = norms(flat) if suits(flat) else torch.linalg.vector_norm(flat, dtype=torch.float64)
    return float(found)


def scale_to_norm(update: Tensor, max_norm: float) -> Tensor:
    """``update`` scaled in place to L2 norm at most ``max_norm``; the factor is shrunk by 1e-6 to cover rounding."""
    length = norm(update)
    if length > max_norm * (1 - 1e-6):
        factor = max_norm * (1 - 1e-6) / length
        if factor < torch.finfo(update.dtype).tiny:  # too small to keep its digits; its root has them all
            factor = math.sqrt(factor)
            update.mul_(factor)
        update.mul_(factor)
    return update
