"""A measured number with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta, t

from privfl.errors import ConfigError
from privfl.validation import check_number

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measure:
    """``value``, and the interval [``low``, ``high``] that holds the true one with ``CONFIDENCE``.

    A quantity without a sampling law that we know has a NaN interval.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        return f"{self.value:.3g}" + ("" if math.isnan(self.low) else f" [{self.low:.3g}, {self.high:.3g}]")

    def to_json(self) -> dict[str, Any]:
        """``{"value": …, "low": …, "high": …}``; what is not finite is null, and so is an unknown interval."""
        return {
            name: value if math.isfinite(value) else None
            for name, value in (("value", self.value), ("low", self.low), ("high", self.high))
        }


def clopper_pearson(successes: float, trials: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact two-sided interval of a binomial probability, each side at half the error.

    lower: the (1−confidence)/2 quantile of Beta(k, n−k+1), 0 for k = 0; upper: the (1+confidence)/2 quantile of
    Beta(k+1, n−k), 1 for k = n (Clopper & Pearson, Biometrika 1934).

    Raises:
        ConfigError: ``successes`` is not in [0, ``trials``], there is no trial, or ``confidence`` is not in (0, 1).
    """
    if not (0 <= successes <= trials and trials > 0):
        raise ConfigError(f"{successes} successes in {trials} trials are impossible; give 0 <= successes <= trials")
    check_number("the confidence", confidence, 0, 1, above=True, below=True)
    side = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(side, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(beta.ppf(1 - side, successes + 1, trials - successes))
    return low, high


def proportion(successes: float, trials: float, confidence: float = CONFIDENCE) -> Measure:
    """``successes / trials`` with its Clopper–Pearson interval."""
    return Measure(successes / trials if trials else math.nan, *clopper_pearson(successes, trials, confidence))


def mean_of(
    values: ArrayLike, confidence: float = CONFIDENCE, *, least: float = -math.inf, most: float = math.inf
) -> Measure:
    """The mean of ``values`` [n] with Student's interval (none for n = 1).

    The interval ends at ``least`` and ``most``, between which every value lies: what is beyond holds no true mean.

    Raises:
        ConfigError: there is no value.
    """
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(numbers):
        raise ConfigError("there are no values to average; score at least one")
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return Measure(mean)
    half = float(t.ppf((1 + confidence) / 2, len(numbers) - 1) * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return Measure(mean, max(mean - half, least), min(mean + half, most))
