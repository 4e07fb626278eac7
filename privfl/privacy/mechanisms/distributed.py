"""Noise inside a secure sum: every client adds a share, and whoever sees the sum sees at least the full noise.

The server of a secure sum learns the sum alone, so clients can protect each other: each adds integer noise to its
integer vector before it is masked, and no single share needs to hide anything. The shares are sized for the fewest
honest clients that any sum can contain. Where more survive, the sum carries more noise, never less; clients that
collude with the server subtract their own shares, and so does, in effect, a client that leaves its share out: only
honest ones count. Reducing the sum modulo 2^b is a function of the noisy sum and costs nothing.

What a client sends is an integer vector of bounded L2 norm: its update clipped to C, divided by the grid's step, and
rounded at random to neighbouring integers, again and again until the norm is within a bound
(:mod:`privfl.privacy.secagg.rounding`). The bound holds for every outcome of the rounding, and zeros stay zeros, so
the rounding costs nothing besides the longer norm.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from dp_accounting import DpEvent, NeighboringRelation, NonPrivateDpEvent
from numpy.typing import NDArray

from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.events import ADD_REMOVE, REPLACE, SkellamDpEvent
from privfl.privacy.accounting.release import Cost, Unit, unprotected
from privfl.privacy.accounting.summed_gaussian import summed_gaussian_event
from privfl.privacy.mechanisms.distributed_sum import UP, DistributedSum
from privfl.privacy.mechanisms.mechanism import AddsAt, ChannelRound, Cover, Kind, Mechanism
from privfl.privacy.noise.discrete import (
    LARGEST_GAUSSIAN_VARIANCE,
    LARGEST_SKELLAM_VARIANCE,
    SMALLEST_VARIANCE,
    discrete_gaussian,
    skellam,
)
from privfl.privacy.noise.source import NoiseStream
from privfl.validation import check_noise


@dataclass(frozen=True)
class DistributedNoise(Mechanism):
    """Noise of standard deviation ``noise_multiplier`` × C on every sum, in shares that the clients add; see below.

    The shares go to the integers that the secure sum adds up: :meth:`add_share_`.
    """

    kind: ClassVar[Kind] = "noise"

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_noise(f"{type(self).__name__}'s noise_multiplier", self.noise_multiplier)

    @property
    def adds_at(self) -> AddsAt:
        """In shares."""
        return "share"

    def share_variance(self, terms: DistributedSum) -> float:
        """The variance of one client's share, in squared steps of the grid: (z · C / step)² / survivors.

        Raises:
            PrivacyError: the share is too narrow for its proof or too wide for its sampler; the grid must change.
        """
        if self.noise_multiplier == 0:
            return 0.0
        variance = self._total(terms) / terms.survivors * UP
        lowest, highest = self._limits(terms)
        if not lowest <= variance <= highest:
            raise PrivacyError(
                f"a share of {type(self).__name__} would have variance {variance:.3g} in squared steps of the grid, "
                f"outside [{lowest:.3g}, {highest:.3g}]: take a {'finer' if variance < lowest else 'coarser'} grid"
            )
        return variance

    def _total(self, terms: DistributedSum) -> float:
        """The variance that a sum is claimed to have, slightly below what the guaranteed shares have together.

        It does not depend on their number, so that rounds with different cohorts cost the same event.
        """
        return (self.noise_multiplier * terms.levels) ** 2

    def sum_deviation(self, terms: DistributedSum, contributors: int) -> float:
        """The standard deviation of the noise on a sum with so many shares in it, in multiples of C."""
        return math.sqrt(self.share_variance(terms) * contributors) / terms.levels

    def add_share_(self, integers: NDArray[np.int64], stream: NoiseStream, terms: DistributedSum) -> NDArray[np.int64]:
        """Add one client's share to its ``integers`` [d] in place, and return them.

        ``stream`` serves this client and this round alone. A client whose update is unusable adds its share to zeros.

        Raises:
            PrivacyError: the vector exceeds the norm bound that the guarantee rests on; it is then untouched.
            ConfigError: the vector is no int64 vector of the right length.
        """
        if integers.dtype != np.int64 or integers.shape != (terms.dimension,):
            raise ConfigError(
                f"noise for {terms.dimension} int64 numbers cannot be added to {integers.dtype} of shape "
                f"{integers.shape}: encode the vector first"
            )
        norm = math.sqrt(float(np.square(integers, dtype=np.float64).sum()))
        if not norm <= terms.l2_norm:
            raise PrivacyError(
                f"an integer vector is longer than the bound {terms.l2_norm:.6g} that the noise is sized for: clip it, "
                "and round it until it is within the bound"
            )
        integers += self._draw(stream, terms.dimension, self.share_variance(terms))
        return integers

    def event(self, terms: DistributedSum, relation: NeighboringRelation = ADD_REMOVE) -> DpEvent:
        """What one sum costs under ``relation``: REPLACE_ONE for an example of a client, else leaving it out."""
        if self.noise_multiplier == 0:
            return NonPrivateDpEvent()
        self.share_variance(terms)  # refuses shares that the guarantee does not cover
        return self._event(terms, relation)

    def cost(self, terms: DistributedSum, unit: Unit) -> Cost:
        """What one sum costs a ``unit`` before everyone who sees no more than sums."""
        if self.noise_multiplier == 0:
            return unprotected("the noise multiplier of the shares is 0")
        relation = ADD_REMOVE if unit == "client" else REPLACE
        return Cost(self.event(terms, relation), relation)

    def cover_of(self, terms: DistributedSum | None) -> Cover:
        """The cover of a sum on these terms; without any there is no sum."""
        if terms is None:
            return Cover.nothing("there is no secure sum in which the shares could add up")
        return Cover(self.cost(terms, "client"), self.cost(terms, "sample"))

    @abstractmethod
    def reach(self, terms: DistributedSum, failure: float = 2.0**-40) -> int:
        """What no number's noise exceeds in a sum of the whole cohort, except with probability ``failure``.

        In steps of the grid, for all d numbers together: the room that an encoding leaves so that sums do not wrap.
        """

    @abstractmethod
    def _limits(self, terms: DistributedSum) -> tuple[float, float]:
        """The variances that a share may have."""

    @abstractmethod
    def _draw(self, stream: NoiseStream, n: int, variance: float) -> NDArray[np.int64]:
        """``n`` numbers of one share."""

    @abstractmethod
    def _event(self, terms: DistributedSum, relation: NeighboringRelation) -> DpEvent:
        """The event of a sum with the guaranteed shares."""


@dataclass(frozen=True)
class DiscreteGaussianNoise(DistributedNoise):
    """Shares from the discrete Gaussian, exactly drawn: N_Z(0, (z · C / step)² / survivors) on each number.

    Guarantee, for z = ``noise_multiplier``: whoever sees the sum, and knows the shares of every client that is not
    among the guaranteed ``survivors``, learns about one client whose update is left out (it still adds its share) what
    :mod:`privfl.privacy.accounting.summed_gaussian` says: about Δ²/(2z²C²)-zCDP, where Δ ≥ C is the norm bound after
    rounding. For one example of a client, which may move its vector through 2Δ, the event under REPLACE_ONE says about
    four times as much.

    ===============================  ==================================================================================
    edge case                        what happens
    ===============================  ==================================================================================
    ``noise_multiplier = 0``         nothing is added; the claim is ε = ∞
    NaN, negative, infinite          :class:`~privfl.errors.ConfigError`
    more clients survive             the sum carries more noise; the claim stays (post-processing)
    fewer honest clients survive     outside the guarantee: the protocol must abort below its threshold
    deviation of a share below 1/2   :class:`~privfl.errors.PrivacyError`: the theorem on sums needs more
    one survivor guaranteed          no sum is needed: every share is the whole noise (local noise), of any deviation
    the sum wraps modulo 2^b         the claim stays; the result is garbage, so leave :meth:`reach`
    ===============================  ==================================================================================

    Args:
        noise_multiplier: z ≥ 0, the standard deviation of the noise on a sum divided by the clipping bound.
    """

    def cover(self, round: ChannelRound) -> Cover:
        """What a sum with the guaranteed shares costs."""
        return self.cover_of(round.shares)

    def reach(self, terms: DistributedSum, failure: float = 2.0**-40) -> int:
        """What no number's noise exceeds in a sum of the whole cohort, except with probability ``failure``.

        Discrete Gaussians are subgaussian with their parameter as variance (Canonne, Kamath and Steinke 2020).
        """
        return math.ceil(math.sqrt(2 * terms.cohort * self.share_variance(terms) * _exponent(terms, failure)))

    def _limits(self, terms: DistributedSum) -> tuple[float, float]:
        return SMALLEST_VARIANCE if terms.survivors == 1 else 0.25, LARGEST_GAUSSIAN_VARIANCE

    def _draw(self, stream: NoiseStream, n: int, variance: float) -> NDArray[np.int64]:
        return discrete_gaussian(stream, n, variance)

    def _event(self, terms: DistributedSum, relation: NeighboringRelation) -> DpEvent:
        moves = 2 if relation is REPLACE else 1
        l2_norm, l1_norm = moves * terms.l2_norm, moves * terms.l1_norm
        return summed_gaussian_event(self._total(terms), terms.survivors, l2_norm, l1_norm, terms.dimension)


@dataclass(frozen=True)
class SkellamNoise(DistributedNoise):
    """Shares from the symmetric Skellam law, exactly drawn, of variance (z · C / step)² / survivors on each number.

    Guarantee, for z = ``noise_multiplier``: whoever sees the sum, and knows the shares of every client that is not
    among the guaranteed ``survivors``, learns about one client whose update is left out (it still adds its share) what
    :class:`~privfl.privacy.accounting.events.SkellamDpEvent` says of variance (z · C / step)² and the norm bounds
    after rounding. Sums of Skellam noise are Skellam noise, so nothing is lost by sharing, however many the shares.
    For one example of a client the norm bounds double, under REPLACE_ONE.

    ============================  =====================================================================================
    edge case                     what happens
    ============================  =====================================================================================
    ``noise_multiplier = 0``      nothing is added; the claim is ε = ∞
    NaN, negative, infinite       :class:`~privfl.errors.ConfigError`
    more clients survive          the sum carries more noise; the claim stays (post-processing)
    fewer honest clients survive  outside the guarantee: the protocol must abort below its threshold
    a share's variance > 2^48     :class:`~privfl.errors.PrivacyError`: beyond the exact sampler; take a coarser grid
    the sum wraps modulo 2^b      the claim stays; the result is garbage, so leave :meth:`reach`
    ============================  =====================================================================================

    Args:
        noise_multiplier: z ≥ 0, the standard deviation of the noise on a sum divided by the clipping bound.
    """

    def cover(self, round: ChannelRound) -> Cover:
        """What a sum with the guaranteed shares costs."""
        return self.cover_of(round.shares)

    def reach(self, terms: DistributedSum, failure: float = 2.0**-40) -> int:
        """What no number's noise exceeds in a sum of the whole cohort, except with probability ``failure``.

        Chernoff's bound: P(noise ≥ t) ≤ exp(√(v² + t²) - v - t·arsinh(t/v)) for variance v.
        """
        variance = terms.cohort * self.share_variance(terms)
        exponent = _exponent(terms, failure)
        if variance == 0:
            return 0

        def excess(t: float) -> float:
            return t * math.asinh(t / variance) - t**2 / (math.hypot(variance, t) + variance) - exponent

        above = math.sqrt(2 * variance * exponent) + 2 * exponent  # larger, by Bernstein's inequality
        return math.ceil(float(scipy.optimize.brentq(excess, 0.0, above)))

    def _limits(self, terms: DistributedSum) -> tuple[float, float]:
        return SMALLEST_VARIANCE, LARGEST_SKELLAM_VARIANCE

    def _draw(self, stream: NoiseStream, n: int, variance: float) -> NDArray[np.int64]:
        return skellam(stream, n, variance)

    def _event(self, terms: DistributedSum, relation: NeighboringRelation) -> DpEvent:
        return SkellamDpEvent(self._total(terms), terms.l2_norm, terms.l1_norm)


def _exponent(terms: DistributedSum, failure: float) -> float:
    if not 0 < failure < 1:
        raise ConfigError(f"the probability that sums wrap is {failure!r}; choose a number between 0 and 1")
    return math.log(2 * terms.dimension / failure)
