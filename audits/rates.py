"""Certified bounds on a rate from how often something happened: Clopper and Pearson's, one-sided and exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from privfl.errors import ConfigError

Rates = NDArray[np.float64]

OUTWARD = 1e-12
"""Every bound is moved outward by this share of itself, more than the rounding of the quantiles of the beta law."""


def clopper_pearson_upper(hits: ArrayLike, trials: ArrayLike, level: float) -> Rates:
    """What the probability of a hit is below, with confidence 1 − ``level``: float64, in (0, 1], the inputs' shape.

    The (1−a) quantile of Beta(k+1, n−k) for k = ``hits`` of n = ``trials`` and a = ``level``; 1 for k = n. The share of
    samples for which the true probability lies above it is at most a, whatever that probability is. A zero-dimensional
    array behaves as a number.

    Raises:
        ConfigError: hits or trials are no whole numbers with 0 ≤ hits ≤ trials and trials ≥ 1, or ``level`` is not in
            (0, 1).

    Source: Clopper & Pearson, Biometrika 1934.
    """
    found, tried = _checked(hits, trials, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = beta.isf(level, found + 1, np.maximum(tried - found, 1))
    bound = np.where(found == 0, -np.expm1(np.log(level) / tried), bound)
    bound = np.where(found == tried, 1.0, bound * (1 + OUTWARD))
    return np.asarray(np.minimum(bound, 1.0), dtype=np.float64)[()]


def clopper_pearson_lower(hits: ArrayLike, trials: ArrayLike, level: float) -> Rates:
    """What the probability of a hit is above, with confidence 1 − ``level``: float64, in [0, 1), the inputs' shape.

    The a quantile of Beta(k, n−k+1) for k = ``hits`` of n = ``trials`` and a = ``level``; 0 for k = 0. The share of
    samples for which the true probability lies below it is at most a, whatever that probability is.

    Raises:
        ConfigError: as :func:`clopper_pearson_upper`.

    Source: Clopper & Pearson, Biometrika 1934.
    """
    found, tried = _checked(hits, trials, level)
    bound = beta.ppf(level, np.maximum(found, 1), tried - found + 1)
    bound = np.where(found == tried, np.exp(np.log(level) / tried), bound)
    return np.asarray(np.where(found == 0, 0.0, bound * (1 - OUTWARD)), dtype=np.float64)[()]


def _checked(hits: ArrayLike, trials: ArrayLike, level: float) -> tuple[Rates, Rates]:
    found, tried = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    try:
        found, tried = np.broadcast_arrays(found, tried)
    except ValueError:
        raise ConfigError(f"hits {found.shape} and trials {tried.shape} do not match; give one count each") from None
    whole = (found == np.floor(found)) & (tried == np.floor(tried)) & np.isfinite(tried)
    wrong = ~(whole & (found >= 0) & (found <= tried) & (tried >= 1))
    if wrong.any():
        raise ConfigError(
            f"{found[wrong].flat[0]:g} hits in {tried[wrong].flat[0]:g} trials are impossible; give whole numbers with "
            "0 ≤ hits ≤ trials and at least one trial"
        )
    if not 0 < level < 1:
        raise ConfigError(f"the error level is {level!r}; give a number in (0, 1), such as 0.025")
    return found, tried
