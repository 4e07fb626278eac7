"""An estimate of a client's ε from one run: canary clients send random directions, and the model is asked for them.

It is no bound: the scores of the canaries are taken for normal, and their fit for the truth.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audits.bounds.bound import Estimate, error_level
from audits.bounds.rates import Rates
from privfl.errors import ConfigError

_LARGEST = 700.0
"""Where e^ε leaves float64."""


def cosines(update: ArrayLike, directions: ArrayLike) -> Rates:
    """The cosine of ``update`` [d] with each of ``directions`` [k, d]: float64 [k], in [−1, 1].

    For a direction that took no part and is uniform on the sphere it has mean 0 and variance 1/d, and is close to
    normal for large d.

    Raises:
        ConfigError: the shapes do not match, or a vector is zero or not finite.
    """
    moved, sent = np.asarray(update, dtype=np.float64), np.asarray(directions, dtype=np.float64)
    if moved.ndim != 1 or sent.ndim != 2 or sent.shape[1] != len(moved) or not len(sent):
        raise ConfigError(f"an update {moved.shape} has no cosine with directions {sent.shape}; give [d] and [k, d]")
    lengths = np.linalg.norm(moved) * np.linalg.norm(sent, axis=1)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise ConfigError("the update or a direction is zero or not finite, and has no cosine; leave it out")
    return np.asarray(np.clip(sent @ moved / lengths, -1, 1), dtype=np.float64)


def epsilon_one_shot(
    scores_in: ArrayLike, *, delta: float, dimension: int | None = None, scores_out: ArrayLike | None = None
) -> Estimate:
    """ε at ``delta`` if the scores of canaries that took part, ``scores_in`` [k], are normal, and those of others too.

    The others' are N(0, 1/``dimension``) for cosines with one update, or fitted to ``scores_out`` for any other
    statistic, such as the largest cosine over the rounds. ε is the smallest at which both hockey-stick divergences
    between the two normal laws are at most δ.

    Raises:
        ConfigError: fewer than two scores, scores without any spread, or not exactly one of ``dimension`` and
            ``scores_out``; δ is not in (0, 1).

    Source: Andrew et al., ICLR 2024 (arXiv 2302.03098), algorithm 1.
    """
    error_level(delta, 0.5)
    if delta == 0:
        raise ConfigError("delta is 0, at which two normal distributions have ε = ∞; give a positive one, such as 1e-5")
    if (dimension is None) == (scores_out is None):
        raise ConfigError("the distribution of absent canaries is unknown; give either dimension or scores_out")
    mean, deviation = _fitted(scores_in, "that took part")
    if scores_out is not None:
        mean_out, deviation_out = _fitted(scores_out, "that took no part")
    elif dimension is not None and dimension >= 1:
        mean_out, deviation_out = 0.0, dimension**-0.5
    else:
        raise ConfigError(f"dimension is {dimension!r}; give the number of parameters, at least 1")
    return Estimate(
        epsilon=normal_pair_epsilon((mean, deviation), (mean_out, deviation_out), delta),
        delta=delta,
        method="one shot, normal fit",
        details={
            "mean_in": mean,
            "deviation_in": deviation,
            "mean_out": mean_out,
            "deviation_out": deviation_out,
            "canaries": int(np.size(scores_in)),
        },
    )


def normal_pair_epsilon(first: tuple[float, float], second: tuple[float, float], delta: float) -> float:
    """The smallest ε ≥ 0 at which two normal laws (mean, deviation > 0) are within ``delta`` in both directions.

    Bisected to 1e-10; ∞ if it exceeds 700.
    """

    def apart(epsilon: float) -> bool:
        return max(normal_pair_delta(first, second, epsilon), normal_pair_delta(second, first, epsilon)) > delta

    if not apart(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while apart(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return math.inf
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if apart(middle) else (low, middle)
    return high


def normal_pair_delta(first: tuple[float, float], second: tuple[float, float], epsilon: float) -> float:
    """sup_E P(E) − e^ε·Q(E) for P = N(``first``) and Q = N(``second``), each (mean, deviation): in [0, 1]; ε ≥ 0."""
    mean, deviation = (first[0] - second[0]) / second[1], first[1] / second[1]
    found = 0.0
    for low, high in _likelier(mean, deviation, epsilon):
        own = _log_mass((low - mean) / deviation, (high - mean) / deviation)
        found += math.exp(own) - math.exp(min(epsilon + _log_mass(low, high), 1.0))
    return min(1.0, max(0.0, found))


def _likelier(mean: float, deviation: float, epsilon: float) -> list[tuple[float, float]]:
    """Where N(mean, deviation²) is more than e^ε times as likely as N(0, 1): where a·x² + b·x + c > 0."""
    a, b = (1 - deviation**-2) / 2, mean * deviation**-2
    c = -(mean**2) * deviation**-2 / 2 - math.log(deviation) - epsilon
    if a == 0:
        if b == 0:
            return []
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    discriminant = b * b - 4 * a * c
    if discriminant <= 0:
        return []
    half = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    left, right = sorted((half / a, c / half))
    return [(-math.inf, left), (right, math.inf)] if a > 0 else [(left, right)]


def _log_mass(low: float, high: float) -> float:
    """ln P[low < Z < high] of a standard normal Z, accurate in both tails."""
    if low > 0:
        low, high = -high, -low
    above, below = float(special.log_ndtr(high)), float(special.log_ndtr(low))
    return above + math.log1p(-math.exp(below - above)) if below < above else -math.inf


def _fitted(scores: ArrayLike, whose: str) -> tuple[float, float]:
    found = np.asarray(scores, dtype=np.float64).reshape(-1)
    if len(found) < 2 or not np.isfinite(found).all():
        raise ConfigError(f"the {len(found)} scores of canaries {whose} cannot be fitted; give two finite ones or more")
    deviation = float(found.std(ddof=1))
    if deviation == 0:
        raise ConfigError(
            f"the scores of canaries {whose} are all {found[0]:g}; no distribution can be fitted to one value"
        )
    return float(found.mean()), deviation
