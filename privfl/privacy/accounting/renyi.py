"""Rényi accounting, for what has no loss distribution (fixed-size cohorts, trees, zCDP, Skellam) and for tiny delta.

Curves add under adaptive composition, whatever the relation each was computed under, by the argument of
:mod:`privfl.privacy.accounting.composition`: each bounds the divergence between the two worlds of the same row, in both
directions. Fixed-size cohorts, trees, zCDP and Poisson-sampled Gaussian noise come from dp_accounting, Skellam noise
from the theorem of its authors; every other kind takes the cumulants of its pessimistic loss distribution. Conventions
are those of the main accountant (a replaced Gaussian contribution counts twice), which dp_accounting's own RDP
accountant does not share.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting.rdp import compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from privfl.privacy.accounting.events import ADD_REMOVE, Kind, SkellamDpEvent
from privfl.privacy.accounting.loss import Array, log_moments, losses, pure_loss, variance_guess, width

ORDERS: Array = np.asarray(DEFAULT_RDP_ORDERS, dtype=np.float64)

_SMALL = 1e-4
"""Losses below it have divergences of about their square, which drown in the rounding of sums of probabilities."""

_ROUNDING = 1e-14
"""More than the rounding of the logarithm of such a sum, so that no divergence that is too small for it reads 0."""

_ONLY_RENYI = (dp.SampledWithoutReplacementDpEvent, dp.SingleEpochTreeAggregationDpEvent, dp.ZCDpEvent, SkellamDpEvent)


def only_renyi(kind: Kind) -> bool:
    """Whether a kind has no loss distribution, so that only its Rényi curve is known."""
    return isinstance(kind[0], _ONLY_RENYI)


def renyi_epsilon(kinds: Mapping[Kind, int], delta: float) -> float:
    """ε at ``delta`` of a history of elementary kinds (conversion of Canonne, Kamath and Steinke 2020)."""
    curve, infinity = np.zeros_like(ORDERS), 0.0
    for kind, count in kinds.items():
        one, leaked = _curve(kind)
        curve = curve + count * one
        infinity += count * leaked
    if infinity >= delta:
        return math.inf
    return float(compute_epsilon(ORDERS, np.maximum(curve, 0.0), delta - infinity)[0])


@lru_cache(maxsize=1024)
def _curve(kind: Kind) -> tuple[Array, float]:
    """The Rényi divergences at :data:`ORDERS`, and the probability with which everything leaks on top."""
    event, relation = kind
    if isinstance(event, dp.GaussianDpEvent):
        return ORDERS / (2 * float(event.noise_multiplier) ** 2), 0.0
    if isinstance(event, SkellamDpEvent):
        return skellam_curve(event, ORDERS), 0.0
    sampled = isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent)
    if only_renyi(kind) or (sampled and relation is ADD_REMOVE):
        with _quiet():
            accountant = dp.rdp.RdpAccountant(ORDERS, relation)
            accountant.compose(event)
            return np.asarray(accountant.rdp, dtype=np.float64), 0.0
    pure = pure_loss(kind)
    if pure < _SMALL:
        return np.minimum(pure, ORDERS * pure**2 / 2), 0.0  # Bun and Steinke 2016, proposition 3.3
    step = 2.0 ** math.floor(math.log2(max(math.sqrt(variance_guess(kind)) / 64, width(kind) / 2**15)))
    curves = [(log_moments(loss, step, ORDERS - 1) + _ROUNDING) / (ORDERS - 1) for loss in losses(kind, step)]
    return np.maximum(*curves), max(loss.infinity for loss in losses(kind, step))


def skellam_curve(event: SkellamDpEvent, orders: Array) -> Array:
    """The Rényi divergences of Skellam noise at ``orders`` > 1.

    The bound holds at whole orders α > 1 (Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private
    Federated Learning", NeurIPS 2021, section 3): α·Δ₂²/(2μ) + min(((2α - 1)·Δ₂² + 6·Δ₁)/(4μ²), 3·Δ₁/(2μ)), where
    μ is the variance. Between them (α - 1)·D(α) is interpolated linearly from 0 at order 1, which is sound because it
    is a convex function of α.
    """
    variance, l1, squared = float(event.variance), float(event.l1_norm), float(event.l2_norm) ** 2

    def moment(order: Array) -> Array:
        first = order * squared / (2 * variance)
        rest = np.minimum(((2 * order - 1) * squared + 6 * l1) / (4 * variance**2), 1.5 * l1 / variance)
        return (order - 1) * (first + rest)

    below, above = np.floor(orders), np.ceil(orders)
    share = orders - below
    return np.asarray(((1 - share) * moment(below) + share * moment(above)) / (orders - 1))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep absl from warning about orders that dp_accounting leaves out (leaving an order out is sound)."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
