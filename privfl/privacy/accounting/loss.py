"""Privacy loss distributions: one event on a grid, and the sum over many events of many kinds.

dp_accounting discretises the loss of a single event pessimistically ("connect the dots", Doroshenko et al. 2022):
the discretised pair of output distributions dominates the true one. This module composes such losses by multiplying
their Fourier transforms, ``prod_k transform_k ** count_k``, with one inverse transform at the end, so that thousands
of clients and hundreds of different rates share the transforms. Whatever the numbers lose is added to delta: the mass
beyond the window (Chernoff bound), the mass at infinity, and the rounding of the transforms.

Why unlike relations may be convolved. Fix a row of the statement, two neighbouring inputs D (with the record) and D'
(without it, or zeroed out), and let (A_k, B_k) be the pair whose loss is discretised for message k. By the contract
of :class:`Cost`, (A_k, B_k) dominates (message from D, message from D') whatever was sent before, and (B_k, A_k), the
"add" direction, dominates the reverse. Dominating pairs multiply under adaptive composition (Zhu, Dong and Wang 2022,
Theorem 10), so the product of all "remove" losses bounds the transcript from D against D', the product of all "add"
losses the reverse, and epsilon is the larger of the two. How each pair was found (adding or removing an example,
replacing a value by another one) plays no part after that; a symmetric loss simply enters both products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from scipy import fft, special

from privfl.privacy.accounting.events import REPLACE, EpsilonDeltaDpEvent, Kind

Array = npt.NDArray[np.float64]

_WINDOW_SHARE = 1e-4
"""Share of delta given up for cutting the composed loss to a window."""

_ROUNDING = 2 * float(np.finfo(np.float64).eps)
"""Relative error of one Fourier coefficient per composition; a test against 80-bit transforms leaves a factor of 2."""

_LARGEST_TRANSFORM = 2**22

_SHORT = 2**14
"""Grids up to about this length are kept in large caches, longer ones in small caches or in none."""

_REACH = -float(special.ndtri(0.5 * math.exp(-50)))
"""Gaussian noise beyond this many standard deviations is counted as mass at infinity, as dp_accounting does."""


@dataclass(frozen=True)
class Loss:
    """The discretised loss of one event in one direction: P(loss = (lower + i)·step) = probs[i], rest at infinity."""

    lower: int
    probs: Array
    infinity: float


_UNKNOWN = Loss(0, np.ones(1), 1.0)
"""Where numbers leave the range of float64: everything may leak."""


@dataclass(frozen=True)
class Sum:
    """The loss of a whole history in one direction, cut to a window; ``escaped`` bounds everything left out."""

    step: float
    lower: int
    probs: Array
    escaped: float

    def epsilon(self, delta: float) -> tuple[float, float]:
        """The smallest ε >= 0 with hockey-stick divergence <= delta, and -d ln(delta)/dε there.

        ``escaped`` is *not* taken into account: subtract it from delta for an upper bound, add it for a lower one.
        Returns infinity if delta is not positive.
        """
        if delta <= 0:
            return math.inf, 1.0
        low, high = max(0, -self.lower), len(self.probs) - 1  # divergence at loss ``high`` is 0, and falls with ε
        while low < high:
            middle = (low + high) // 2
            mass, scaled = self._tail(middle)
            low, high = (low, middle) if mass - scaled <= delta else (middle + 1, high)
        if low >= len(self.probs):
            return 0.0, 0.0
        mass, scaled = self._tail(low)
        if mass <= delta:
            return 0.0, 0.0
        epsilon = (self.lower + low) * self.step + math.log((mass - delta) / scaled)
        return float(max(0.0, epsilon)), (mass - delta) / delta

    def _tail(self, start: int) -> tuple[float, float]:
        """Mass of the losses from ``start`` on, and the same weighted by exp(loss at start - loss)."""
        tail = self.probs[start:]
        return float(tail.sum()), float(np.exp(-self.step * np.arange(len(tail))) @ tail)


def losses(kind: Kind, step: float) -> tuple[Loss, Loss]:
    """The pessimistic losses (remove, add) of one elementary event on the grid of multiples of ``step``."""
    return (_short_losses if width(kind) / step < _SHORT else _long_losses)(kind, step)


def _build(kind: Kind, step: float) -> tuple[Loss, Loss]:
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


def _build_quietly(kind: Kind, step: float) -> tuple[Loss, Loss]:
    with np.errstate(all="ignore"):  # far tails overflow on purpose: exp(large)·0 and log(0) are meant
        return _build(kind, step)


_short_losses, _long_losses = lru_cache(maxsize=1024)(_build_quietly), lru_cache(maxsize=8)(_build_quietly)


def _poisson_gaussian_losses(rate: float, noise: float, step: float) -> tuple[Loss, Loss]:
    """What ``pld.from_gaussian_mechanism`` builds, thirty times faster: it works point by point in Python."""
    reach = (_REACH + 0.5 / noise) / noise  # of the unsampled loss, up to probability exp(-50)
    ends = [float(np.logaddexp(math.log1p(-rate), math.log(rate) + sign * reach)) for sign in (-1, 1)]
    directions = []
    for sign, bottom, top in ((1, ends[0], ends[1]), (-1, -ends[1], -ends[0])):  # remove, add
        low = math.floor(bottom / step)
        high = max(math.ceil(top / step), low + 1)
        grid = np.arange(low, high + 1) * step
        ratio = sign * grid  # log of the likelihood ratio of the mixture, and the noise at which it is reached:
        up = ratio + np.log(rate * np.exp(-ratio) - np.expm1(-ratio))
        threshold = noise**2 * (np.where(ratio > 0, up, np.log(np.expm1(ratio) + rate)) - math.log(rate)) + 0.5
        without, sampled = (special.ndtr(-sign * (threshold - shift) / noise) for shift in (0, 1))
        mixed = (1 - rate) * without + rate * sampled
        over, under = (mixed, without) if sign == 1 else (without, mixed)
        divergence = over - np.exp(grid + np.log(under))  # in logarithms, because exp(grid) may overflow
        beyond = -np.expm1(grid) if sign == 1 else 0.0  # grid below the smallest loss, or above the largest one
        deltas = np.clip(np.where(np.isnan(threshold), beyond, divergence), 0, 1)
        directions.append(_connect_dots(np.minimum.accumulate(deltas), low, step))
    return directions[0], directions[1]


def _connect_dots(deltas: Array, lower: int, step: float) -> Loss:
    """The loss whose divergences at ε = (lower + i)·step are ``deltas`` (Doroshenko et al. 2022, Algorithm 1)."""
    falls = np.diff(deltas)
    probs = np.empty_like(deltas)
    probs[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
    probs[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
    probs[-1] = falls[-1] / math.expm1(-step)
    if not np.isfinite(probs).all():
        return _UNKNOWN
    return Loss(lower, np.maximum(probs, 0.0), float(deltas[-1]))


def _arrays(pmf: Any) -> Loss:
    dense = pmf.to_dense_pmf()
    if not np.isfinite(dense._probs).all():
        return _UNKNOWN
    return Loss(dense._lower_loss, np.asarray(dense._probs, dtype=np.float64), float(dense._infinity_mass))


def _finite_loss(event: DpEvent, relation: dp.NeighboringRelation, step: float) -> pld.PrivacyLossDistribution:
    """Connect-the-dots losses of a mechanism with few outcomes, from its two worst-case output distributions.

    dp_accounting's ``from_randomized_response`` rounds every loss up to the grid, which costs up to ``step`` for each
    answer; connecting the dots costs ``step²/8``.
    """
    upper, lower, infinity = _worst_pair(event, relation)
    directions = [(upper, lower)] if np.allclose(np.sort(upper), np.sort(lower), rtol=1e-12) else []
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
        likely = special.expit(event.epsilon)
        return np.array([likely, 1 - likely]), np.array([1 - likely, likely]), event.delta
    noise, buckets = event.noise_parameter, event.num_buckets
    truth, other = 1 - noise + noise / buckets, noise / buckets
    if relation is REPLACE:
        rest = [(buckets - 2) * other] if buckets > 2 else []
        return np.array([truth, other, *rest]), np.array([other, truth, *rest]), 0.0
    return np.array([truth, (buckets - 1) * other]), np.array([1 / buckets, 1 - 1 / buckets]), 0.0


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
            upper, lower, _ = _worst_pair(event, relation)
            return float(np.abs(np.log(upper) - np.log(lower)).max())
        case EpsilonDeltaDpEvent(epsilon=epsilon, delta=0.0):
            return float(epsilon)
        case dp.ZCDpEvent(rho=0.0, xi=xi):
            return float(xi)
        case _:
            return math.inf


def spread(kind: Kind) -> float:
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
    reach = 10 * math.sqrt(spread(kind)) if noise is None else (20 + 2 / noise) / noise
    return float(min(2 * pure_loss(kind), reach))


@lru_cache(maxsize=1024)
def _cumulants(kind: Kind, direction: int, step: float, octave: int) -> Array:
    """log E exp(t·loss) for the values of t that :func:`_tilts` lists for ``octave``, in its order."""
    return log_moments(losses(kind, step)[direction], step, _tilts(octave))


def log_moments(loss: Loss, step: float, exponents: Array) -> Array:
    """log E exp(t·loss) over the finite losses, for each t in ``exponents``."""
    present = np.flatnonzero(loss.probs)
    values, logs = (loss.lower + present) * step, np.log(loss.probs[present])
    block = max(1, 2**18 // len(values))
    blocks = [exponents[start : start + block] for start in range(0, len(exponents), block)]
    return np.concatenate([special.logsumexp(np.multiply.outer(part, values) + logs, axis=1) for part in blocks])


def _tilts(octave: int) -> Array:
    """Chernoff exponents around 2^octave; far smaller ones too, for losses that are rare and large."""
    sizes = 2.0 ** (octave + 0.75 * np.arange(-14, 4))
    return np.concatenate([sizes, -sizes])


def _log_transform(kind: Kind, direction: int, step: float, length: int) -> npt.NDArray[np.complex128]:
    return (_short_transform if length <= 4 * _SHORT else _transform)(kind, direction, step, length)


def _transform(kind: Kind, direction: int, step: float, length: int) -> npt.NDArray[np.complex128]:
    probs = losses(kind, step)[direction].probs
    if len(probs) > length:  # the window is narrower than one event: wrap, as the cyclic convolution would
        probs = np.pad(probs, (0, -len(probs) % length)).reshape(-1, length).sum(axis=0)
    transform = fft.rfft(probs, length)
    return np.asarray(np.log(np.where(np.abs(transform) < 1e-300, 1e-300, transform)))


_short_transform = lru_cache(maxsize=256)(_transform)


def compose(kinds: Mapping[Kind, int], step: float, delta: float) -> tuple[Sum, ...]:
    """The losses of a history of elementary kinds: (remove, add), or one of them if all are symmetric.

    The window holds all but 1e-4·delta of the mass, so the result is meant for questions near ``delta``.
    """
    symmetric = all(losses(kind, step)[0] is losses(kind, step)[1] for kind in kinds)
    return tuple(_compose(kinds, direction, step, delta) for direction in ((0,) if symmetric else (0, 1)))


def _compose(kinds: Mapping[Kind, int], direction: int, step: float, delta: float) -> Sum:
    parts = [(kind, count, losses(kind, step)[direction]) for kind, count in kinds.items()]
    total = sum(kinds.values())
    lowest = sum(count * loss.lower for _, count, loss in parts)
    highest = lowest + sum(count * (len(loss.probs) - 1) for _, count, loss in parts)
    infinity = -math.expm1(sum(count * math.log1p(-min(loss.infinity, 1 - 1e-16)) for _, count, loss in parts))

    cut = _WINDOW_SHARE * delta / 2
    variance = sum(count * spread(kind) for kind, count in kinds.items())
    octave = round(math.log2(math.sqrt(2 * math.log(1 / cut) / variance)))
    tilts = _tilts(octave)
    cumulants = sum((count * _cumulants(kind, direction, step, octave) for kind, count, _ in parts), 0 * tilts)
    bounds = (cumulants + math.log(1 / cut)) / tilts / step
    window_high = int(min(highest, np.ceil(bounds[tilts > 0].min())))
    window_low = int(max(lowest, np.floor(bounds[tilts < 0].max())))
    escaped = infinity + cut * ((window_high < highest) + (window_low > lowest))

    length = max(2, 2 ** math.ceil(math.log2(window_high - window_low + 1)))
    if length > _LARGEST_TRANSFORM:
        raise OverflowError("the grid is too fine for this history")
    exponent = np.zeros(length // 2 + 1, dtype=np.complex128)
    for kind, count, _ in parts:
        exponent += count * _log_transform(kind, direction, step, length)
    probs = np.roll(fft.irfft(np.exp(exponent), length), (lowest - window_low) % length)
    probs = np.maximum(probs[: window_high - window_low + 1], 0.0)
    rounding = _ROUNDING * (total + math.log2(length)) * math.sqrt(length) * float(np.linalg.norm(probs))
    return Sum(step, window_low, probs, escaped + rounding)


def clear_caches() -> None:
    """Forget all cached losses (for memory after a large study)."""
    for cached in (_short_losses, _long_losses, _cumulants, _short_transform):
        cached.cache_clear()
