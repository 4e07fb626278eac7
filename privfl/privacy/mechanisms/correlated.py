"""Noise that is correlated over the rounds, so that it partly cancels in the sum of all rounds: the matrix mechanism.

Let row t of G be the sum of round t, to which each client adds a vector of norm at most ``bound``. The server releases
G + C⁻¹ξ with Gaussian ξ, which is C⁻¹ applied to CG + ξ, hence a Gaussian mechanism whose sensitivity is the largest
‖C(G − G′)‖ over the rounds in which one client may take part (Denisov et al., "Improved differential privacy for
SGD via optimal private linear operators on adaptive streams", NeurIPS 2022, who show that rounds may depend on earlier
releases). The model after t rounds carries the prefix sum of the first t rows, whose noise is smaller than that of
independent noise of the same cost. No sampling is assumed and none amplifies the claim; what must hold is the
pattern in which clients return (:mod:`privfl.privacy.mechanisms.participation`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from dp_accounting import GaussianDpEvent
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.mechanism import AddsAt, ChannelRound, Cover, Kind, Mechanism, ServerNoise, Tensors
from privfl.privacy.mechanisms.participation import Array, ParticipationPattern
from privfl.privacy.noise.source import NoiseSource, release_grid
from privfl.validation import check_noise


class CorrelatedNoiseState(ABC):
    """Correlated noise for one run: how large it is, what it costs, and the noise itself round by round.

    Guarantee: for one client whose contribution is left out, all releases of the run together are one Gaussian
    mechanism with ``noise_multiplier``, as long as its participations keep to ``pattern`` and every sum moves by at
    most ``bound`` in L2. For one example of a client the sum may swing through twice the bound: account under
    replace-one. A run that stops early, or a round that is given up, costs no more.

    The columns of C that belong to one client's rounds are orthogonal in every strategy here. The squared sensitivity
    is therefore a sum over its rounds, and a client that takes part less often can be charged for what it did.

    ====================================  ==================================================================
    edge case                             what happens
    ====================================  ==================================================================
    ``noise_multiplier = 0``              nothing is added; the claim is ε = ∞
    a round outside of the run            :class:`~privfl.errors.ConfigError`: nothing was planned for it
    a round without any client            noise as in every other round
    a resumed run, rounds out of order    the same noise, drawn again from the labels of the rounds before
    the bound changes during the run      no adaptive clipping; a bound of one's own is cut off at the planned one
    ====================================  ==================================================================

    Args:
        noise_multiplier: z ≥ 0 of the whole run.
        pattern: of participation.
        bound: L2 norm of one client's contribution to one sum, > 0.
        columns: squared norms [rounds] of the columns of C.
        prefix_variances: variance [rounds] of the noise on prefix sums for ξ of variance 1.
    """

    def __init__(
        self,
        noise_multiplier: float,
        pattern: ParticipationPattern,
        bound: float,
        columns: Array,
        prefix_variances: Array,
    ) -> None:
        if not 0 < bound < math.inf:
            raise ConfigError(f"the bound that correlated noise covers is {bound!r}; give a positive number")
        self.noise_multiplier, self.pattern, self.bound = noise_multiplier, pattern, bound
        self.columns = columns
        self.sensitivity = math.sqrt(pattern.largest_total(columns))
        self.deviation = noise_multiplier * self.sensitivity * bound
        if 0 < self.deviation < 2.0**-1000 or not math.isfinite(self.deviation):
            raise ConfigError(
                f"correlated noise has the standard deviation {self.deviation!r}; give a bound and a noise multiplier "
                "of ordinary size"
            )
        self._unit_variances = prefix_variances
        self._drawn: tuple[bytes, int] | None = None

    @property
    def event(self) -> GaussianDpEvent:
        """What all releases of the run cost a client together, at most; charge it once."""
        return GaussianDpEvent(self.noise_multiplier)

    def participation_event(self, round: int) -> GaussianDpEvent:
        """What taking part in ``round`` costs; over any rounds of the pattern these compose to :attr:`event` at most.

        Raises:
            ConfigError: ``round`` is not one of the run's.
        """
        self._check(round)
        return GaussianDpEvent(self.noise_multiplier * self.sensitivity / math.sqrt(self.columns[round]))

    def prefix_deviations(self) -> Array:
        """Standard deviation [rounds] of the noise on each number of the sum of rounds 0 … t."""
        deviations: Array = self.deviation * np.sqrt(self._unit_variances)
        return deviations

    @property
    def mean_error(self) -> float:
        """Mean variance of the noise on prefix sums, in units of (noise multiplier × bound)²."""
        return float(self.sensitivity**2 * self._unit_variances.mean())

    @property
    def max_error(self) -> float:
        """Largest variance of the noise on prefix sums, in the same units."""
        return float(self.sensitivity**2 * self._unit_variances.max())

    def add_(self, total: Tensor, round: int, source: NoiseSource) -> Tensor:
        """Add the noise of ``round`` (from 0) to ``total`` in place, and round it to the grid of the fresh noise.

        ``total`` is float32 or float64 of any shape, on any device. Noise is a function of the source's key, the round
        and the number of elements alone; the plan keeps what the next round needs, and draws it again if it has not.

        Raises:
            ConfigError: the round is not one of the run's, or the tensor is of another type; it is then untouched.
        """
        self._check(round)
        if total.dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"noise cannot be added to a tensor of {total.dtype}: convert it to float32 or float64.")
        if self.deviation == 0:
            return total
        if self._drawn != (source.key, total.numel()):
            self._forget()
            self._drawn = source.key, total.numel()
        grid = release_grid(self.deviation)
        noisy = torch.from_numpy(self._unit_noise(round, total.numel(), source) * (self.deviation / grid))
        noisy += total.detach().cpu().double().reshape(-1) / grid
        with torch.no_grad():
            total.copy_((noisy.round_() * grid).view(total.shape))
        return total

    def _check(self, round: int) -> None:
        if not 0 <= round < self.pattern.rounds:
            raise ConfigError(
                f"round {round} is none of the {self.pattern.rounds} rounds that the noise is planned for; plan more"
            )

    @abstractmethod
    def _unit_noise(self, round: int, size: int, source: NoiseSource) -> Array:
        """Row ``round`` of C⁻¹ξ [size] for ξ of variance 1; the caller leaves the array as it is."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what is kept of earlier rounds: the key or the size is another one."""


@dataclass(frozen=True)
class PlannedNoise(Mechanism):
    """Correlated noise as ``TreeNoise`` and ``BandedNoise`` plan it for one run; ``state`` draws it."""

    kind: ClassVar[Kind] = "noise"

    state: CorrelatedNoiseState

    @property
    def adds_at(self) -> AddsAt:
        """At the server, which sees all rounds."""
        return "server"

    def at_server(self, total: Tensors, noise: ServerNoise, round: ChannelRound) -> None:
        """Add this round's noise to the sum."""
        self.state.add_(total["update"], round.number, noise.source)

    def cover(self, round: ChannelRound) -> Cover:
        """This round's part of the Gaussian mechanism that the whole run is."""
        if self.state.noise_multiplier == 0:
            return Cover.nothing("the multiplier of the correlated noise is 0")
        return Cover.gaussian(self.state.participation_event(round.number))


def check_multiplier(name: str, noise_multiplier: float) -> None:
    """Raise :class:`ConfigError` unless ``noise_multiplier`` is one."""
    check_noise(f"{name}'s noise_multiplier", noise_multiplier)
