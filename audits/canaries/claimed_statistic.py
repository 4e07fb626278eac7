"""What is claimed of a canary's statistic, and the sharpest decision that follows from the claim alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.rates import ErrorRates
from audits.canaries.alignment import Statistics
from privfl.randomness import numpy_stream

DRAWS = 20_000
"""Canaries that are drawn from the claimed law, in each world, to plan a threshold."""
MOST_NUMBERS = 1 << 22
"""Random numbers drawn at once."""


@dataclass(frozen=True)
class ClaimedStatistic:
    """B·length + N(0, σ²·length) in a round of one step, with B = 1 at the sampling ``rate`` if the canary is included.

    Args:
        rate: q in (0, 1].
        noise_multiplier: σ > 0.
    """

    rate: float
    noise_multiplier: float

    def log_ratios(self, statistics: Statistics, lengths: Statistics) -> Statistics:
        """Σ_rounds ln(1 − q + q·exp((2s − length)/(2σ²))) [m] for s = ``statistics``: Neyman and Pearson's score.

        Both arguments are [rounds, m].
        """
        exponents = (statistics - lengths / 2) / self.noise_multiplier**2
        with np.errstate(divide="ignore"):
            each = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + exponents)
        return np.asarray(each.sum(0), dtype=np.float64)

    def threshold(self, family: GaussianFamily, trials: int, confidence: float) -> float:
        """Where the score decides best between ``trials`` canaries of each world, if the claim is true.

        0 without sampling, otherwise found on canaries drawn from the claimed law. Nothing of the run enters, so a
        bound at this threshold needs no correction.
        """
        if self.rate == 1:
            return 0.0
        ins, outs = (np.sort(self._drawn(family.observed_steps, included)) for included in (True, False))
        tried = np.quantile(np.concatenate([ins, outs]), np.linspace(0.002, 0.998, 250))
        hits, alarms = ((DRAWS - np.searchsorted(scores, tried)) / DRAWS for scores in (ins, outs))
        level = (1 - confidence) / 2
        expected = (np.rint(share * trials) for share in (hits, alarms))
        rates = ErrorRates.from_counts(next(expected), trials, next(expected), trials, (level, level))
        return float(tried[int(np.argmax(family.strengths(rates)))])

    def _drawn(self, rounds: int, included: bool) -> Statistics:
        """Scores [DRAWS] of canaries of full length that follow the law."""
        generator, total = numpy_stream(0, "audit-threshold", int(included)), np.zeros(DRAWS)
        at_once = max(1, MOST_NUMBERS // DRAWS)
        for begin in range(0, rounds, at_once):
            shape = (min(at_once, rounds - begin), DRAWS)
            statistics = generator.normal(scale=self.noise_multiplier, size=shape)
            if included:
                statistics += generator.random(shape) < self.rate
            total += self.log_ratios(statistics, np.ones(shape))
        return total
