"""How evenly a model serves its clients: one metric per client in, a few numbers out.

Equation numbers are those of AAggFF (Hahn, Kim and Lee, ICML 2024, and their code) in ``docs/reference/equations.md``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privfl.errors import ConfigError


def client_average(values: ArrayLike, sizes: ArrayLike | None = None) -> float:
    """Mean of ``values`` [n], weighted by ``sizes`` [n] (numbers of test examples); unweighted without them."""
    metric, weights = _checked(values, sizes)
    return float(np.average(metric, weights=weights))


def worst_tenth(values: ArrayLike, sizes: ArrayLike | None = None) -> float:
    """Weighted mean of the max(1, ⌊n/10⌋) smallest ``values`` [n]; with fewer than 20 clients the smallest one.

    Of values of which less is better, these are the best: see :func:`fairness`.
    """
    return _tenth(values, sizes, smallest=True)


def best_tenth(values: ArrayLike, sizes: ArrayLike | None = None) -> float:
    """Weighted mean of the max(1, ⌊n/10⌋) largest ``values`` [n]."""
    return _tenth(values, sizes, smallest=False)


def gini(values: ArrayLike) -> float:
    """Equation (18): Gini coefficient of ``values`` [n] ≥ 0, in [0, 1 − 1/n]; 0 if all are equal, also if all are 0.

    Half the mean absolute difference of two clients over the mean. Differs from the authors' code for all zeros, which
    returns 1 there; equal values are no inequality.

    Raises:
        ConfigError: a value is negative.
    """
    ordered = np.sort(_checked(values, None)[0])
    if ordered[0] < 0:
        raise ConfigError(f"a client's metric is {ordered[0]:g}; the Gini coefficient needs values ≥ 0")
    clients, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    ranks = 2 * np.arange(1, clients + 1) - clients - 1
    return max(0.0, float(ranks @ ordered / (clients * total)))


def parity_gap(values: ArrayLike) -> float:
    """Equation (19), the accuracy-parity gap: the largest of ``values`` [n] minus the smallest."""
    metric, _ = _checked(values, None)
    return float(metric.max() - metric.min())


def effective_clients(weights: ArrayLike) -> float:
    """(Σp)²/Σp² of aggregation ``weights`` [n] ≥ 0: n for equal ones, 1 if one client decides alone (Kish, 1965)."""
    p, _ = _checked(weights, None)
    largest = p.max()
    if largest <= 0:
        return 0.0
    scaled = p / largest  # squares of tiny weights underflow
    return float(scaled.sum() ** 2 / (scaled @ scaled))


def fairness(values: ArrayLike, sizes: ArrayLike | None = None, *, higher_is_better: bool = True) -> dict[str, float]:
    """``client_average``, ``worst_tenth``, ``best_tenth``, ``gini`` and ``parity_gap`` of ``values`` [n]."""
    tenths = worst_tenth(values, sizes), best_tenth(values, sizes)
    worst, best = tenths if higher_is_better else tenths[::-1]
    return {
        "client_average": client_average(values, sizes),
        "worst_tenth": worst,
        "best_tenth": best,
        "gini": gini(values),
        "parity_gap": parity_gap(values),
    }


def _tenth(values: ArrayLike, sizes: ArrayLike | None, *, smallest: bool) -> float:
    metric, weights = _checked(values, sizes)
    count = max(1, math.floor(len(metric) / 10))
    order = np.argsort(metric, kind="stable")
    chosen = order[:count] if smallest else order[-count:]
    return float(np.average(metric[chosen], weights=weights[chosen]))


def _checked(values: ArrayLike, sizes: ArrayLike | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    metric = np.asarray(values, dtype=np.float64)
    if metric.ndim != 1 or len(metric) == 0 or not np.isfinite(metric).all():
        raise ConfigError(f"clients' metrics have shape {metric.shape} or are not finite; give one number per client")
    weights = np.ones(len(metric)) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != metric.shape or not (weights > 0).all():
        raise ConfigError(f"{len(metric)} clients need as many sizes > 0; they have shape {weights.shape}")
    return metric, weights
