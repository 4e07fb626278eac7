"""Noise on the sums over samples that an algorithm takes besides gradients: label counts, prototypes, losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privfl.plain_tensors import check_plain
from privfl.validation import Settings, check_bound, check_noise


@dataclass(frozen=True)
class NoisyTotal(Settings):
    """Gaussian noise on one of an algorithm's totals: clip every sample's statistic, add up, add noise.

    Guarantee: adding or removing one sample moves the sum by at most ``max_norm`` in L2, so one total is the Gaussian
    mechanism with this noise multiplier for one sample. No sampling amplifies it, and every round's total costs again.

    Args:
        statistic: name of the total, one of the algorithm's ``statistics``.
        max_norm: C > 0, L2 bound of one sample's statistic, all its numbers taken together.
        noise_multiplier: z ≥ 0, standard deviation of the noise divided by C.

    ==========================  ===============================================================
    edge case                   what happens
    ==========================  ===============================================================
    ``noise_multiplier = 0``    statistics are clipped; the claim is ε = ∞
    a statistic is not finite   it counts as zero
    NaN, negative, infinite     :class:`~privfl.errors.ConfigError`
    ==========================  ===============================================================
    """

    statistic: str
    max_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_bound("NoisyTotal's max_norm", self.max_norm)
        check_noise("NoisyTotal's noise_multiplier", self.noise_multiplier)

    def clip(self, values: Tensor) -> Tensor:
        """``values`` [B, ...] in float64, every row scaled to norm at most ``max_norm``, 0 where it is not finite.

        In float32 the rounding of a sum over many rows would exceed what one row may move it by.

        Raises:
            ConfigError: they are a tensor of a kind of its own.
        """
        values = check_plain(values, f"what the statistic '{self.statistic}' gives")
        flat = values.reshape(len(values), math.prod(values.shape[1:])).double()
        norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        factors = self.max_norm * (1 - 1e-6) / norms.clamp_min(self.max_norm * (1 - 1e-6))
        clipped: Tensor = (flat * factors).where(norms.isfinite(), 0)
        return clipped.view(values.shape)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each number of the sum."""
        return self.max_norm * self.noise_multiplier
