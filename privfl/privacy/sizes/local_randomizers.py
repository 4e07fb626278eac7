"""Local randomisers made for sums: Laplace, Duchi's one bit, piecewise, hybrid; and the registry of all of them.

All four answer with an unbiased estimate of the clipped size itself. The last three work on x ∈ [−1, 1] (the range
mapped affinely) and follow Wang et al., "Collecting and Analyzing Multidimensional Data with Local Differential
Privacy", ICDE 2019; the one bit is Duchi, Jordan and Wainwright's (JASA 2018). Continuous answers are rounded to a grid
of 2⁻²⁰ of their scale, which removes the low bits that would tell the truth (see :mod:`privfl.privacy.noise.source`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from dp_accounting import LaplaceDpEvent, NeighboringRelation
from numpy.typing import NDArray

from privfl.privacy.accounting.release import Cost, pure_cost
from privfl.privacy.noise.source import NoiseStream, round_to_grid
from privfl.privacy.sizes.mechanism import SizeMechanism, Values
from privfl.privacy.sizes.randomized_response import RandomizedResponse

HYBRID_THRESHOLD = 0.61  # Wang et al. 2019, §III-C: below it Duchi's bit is better for every truth


@dataclass(frozen=True)
class LaplaceSize(SizeMechanism):
    """The clipped size plus Laplace noise of scale (hi − lo)/ε; variance 2((hi − lo)/ε)².

    Arguments, edge cases and errors: :class:`SizeMechanism`. One sample moves the clipped size by at most 1, so for
    the unit ``sample`` an answer costs only ε/(hi − lo).
    """

    @property
    def scale(self) -> float:
        """The scale of the noise, in samples."""
        return 2 * self.range.half_width / self.epsilon

    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> Values:
        return round_to_grid(truths + stream.laplace(truths.size, self.scale), self.scale)

    def response_variance(self, truths: Values) -> Values:
        return np.full(truths.shape, 2 * self.scale**2)

    def support(self) -> tuple[float, float]:
        return -math.inf, math.inf

    def client_cost(self) -> Cost:
        return self._cost(sensitivity=2 * self.range.half_width)

    def sample_cost(self) -> Cost:
        return self._cost(sensitivity=1.0)

    def _cost(self, sensitivity: float) -> Cost:
        """The event of a value that moves by up to ``sensitivity``, which dp_accounting files under add or remove."""
        return Cost(LaplaceDpEvent(self.scale / sensitivity), NeighboringRelation.ADD_OR_REMOVE_ONE)


@dataclass(frozen=True)
class DuchiSize(SizeMechanism):
    """One bit: ±A with P(+A) = ½ + x/(2A), A = (e^ε + 1)/(e^ε − 1); variance ((hi − lo)/2)²(A² − x²).

    Arguments, edge cases and errors: :class:`SizeMechanism`. For the unit ``client`` the cost is exactly that of binary
    randomised response at ε (truths lo and hi). For the unit ``sample`` it is smaller: one sample moves x by at most
    2/(hi − lo), hence P(+A) from p to at most p + d with d = 1/(A(hi − lo)). The ratio (p + d)/p falls with p, so it is
    largest at the least p = 1/(e^ε + 1), where it is 1 + (e^ε − 1)/(hi − lo); for the answer −A the same holds by
    symmetry (x → −x). So ε_sample = ln(1 + (e^ε − 1)/(hi − lo)).
    """

    @property
    def magnitude(self) -> float:
        """A ≥ 1, the size of the answer on the scale of x."""
        return 1.0 / math.tanh(self.epsilon / 2)

    @property
    def sample_epsilon(self) -> float:
        """ε of one answer when the size may change by one sample."""
        return math.log1p(math.expm1(self.epsilon) / (2 * self.range.half_width))

    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> Values:
        low, high = self.support()
        return np.where(stream.bernoulli(self._upper_probability(truths), truths.size), high, low)

    def _upper_probability(self, truths: NDArray[np.int64]) -> Values:
        """P(+A) = ½(1 + x·tanh(ε/2)), written as a mean of the two extremes so that no end ever rounds to 0 or 1."""
        weight = (self.range.to_unit(truths) + 1) / 2
        return weight / (1 + math.exp(-self.epsilon)) + (1 - weight) * _rare(self.epsilon)

    def response_variance(self, truths: Values) -> Values:
        return self.range.half_width**2 * (self.magnitude**2 - self.range.to_unit(truths) ** 2)

    def support(self) -> tuple[float, float]:
        reach = self.range.half_width * self.magnitude
        return self.range.centre - reach, self.range.centre + reach

    def client_cost(self) -> Cost:
        return pure_cost(self.epsilon)

    def sample_cost(self) -> Cost:
        return pure_cost(self.sample_epsilon)


@dataclass(frozen=True)
class PiecewiseSize(SizeMechanism):
    """The piecewise mechanism: a point near x with probability e^{ε/2}/(e^{ε/2} + 1), else one from the rest.

    With C = (e^{ε/2} + 1)/(e^{ε/2} − 1) the answer lies in [−C, C]: uniform on [ℓ, ℓ + C − 1] with that probability,
    ℓ = x(C + 1)/2 − (C − 1)/2, uniform on the rest otherwise. Variance
    ((hi − lo)/2)²[x²/(e^{ε/2} − 1) + (e^{ε/2} + 3)/(3(e^{ε/2} − 1)²)]. Arguments, edge cases and errors:
    :class:`SizeMechanism`. Both units cost ε: one sample moves the edge of the likely piece over some answers.
    """

    @property
    def magnitude(self) -> float:
        """C ≥ 1, the largest answer on the scale of x."""
        return 1.0 / math.tanh(self.epsilon / 4)

    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> Values:
        reach, n = self.magnitude, truths.size
        left = self.range.to_unit(truths) * (reach + 1) / 2 - (reach - 1) / 2
        far = stream.bernoulli(_rare(self.epsilon / 2), n)
        position = stream.uniform(n)
        near_point = left + (reach - 1) * position
        # The rest, [−C, ℓ) and (ℓ + C − 1, C], has length C + 1: walk along it and jump over the likely piece.
        far_point = -reach + (reach + 1) * position
        far_point += np.where(far_point >= left, reach - 1, 0.0)
        answer = self.range.from_unit(np.where(far, far_point, near_point))
        return round_to_grid(answer, self.range.half_width * (reach - 1))

    def response_variance(self, truths: Values) -> Values:
        decay = math.exp(-self.epsilon / 2)
        rest = -math.expm1(-self.epsilon / 2)
        unit = self.range.to_unit(truths) ** 2 * decay / rest + decay * (1 + 3 * decay) / (3 * rest**2)
        return np.asarray(self.range.half_width**2 * unit)

    def support(self) -> tuple[float, float]:
        reach = self.range.half_width * self.magnitude
        return self.range.centre - reach, self.range.centre + reach

    def client_cost(self) -> Cost:
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class HybridSize(SizeMechanism):
    """Piecewise with probability β = 1 − e^{−ε/2} (0 for ε ≤ 0.61), otherwise Duchi's bit (Wang et al. 2019, §III-C).

    Both are unbiased, so the variance is the mean of theirs with weights β and 1 − β; its worst case over all truths is
    no larger than that of either. Arguments, edge cases and errors: :class:`SizeMechanism`.
    """

    @property
    def piecewise_probability(self) -> float:
        """β, the probability of answering by the piecewise mechanism."""
        return -math.expm1(-self.epsilon / 2) if self.epsilon > HYBRID_THRESHOLD else 0.0

    @property
    def _parts(self) -> tuple[PiecewiseSize, DuchiSize]:
        fields = (self.epsilon, self.bound, self.lower, self.convention, self.refresh)
        return PiecewiseSize(*fields), DuchiSize(*fields)

    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> Values:
        piecewise, duchi = (part.randomise(truths, stream) for part in self._parts)
        return np.where(stream.bernoulli(self.piecewise_probability, truths.size), piecewise, duchi)

    def response_variance(self, truths: Values) -> Values:
        piecewise, duchi = (part.response_variance(truths) for part in self._parts)
        return self.piecewise_probability * piecewise + (1 - self.piecewise_probability) * duchi

    def support(self) -> tuple[float, float]:
        return self._parts[0].support()  # C ≥ A: the piecewise answer reaches further

    def client_cost(self) -> Cost:
        return pure_cost(self.epsilon)


def _rare(epsilon: float) -> float:
    """1/(e^ε + 1), the smaller of the two probabilities of binary randomised response; 0 for ε = ∞."""
    return math.exp(-epsilon) / (1.0 + math.exp(-epsilon))


SIZE_MECHANISMS: MappingProxyType[str, type[SizeMechanism]] = MappingProxyType(
    {
        "grr": RandomizedResponse,
        "laplace": LaplaceSize,
        "duchi": DuchiSize,
        "piecewise": PiecewiseSize,
        "hybrid": HybridSize,
    }
)
"""The size mechanisms by the names that configuration files use."""
