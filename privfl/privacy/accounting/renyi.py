"""Rényi accounting, for what has no loss distribution (fixed-size cohorts, trees, zCDP) and for tiny delta.

Curves add under adaptive composition, whatever the relation each was computed under, by the argument of
:mod:`privfl.privacy.accounting.composition`: each bounds the divergence between the two worlds of the same row, in both
directions. Fixed-size cohorts, trees, zCDP and Poisson-sampled Gaussian noise come from dp_accounting; every other
kind takes the cumulants of its pessimistic loss distribution. Conventions are those of the main accountant (a replaced
Gaussian contribution counts twice), which dp_accounting's own RDP accountant does not share.
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

from privfl.privacy.accounting.events import ADD_REMOVE, Kind
from privfl.privacy.accounting.loss import Array, log_moments, losses, spread, width

ORDERS: Array = np.asarray(DEFAULT_RDP_ORDERS, dtype=np.float64)

_ONLY_RENYI = (dp.SampledWithoutReplacementDpEvent, dp.SingleEpochTreeAggregationDpEvent, dp.ZCDpEvent)


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
    sampled = isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent)
    if only_renyi(kind) or (sampled and relation is ADD_REMOVE):
        with _quiet():
            accountant = dp.rdp.RdpAccountant(ORDERS, relation)
            accountant.compose(event)
            return np.asarray(accountant.rdp, dtype=np.float64), 0.0
    step = 2.0 ** math.floor(math.log2(max(math.sqrt(spread(kind)) / 64, width(kind) / 2**15)))
    curves = [log_moments(loss, step, ORDERS - 1) / (ORDERS - 1) for loss in losses(kind, step)]
    return np.maximum(*curves), max(loss.infinity for loss in losses(kind, step))


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
