"""Generalised (k-ary) randomised response, the size mechanism of FedSampling (Qi et al., IJCAI 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import NeighboringRelation, RandomizedResponseDpEvent
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Cost
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.sizes.mechanism import SizeMechanism, Values


def truth_probability(epsilon: float, domain: int) -> float:
    """α = (e^ε − 1)/(e^ε + D − 1), the probability of answering truthfully: Lemma 3.2 re-derived, equation (4).

    Tends to 0 with ε, is 1 for ε = ∞. Note that a lie may hit the truth: P(answer = truth) = α + (1 − α)/D.

    Raises:
        ConfigError: ``epsilon`` is negative or NaN, or ``domain`` is below 2.

    >>> round(truth_probability(3.0, 99), 6)
    0.161625
    """
    _require_domain(domain)
    if not epsilon >= 0:
        raise ConfigError(f"randomised response has epsilon {epsilon}: it must not be negative.")
    return -math.expm1(-epsilon) / (1.0 + (domain - 1) * math.exp(-epsilon))


def response_epsilon(alpha: float, domain: int) -> float:
    """ε = ln(1 + αD/(1 − α)), the inverse of :func:`truth_probability`: equation (4).

    Raises:
        ConfigError: ``alpha`` is outside [0, 1] or NaN, or ``domain`` is below 2.

    >>> round(response_epsilon(0.5, 99), 6)
    4.60517
    """
    _require_domain(domain)
    if not 0 <= alpha <= 1:
        raise ConfigError(f"the probability of a truthful answer is {alpha}: it must lie in [0, 1].")
    return math.inf if alpha == 1 else math.log1p(alpha * domain / (1.0 - alpha))


def _require_domain(domain: int) -> None:
    if domain < 2:
        raise ConfigError(f"randomised response over {domain} values protects nothing: use a domain of at least 2.")


@dataclass(frozen=True)
class RandomizedResponse(SizeMechanism):
    """The truth with probability α, otherwise a uniform lie: equations (1) to (6).

    The faithful choice for replicating FedSampling, and a poor one for a *sum*: at ε = 3 and M = 100 its standard
    deviation is six to eight times that of the piecewise or the one-bit mechanism. Differs from the authors' programme
    in that truths are clipped to the range of the lies; without that, sizes beyond it are not protected at all.
    Arguments, edge cases and errors: :class:`SizeMechanism`.

    >>> RandomizedResponse(epsilon=3.0, bound=100).range.domain
    100
    """

    @property
    def alpha(self) -> float:
        """The probability of answering truthfully."""
        return truth_probability(self.epsilon, self.range.domain)

    @property
    def lie_probability(self) -> float:
        """1 − α = D/(e^ε + D − 1), without the cancellation that 1 − α suffers at large ε."""
        decay = math.exp(-self.epsilon)
        return self.range.domain * decay / (1.0 + (self.range.domain - 1) * decay)

    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> NDArray[np.int64]:
        lies = self.range.uniform(truths.size, stream)  # always drawn, so that the time taken says nothing
        return np.where(stream.bernoulli(self.lie_probability, truths.size), lies, truths)

    def unbiased(self, responses: Values) -> Values:
        return (responses - self.lie_probability * self.range.centre) / self.alpha

    def response_variance(self, truths: Values) -> Values:
        lie_variance = (self.range.domain**2 - 1) / 12
        off_centre = truths - self.range.centre
        spread = lie_variance + self.alpha * off_centre**2
        return np.asarray(self.lie_probability * spread / self.alpha**2)

    def support(self) -> tuple[float, float]:
        return self.range.lo, self.range.hi

    def client_cost(self) -> Cost:
        """Exact for both units: one sample more or less already moves the truth to another value of the range."""
        event = RandomizedResponseDpEvent(noise_parameter=self.lie_probability, num_buckets=self.range.domain)
        return Cost(event, NeighboringRelation.REPLACE_ONE)
