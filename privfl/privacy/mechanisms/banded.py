"""Correlated noise by a banded Toeplitz matrix: each round takes back part of the noise of the rounds before."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.correlated import CorrelatedNoiseState, PlannedNoise, check_multiplier
from privfl.privacy.mechanisms.mechanism import AddsAt, ChannelRound, ChannelRun, Cover, Kind, Mechanism
from privfl.privacy.mechanisms.participation import Array, ParticipationPattern
from privfl.privacy.mechanisms.toeplitz import Objective, column_norms, optimised, prefix_variances
from privfl.privacy.noise.source import NoiseSource
from privfl.validation import check_count


@dataclass(frozen=True)
class BandedNoise(Mechanism):
    """Noise C⁻¹ξ at the server with C banded Toeplitz (Choquette-Choo et al., NeurIPS 2023; McKenna 2024).

    Guarantee: for one client whose contribution is left out, the whole run is one Gaussian mechanism with this noise
    multiplier, for who sees the noisy sums only, if the client's rounds are at least ``bands`` apart (then the columns
    of C that belong to them are orthogonal) or it takes part once. Nothing is assumed about how cohorts are drawn.

    Unlike the paper's, the matrix is Toeplitz, and no amplification by sampling is claimed.

    Args:
        noise_multiplier: z ≥ 0 *of the whole run*: the standard deviation of ξ is z × the bound on one client's
            contribution to one sum × the sensitivity of C over all rounds in which one client may take part.
        bands: nonzero diagonals of C, at most the rounds between two participations; ``None`` takes just as many. One
            band is independent noise. The server keeps ``bands`` − 1 vectors of the model's size in float64.
        objective: ``"mean"`` or ``"max"``: which variance of the noise on prefix sums the coefficients minimise;
            ``"square-root"``: the coefficients binom(2k, k)/4ᵏ, cut off.

    ====================================  ==================================================================
    edge case                             what happens
    ====================================  ==================================================================
    ``noise_multiplier = 0``              nothing is added; the claim is ε = ∞
    more bands than rounds                as many bands as rounds
    clients may return within the bands   refused: the claim would need the noise of dependent columns
    clients may return in the next round  refused unless ``bands`` is given: nothing would be correlated
    NaN, negative, infinite               :class:`~privfl.errors.ConfigError`
    ====================================  ==================================================================
    """

    kind: ClassVar[Kind] = "noise"

    noise_multiplier: float
    bands: int | None = None
    objective: Objective = "mean"

    def __post_init__(self) -> None:
        check_multiplier("BandedNoise", self.noise_multiplier)
        if self.bands is not None:
            check_count("BandedNoise's bands", self.bands)

    @property
    def adds_at(self) -> AddsAt:
        """At the server, which sees all rounds."""
        return "server"

    def for_run(self, run: ChannelRun) -> PlannedNoise:
        """The noise of one run, whose cost depends on how clients return."""
        return PlannedNoise(self.plan(run.pattern, run.bound * run.lengthening))

    def cover(self, round: ChannelRound) -> Cover:
        """Nothing before it is planned; then what :class:`~privfl.privacy.mechanisms.correlated.PlannedNoise` says."""
        return Cover.nothing("BandedNoise is not planned for the run")

    def plan(self, pattern: ParticipationPattern, bound: float) -> BandedPlan:
        """This noise for a run in which clients keep to ``pattern`` and add vectors of norm at most ``bound``.

        Raises:
            ConfigError: clients return too early.
        """
        free = pattern.rounds if pattern.participations == 1 else pattern.separation
        if self.bands is None and free == 1 < pattern.rounds:
            raise ConfigError(
                "BandedNoise has nothing to correlate, because a client may take part in two rounds running; use the "
                "cohort rotation"
            )
        bands = min(free if self.bands is None else self.bands, pattern.rounds)
        if not pattern.apart(bands):
            raise ConfigError(
                f"BandedNoise has {bands} bands, but a client may return after {pattern.separation} rounds; give at "
                f"most {pattern.separation} bands, or a cohort rotation with a longer period"
            )
        return BandedPlan(
            self.noise_multiplier, pattern, bound, np.array(optimised(pattern.rounds, bands, self.objective))
        )


class BandedPlan(CorrelatedNoiseState):
    """:class:`BandedNoise` for one run; ``coefficients`` [bands] are the first column of C, which begins with 1."""

    def __init__(
        self, noise_multiplier: float, pattern: ParticipationPattern, bound: float, coefficients: Array
    ) -> None:
        rounds = pattern.rounds
        errors = prefix_variances(coefficients, rounds)
        super().__init__(noise_multiplier, pattern, bound, column_norms(coefficients, rounds), errors)
        self.coefficients = coefficients
        self._forget()

    def _forget(self) -> None:
        self._latest: deque[Array] = deque(maxlen=len(self.coefficients) - 1)  # noise of the last rounds, newest first
        self._next = 0

    def _unit_noise(self, round: int, size: int, source: NoiseSource) -> Array:
        if round < self._next:  # a round is repeated: the recursion starts again at round 0
            self._forget()
        for current in range(self._next, round + 1):  # several if rounds were left out, or the run was resumed
            noise = source.stream("server", "correlated", current).normal(size)
            for coefficient, before in zip(self.coefficients[1:], self._latest, strict=False):
                torch.from_numpy(noise).sub_(torch.from_numpy(before), alpha=float(coefficient))
            self._latest.appendleft(noise)
        self._next = round + 1
        return noise
