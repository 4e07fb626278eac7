"""Privacy loss distributions of single events, on a grid.

dp_accounting discretises the loss of an event pessimistically ("connect the dots", Doroshenko et al. 2022): the
discretised pair of output distributions dominates the true one. The two cases that carry a federated run are built
here, by the same algorithm: Poisson-sampled Gaussian noise, vectorised, and mechanisms with few outcomes, whose losses
dp_accounting would round up instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special

from privfl.privacy.accounting.events import REPLACE, EpsilonDeltaDpEvent, Kind, SkellamDpEvent

Array = npt.NDArray[np.float64]

SHORT = 2**14
"""Grids up to about this length are kept in large caches, longer ones in small caches or in none."""

_REACH = -float(special.ndtri(0.5 * math.exp(-50)))
"""Gaussian noise beyond this many standard deviations is counted as mass at infinity, as dp_accounting does."""


ROUNDED = 2.0**-51
"""How far, relatively, a probability that a mechanism computed in float64 may lie from the one that it meant."""

_FEW = 1e-3
"""A smaller probability, known as the rest of a larger one, lacks digits that a claim shows."""


@dataclass(frozen=True)
class DiscretisedPLD:
    """The discretised loss of one event in one direction: P(loss = (lower + i)·step) = probs[i], rest at infinity."""

    lower: int
    probs: Array
    infinity: float


_UNKNOWN = DiscretisedPLD(0, np.ones(1), 1.0)
"""Where numbers leave the range of float64: everything may leak."""


def losses(kind: Kind, step: float) -> tuple[DiscretisedPLD, DiscretisedPLD]:
    """The pessimistic losses (remove, add) of one elementary event on the grid of multiples of ``step``."""
    return (_short_losses if width(kind) / step < SHORT else _long_losses)(kind, step)


def _build(kind: Kind, step: float) -> tuple[DiscretisedPLD, DiscretisedPLD]:
    event, relation = kind
    options: dict[str, Any] = {"value_discretization_interval": step}
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            made = pld.from_gaussian_mechanism(noise, **options)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=dp.GaussianDpEvent(noise_multiplier=noise)):
            if relation is REPLACE:
                made = pld.from_gaussian_mechanism(noise, sampling_prob=rate, neighboring_relation=relation, **options)
            else:
                return _poisson_gaussian_losses(rate, noise, step)
        case dp.LaplaceDpEvent(noise_multiplier=noise):
            made = pld.from_laplace_mechanism(noise, **options)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=dp.LaplaceDpEvent(noise_multiplier=noise)):
            made = pld.from_laplace_mechanism(noise, sampling_prob=rate, **options)
        case DiscreteLaplaceDpEvent(noise_parameter=parameter, sensitivity=sensitivity):
            made = pld.from_discrete_laplace_mechanism(parameter, sensitivity, use_connect_dots=True, **options)
        case dp.TruncatedSubsampledGaussianDpEvent():
            made = pld.from_truncated_subsampled_gaussian_mechanism(
                event.dataset_size,
                event.sampling_probability,
                event.truncated_batch_size,
                event.noise_multiplier,
                neighboring_relation=relation,
                **options,
            )
        case _:
            made = _finite_loss(event, relation, step)
    remove = _arrays(made._pmf_remove)
    return remove, remove if made._symmetric else _arrays(made._pmf_add)


def _build_quietly(kind: Kind, step: float) -> tuple[DiscretisedPLD, DiscretisedPLD]:
    with np.errstate(all="ignore"):  # far tails overflow on purpose: exp(large)·0 and log(0) are meant
        return _build(kind, step)


_short_losses, _long_losses = lru_cache(maxsize=1024)(_build_quietly), lru_cache(maxsize=8)(_build_quietly)


def _poisson_gaussian_losses(rate: float, noise: float, step: float) -> tuple[DiscretisedPLD, DiscretisedPLD]:
    """What ``pld.from_gaussian_mechanism`` builds, thirty times faster: it works point by point in Python."""
    reach = (_REACH + 0.5 / noise) / noise  # of the unsampled loss, up to probability exp(-50)
    ends = [float(np.logaddexp(math.log1p(-rate), math.log(rate) + sign * reach)) for sign in (-1, 1)]
    low = math.floor(ends[0] / step)
    high = max(math.ceil(ends[1] / step), low + 1)
    ratio = np.arange(low, high + 1) * step  # log of the likelihood ratio of the mixture, and the noise that reaches it
    below, above = np.split(ratio, [max(0, 1 - low)])
    reached = np.log(np.expm1(below) + rate), above + np.log(rate * np.exp(-above) - np.expm1(-above))
    threshold = noise**2 * (np.concatenate(reached) - math.log(rate)) + 0.5
    outside, growth = np.isnan(threshold), np.expm1(ratio)
    directions = []
    for sign in (1, -1):  # remove, whose losses are these ratios, and add, whose losses are their negatives
        without, sampled = (special.ndtr(-sign * (threshold - shift) / noise) for shift in (0, 1))
        mixed = (1 - rate) * without + rate * sampled
        over, under = (mixed, without) if sign == 1 else (without, mixed)
        divergence = over - np.exp(sign * ratio + np.log(under))  # in logarithms, because exp(ratio) may overflow
        beyond = -growth if sign == 1 else 0.0  # ratios below the smallest one, for "add" losses above the largest one
        deltas = np.clip(np.where(outside, beyond, divergence), 0, 1)[::sign]
        directions.append(_connect_dots(np.minimum.accumulate(deltas), low if sign == 1 else -high, step))
    return directions[0], directions[1]


def _connect_dots(deltas: Array, lower: int, step: float) -> DiscretisedPLD:
    """The loss whose divergences at ε = (lower + i)·step are ``deltas`` (Doroshenko et al. 2022, Algorithm 1)."""
    falls = np.diff(deltas)
    probs = np.empty_like(deltas)
    probs[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
    probs[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
    probs[-1] = falls[-1] / math.expm1(-step)
    if not np.isfinite(probs).all():
        return _UNKNOWN
    return DiscretisedPLD(lower, np.maximum(probs, 0.0), float(deltas[-1]))


def _arrays(pmf: Any) -> DiscretisedPLD:
    dense = pmf.to_dense_pmf()
    if not np.isfinite(dense._probs).all():
        return _UNKNOWN
    return DiscretisedPLD(dense._lower_loss, np.asarray(dense._probs, dtype=np.float64), float(dense._infinity_mass))


def _finite_loss(event: DpEvent, relation: dp.NeighboringRelation, step: float) -> pld.PrivacyLossDistribution:
    """Connect-the-dots losses of a mechanism with few outcomes, from its two worst-case output distributions.

    dp_accounting's ``from_randomized_response`` rounds every loss up to the grid, which costs up to ``step`` for each
    answer; connecting the dots costs ``step²/8``.
    """
    upper, lower, infinity = _worst_pair(event, relation)
    directions = [(upper, lower)] if np.allclose(np.sort(upper), np.sort(lower), rtol=1e-12, atol=0) else []
    pmfs = []
    for over, under in directions or [(upper, lower), (lower, upper)]:
        scaled = (np.log(over) - np.log(under)) / step
        nearest = np.rint(scaled)
        scaled = np.where(np.abs(scaled - nearest) < 1e-9, nearest, scaled)  # a loss that lies on the grid
        grid = np.unique(np.concatenate([np.floor(scaled), np.ceil(scaled)])).astype(int)
        gaps = over[None, :] - np.exp(grid * step)[:, None] * under[None, :]
        deltas = np.where(gaps > 1e-15 * over[None, :], gaps, 0.0).sum(axis=1)
        deltas = np.minimum.accumulate(np.minimum(1.0, infinity + (1 - infinity) * deltas))
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, deltas))
    return pld.PrivacyLossDistribution(*pmfs)


def _worst_pair(event: DpEvent, relation: dp.NeighboringRelation) -> tuple[Array, Array, float]:
    if isinstance(event, EpsilonDeltaDpEvent):
        likely, rare = special.expit(event.epsilon), special.expit(-event.epsilon)
        return np.array([likely, rare]), np.array([rare, likely]), event.delta
    honest, noise, buckets = _response(event)
    truth, other = honest + noise / buckets, noise / buckets
    if relation is REPLACE:
        rest = [(buckets - 2) * other] if buckets > 2 else []
        return np.array([truth, other, *rest]), np.array([other, truth, *rest]), 0.0
    return np.array([truth, (buckets - 1) * other]), np.array([1 / buckets, 1 - 1 / buckets]), 0.0


def _response(event: dp.RandomizedResponseDpEvent) -> tuple[float, float, int]:
    """P(the true value on purpose), P(a random value) and the number of values, as the event may have meant them.

    A mechanism computed the second in float64, so that it is known to a few units in the last place, and the first to
    1e-16 only. That is all there is of it over 1e15 values, and over 2^64 the second rounds to 1. Where the first is
    small, less noise is counted than the event says; more would be post-processing of that.
    """
    noise = float(event.noise_parameter)
    if 1 - noise >= _FEW:
        return 1 - noise, noise, event.num_buckets
    return 1 - noise + noise * ROUNDED, noise * (1 - ROUNDED), event.num_buckets


def known_roughly(kind: Kind) -> bool:
    """Whether the loss of one event is only bounded: that of randomised response which seldom tells the truth."""
    return isinstance(kind[0], dp.RandomizedResponseDpEvent) and 1 - kind[0].noise_parameter < 1e-3 * _FEW


def pure_loss(kind: Kind) -> float:
    """The largest loss of one event: its ε at delta = 0, infinite unless the mechanism is purely private."""
    event, relation = kind
    match event:
        case dp.LaplaceDpEvent(noise_multiplier=noise):
            return float(1 / noise)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=dp.LaplaceDpEvent(noise_multiplier=noise)):
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + 1 / noise))
        case DiscreteLaplaceDpEvent(noise_parameter=parameter, sensitivity=sensitivity):
            return float(parameter * sensitivity)
        case dp.RandomizedResponseDpEvent():
            honest, random, buckets = _response(event)
            if relation is REPLACE:
                return math.log1p(honest * (buckets / random))
            return max(math.log1p((buckets - 1) * honest), -math.log1p(-honest) if honest < 0.5 else -math.log(random))
        case EpsilonDeltaDpEvent(epsilon=epsilon, delta=0.0):
            return float(epsilon)
        case dp.ZCDpEvent(rho=0.0, xi=xi):
            return float(xi)
        case _:
            return math.inf


def variance_guess(kind: Kind) -> float:
    """A guess at the variance of the loss of one event. It steers grids and orderings; no claim rests on it."""
    event, _ = kind
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return float(noise**-2)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            full = float(inner.noise_multiplier**-2)
            return float(min(rate**2 * math.expm1(min(full, 500.0)), full))
        case dp.TruncatedSubsampledGaussianDpEvent():
            full = float(event.noise_multiplier**-2)
            return float(min(event.sampling_probability**2 * math.expm1(min(full, 500.0)), full))
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            full = float(inner.noise_multiplier**-2)
            return float(min((sample / size) ** 2 * 4 * math.expm1(min(full, 500.0)), full))
        case dp.ZCDpEvent(rho=rho, xi=xi):
            return float(2 * rho + xi**2)
        case SkellamDpEvent(variance=variance, l2_norm=norm):
            return float(norm**2 / variance)
        case dp.SingleEpochTreeAggregationDpEvent(noise_multiplier=noise, step_counts=steps):
            return math.log2(max(steps if isinstance(steps, int) else max(steps), 1) + 1) / float(noise) ** 2
        case EpsilonDeltaDpEvent(epsilon=epsilon):
            return float(max(epsilon, 1e-6) ** 2 * math.tanh(epsilon / 2))
        case _:
            largest = pure_loss(kind)
            return max(largest * largest * math.tanh(largest / 2), 1e-300)


def width(kind: Kind) -> float:
    """About how wide the losses of one event spread, up to probability exp(-50); it steers grids only."""
    event = kind[0].event if isinstance(kind[0], dp.PoissonSampledDpEvent) else kind[0]
    noise = getattr(event, "noise_multiplier", None)
    reach = 10 * math.sqrt(variance_guess(kind)) if noise is None else (20 + 2 / noise) / noise
    return float(min(2 * pure_loss(kind), reach))


def log_moments(loss: DiscretisedPLD, step: float, exponents: Array) -> Array:
    """log E exp(t·loss) over the finite losses, for each t in ``exponents``."""
    present = np.flatnonzero(loss.probs)
    values, logs = (loss.lower + present) * step, np.log(loss.probs[present])
    block = max(1, 2**18 // len(values))
    blocks = [exponents[start : start + block] for start in range(0, len(exponents), block)]
    return np.concatenate([_log_sum_exp(np.multiply.outer(part, values) + logs) for part in blocks])


def _log_sum_exp(terms: Array) -> Array:
    """log Σ exp of each row of finite ``terms``, which are overwritten; scipy's checks for more than can come here."""
    largest = terms.max(axis=1, keepdims=True)
    np.exp(np.subtract(terms, largest, out=terms), out=terms)
    return np.asarray(np.log(terms.sum(axis=1)) + largest[:, 0])
