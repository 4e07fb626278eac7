"""Certified bounds on a rate from how often something happened: Clopper and Pearson's, one-sided and exact."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from privfl.errors import ConfigError
from privfl.validation import check_number, said

Rates = NDArray[np.float64]

OUTWARD = 1e-12
"""Every bound is moved outward by this share of itself, more than the rounding of the quantiles of the beta law."""


@dataclass(frozen=True)
class ErrorRates:
    """Bounds on the error rates of decisions, which hold all at once: arrays of one shape, values in [0, 1].

    ``tpr_low`` is 1 − ``fnr_high`` and ``tnr_low`` 1 − ``fpr_high``, without the cancellation near 0.
    """

    fpr_high: Rates
    fnr_high: Rates
    tpr_low: Rates
    tnr_low: Rates

    @classmethod
    def from_counts(
        cls,
        true_positives: ArrayLike,
        members: int,
        false_positives: ArrayLike,
        non_members: int,
        levels: tuple[float, float],
    ) -> ErrorRates:
        """Clopper–Pearson bounds; the error level of the members' rates is the first of ``levels``, then the others'.

        Raises:
            ConfigError: the counts or a level are impossible.
        """
        hits, alarms = _numbers("true_positives", true_positives), _numbers("false_positives", false_positives)
        members, non_members = as_count("members", members, 1), as_count("non_members", non_members, 1)
        inside, outside = levels
        found_in, place_in = np.unique(hits, return_inverse=True)  # thresholds outnumber the counts they give
        found_out, place_out = np.unique(alarms, return_inverse=True)
        place_in, place_out = place_in.reshape(hits.shape), place_out.reshape(alarms.shape)
        return cls(
            fpr_high=np.asarray(clopper_pearson_upper(found_out, non_members, outside)[place_out]),
            fnr_high=np.asarray(clopper_pearson_upper(members - found_in, members, inside)[place_in]),
            tpr_low=np.asarray(clopper_pearson_lower(found_in, members, inside)[place_in]),
            tnr_low=np.asarray(clopper_pearson_lower(non_members - found_out, non_members, outside)[place_out]),
        )

    def at(self, index: int) -> ErrorRates:
        """The bounds of one decision out of several."""
        return ErrorRates(*(np.asarray(rate[index]) for rate in self._all()))

    def to_json(self) -> dict[str, float]:
        """The four bounds of one decision as numbers."""
        names = ("fpr_high", "fnr_high", "tpr_low", "tnr_low")
        return {name: float(rate) for name, rate in zip(names, self._all(), strict=True)}

    def _all(self) -> tuple[Rates, Rates, Rates, Rates]:
        return self.fpr_high, self.fnr_high, self.tpr_low, self.tnr_low


def clopper_pearson_upper(hits: ArrayLike, trials: ArrayLike, level: float) -> Rates:
    """What the probability of a hit is below, with confidence 1 − ``level``: float64, in (0, 1], the inputs' shape.

    The (1−a) quantile of Beta(k+1, n−k) for k = ``hits`` of n = ``trials`` and a = ``level``; 1 for k = n. The share of
    samples for which the true probability lies above it is at most a, whatever that probability is. Two numbers give a
    number.

    Raises:
        ConfigError: hits or trials are no whole numbers with 0 ≤ hits ≤ trials and trials ≥ 1, or ``level`` is not in
            (0, 1).

    Source: Clopper & Pearson, Biometrika 1934.
    """
    found, tried = _checked(hits, trials, level)
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


def as_scores(name: str, scores: ArrayLike) -> Rates:
    """``scores`` in a row, float64 [n].

    Raises:
        ConfigError: they are no array of numbers, or one of them is NaN.
    """
    found = _numbers(name, scores, "biuf").reshape(-1)
    if np.isnan(found).any():
        raise ConfigError(f"a score of {name} is NaN; a score must order the trials")
    return found


def as_count(name: str, number: object, least: int = 0) -> int:
    """``number`` as an integer, if it is a whole one from ``least`` to 2⁵³, where float64 leaves numbers out.

    Raises:
        ConfigError: it is not.
    """
    found: Any = number if isinstance(number, Real) and not isinstance(number, bool) else -1
    if not (least <= found <= 2**53 and found % 1 == 0):
        raise ConfigError(f"{name} is {said(number)}; give a whole number from {least} to 2^53")
    return int(found)


def _numbers(name: str, values: ArrayLike, kinds: str = "iuf") -> Rates:
    """``values`` as float64 of their shape, if they are an array of one of NumPy's ``kinds``."""
    try:
        found = np.asarray(values)
        if found.dtype.kind == "O":  # Python's integers beyond int64
            found = np.asarray(values, dtype=np.float64) if all(type(one) is int for one in found.flat) else found
    except (ValueError, OverflowError):  # rows of unlike length, or beyond all floats
        raise ConfigError(f"{name} is {said(values)}; give numbers that float64 holds") from None
    if found.dtype.kind not in kinds:
        raise ConfigError(f"{name} is {said(values)}; give numbers")
    return found.astype(np.float64)


def _checked(hits: ArrayLike, trials: ArrayLike, level: float) -> tuple[Rates, Rates]:
    found, tried = _numbers("hits", hits), _numbers("trials", trials)
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
    check_number("the error level", level, 0, 1, above=True, below=True)
    return found, tried
