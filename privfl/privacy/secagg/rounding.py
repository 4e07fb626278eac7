"""Rounding at random: without bias, or within a bound on the norm that keeps a sensitivity.

Rounding every coordinate to one of the two integers beside it can lengthen a vector by up to √d, and with it the L2
sensitivity that noise is calibrated to. Kairouz, Liu and Steinke ("The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation", ICML 2021, section 4) draw the rounding again until the vector is not much
longer than it is on average; the price is a little bias.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.secagg.errors import BadVector

DEFAULT_BETA = math.exp(-0.5)
"""The published choice: at least 39 % of the draws are accepted, and the bound is close to the average."""

_CHUNK = 1 << 15  # values per pass: the work space stays in cache, and a chunk's sum of squares errs by below 4e-12
_MARGIN = 1e-11
_LARGEST = 2.0**52


def stochastic_round(values: NDArray[np.float64], stream: NoiseStream) -> NDArray[np.int64]:
    """``values`` (finite, ``|value| ≤ 2⁵²``) rounded up or down by coins of their own, with the value as mean.

    The probability of rounding up is the fractional part exactly, up to 2⁻⁵³.
    """
    lower = np.floor(values)
    up = stream.uniform(values.size).reshape(values.shape) < values - lower
    rounded = lower.astype(np.int64)
    rounded += up
    return rounded


def rounded_norm_bound(norm: float, dimension: int, beta: float = DEFAULT_BETA) -> float:
    """L2 bound of the integer vector that :func:`round_within` returns for a vector of at most ``norm``.

    min(c + √d, √(c² + d/4 + √(2 ln(1/β)) (c + √d/2))) for c = ``norm``, d = ``dimension`` (Kairouz, Liu and Steinke
    2021, with granularity 1), plus a relative 10⁻¹¹ that covers the arithmetic in float64. One draw exceeds the second
    with probability at most β, the first never.

    Raises:
        ConfigError: the norm is outside [0, 2⁵²], the dimension below 1, or β outside (0, 1).
    """
    if not 0 <= norm <= _LARGEST or dimension < 1 or not 0 < beta < 1:
        raise ConfigError(
            f"no bound for norm {norm}, dimension {dimension} and beta {beta}: "
            "give a norm from 0 to 2^52 steps, a dimension from 1 and a beta between 0 and 1."
        )
    root = math.sqrt(dimension)
    likely = math.sqrt(norm**2 + dimension / 4 + math.sqrt(-2 * math.log(beta)) * (norm + root / 2))
    return min(norm + root, likely) * (1 + _MARGIN)


def round_within(
    values: NDArray[np.float64], norm: float, stream: NoiseStream, beta: float = DEFAULT_BETA
) -> NDArray[np.int64]:
    """``values`` clipped to L2 norm ``norm`` and rounded at random, with a bounded L2 norm after rounding.

    Guarantee: whatever comes in, the result is at most :func:`rounded_norm_bound` long, so that this is the L2
    sensitivity of a sum to one vector's presence. A vector within ``norm`` is not changed before it is rounded. How
    often the rounding is drawn is not part of the result, and must not be measurable by who sees it.

    Args:
        values: float64 [d], in units of the step.
        norm: c ≥ 0, in the same units.
        stream: where the coins come from.
        beta: bound on the probability that one draw has to be repeated.

    Raises:
        BadVector: a value is not finite.
        ConfigError: as :func:`rounded_norm_bound`.
    """
    bound = rounded_norm_bound(norm, values.size, beta)
    length = math.sqrt(_squares(values))
    if not math.isfinite(length):
        raise BadVector("a vector to be rounded holds a number that is not finite, or is too long to be measured.")
    if length > norm:
        values = values * (norm / length)
    rounded = np.empty(values.size, dtype=np.int64)
    while True:  # a draw is accepted with probability 1 − β or more
        for start in range(0, values.size, _CHUNK):
            rounded[start : start + _CHUNK] = stochastic_round(values[start : start + _CHUNK], stream)
        if _squares(rounded) <= bound**2 * (1 - _MARGIN):
            return rounded


def _squares(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    """The sum of squares, within a relative 4·10⁻¹² as long as no square overflows."""
    parts = (values[start : start + _CHUNK].astype(np.float64) for start in range(0, values.size, _CHUNK))
    return math.fsum(float(np.square(part, out=part).sum()) for part in parts)  # a dot product would start threads
