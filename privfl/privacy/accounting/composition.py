"""The loss of a whole history: many events of many kinds, composed by one product of Fourier transforms.

``prod_k transform_k ** count_k`` and one inverse transform at the end, so that thousands of clients and hundreds of
different rates share the transforms. Whatever the numbers lose is added to delta: the mass beyond the window (Chernoff
bound), the mass at infinity, and the rounding of the transforms.

Why unlike relations may be convolved. Fix a row of the statement, two neighbouring inputs D (with the record) and D'
(without it, or with its contribution left out), and let (A_k, B_k) be the pair whose loss is discretised for message k.
By the contract of :class:`Cost`, (A_k, B_k) dominates (message from D, message from D') whatever was sent before, and
(B_k, A_k), the "add" direction, dominates the reverse. Dominating pairs multiply under adaptive composition (Zhu, Dong
and Wang 2022, Theorem 10), so the product of all "remove" losses bounds the transcript from D against D', the product
of all "add" losses the reverse, and epsilon is the larger of the two. How each pair was found (adding or removing an
example, replacing a value by another one) plays no part after that; a symmetric loss simply enters both products. The
pairs themselves are fixed: a rate that was computed from released answers is accounted given those answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy

from privfl.privacy.accounting.events import Kind
from privfl.privacy.accounting.loss import SHORT, Array, losses, variance_guess

_WINDOW_SHARE = 1e-4
"""Share of delta given up for cutting the composed loss to a window."""

_ROUNDING = 2 * float(np.finfo(np.float64).eps)
"""Relative error of one Fourier coefficient per composition; a test against 80-bit transforms leaves a factor of 2."""

_LARGEST_TRANSFORM = 2**22

_TILTS = 18
"""How many Chernoff exponents are tried for either end of the window."""


@dataclass(frozen=True)
class Sum:
    """The loss of a whole history in one direction, cut to a window; ``escaped`` bounds everything left out."""

    step: float
    lower: int
    probs: Array
    escaped: float

    @property
    def surplus(self) -> float:
        """What rounding added to the mass: it took some points below 0, which were raised to it and count for ever."""
        return max(0.0, float(self.probs.sum()) - 1)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """The smallest ε >= 0 with hockey-stick divergence <= delta, and -d ln(delta)/dε there.

        ``escaped`` is *not* taken into account: subtract it from delta for an upper bound, add it for a lower one,
        and ``surplus`` too.
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


@lru_cache(maxsize=1024)
def _cumulants(kind: Kind, direction: int, step: float, octave: int) -> Array:
    """log E exp(t·loss) for the values of t that :func:`_tilts` lists for ``octave``, in its order; never too small."""
    loss, sizes = losses(kind, step)[direction], _tilts(octave)[:_TILTS]
    present = np.flatnonzero(loss.probs)
    values, probs = (loss.lower + present) * step, loss.probs[present]
    return np.concatenate(
        [
            _eightfold(values - values[-1], probs, sizes) + sizes * values[-1],
            _eightfold(values[0] - values, probs, sizes) - sizes * values[0],
        ]
    )


def _eightfold(values: Array, probs: Array, sizes: Array) -> Array:
    """log Σ probs·exp(t·values) for each t of ``sizes``, each eight times that four places before it; values <= 0.

    Only the first four take exponentials, the others three squarings. What they lose is added: a relative error that
    doubles each time, from one in the last place to 1e-10, and whatever is too small for a float64.
    """
    powers = np.exp(np.multiply.outer(sizes[:4], values))
    sums = []
    for start in range(0, len(sizes), 4):
        if start:
            for _ in range(3):
                np.multiply(powers, powers, out=powers)
        sums.append(powers @ probs)
    return np.asarray(np.log(np.concatenate(sums)[: len(sizes)] + 1e-290) + 1e-10)


def _tilts(octave: int) -> Array:
    """Chernoff exponents around 2^octave; far smaller ones too, for losses that are rare and large."""
    sizes = 2.0 ** (octave + 0.75 * np.arange(-14, _TILTS - 14))
    return np.concatenate([sizes, -sizes])


def _log_transform(kind: Kind, direction: int, step: float, length: int) -> npt.NDArray[np.complex128]:
    return (_short_transform if length <= 4 * SHORT else _transform)(kind, direction, step, length)


def _transform(kind: Kind, direction: int, step: float, length: int) -> npt.NDArray[np.complex128]:
    probs = losses(kind, step)[direction].probs
    if len(probs) > length:  # the window is narrower than one event: wrap, as the cyclic convolution would
        probs = np.pad(probs, (0, -len(probs) % length)).reshape(-1, length).sum(axis=0)
    transform = scipy.fft.rfft(probs, length)
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
    variance = sum(count * variance_guess(kind) for kind, count in kinds.items())
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
    probs = np.roll(scipy.fft.irfft(np.exp(exponent), length), (lowest - window_low) % length)
    probs = np.maximum(probs[: window_high - window_low + 1], 0.0)
    rounding = _ROUNDING * (total + math.log2(length)) * math.sqrt(length) * float(np.linalg.norm(probs))
    return Sum(step, window_low, probs, escaped + rounding)
