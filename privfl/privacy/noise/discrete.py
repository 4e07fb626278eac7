"""Integer noise, drawn exactly: the discrete Gaussian and the Skellam distribution.

Noise that goes into a secure sum must be an integer, and its law must be the one that the proof of privacy is about:
rounded floating-point noise is neither. Both samplers here are exact. They propose and reject: a table whose entries
are integers (so that 64 random bits pick a block of numbers with exactly its entry's probability) lies above the law
everywhere, and a proposal x is kept with probability law(x) / proposal(x). That coin compares a uniform number U,
whose bits come as they are needed, with a probability p that float64 knows to within 2⁻⁴⁰. Where U is that close to p,
once in about 5·10¹¹ draws, p is computed again in decimal arithmetic with proven bounds, to as many digits as it takes
to tell them apart. Numbers beyond the table (probability 2⁻⁶⁰ and less) come from geometric tails, in the same way. So
no floating-point probability decides an outcome, and the distance to the law is zero. That rests on three things: that
the key stream is random, that float64's ``exp`` and ``log`` err by less than 2⁻⁴⁴, and that Python's ``decimal``
rounds correctly, as its documentation says. The time that a draw takes is not hidden.

Sources: the discrete Gaussian is that of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential
Privacy", NeurIPS 2020 (the law, not their sampler, which draws one number at a time); Skellam noise is that of Agarwal,
Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseStream

SMALLEST_VARIANCE = 2.0**-40
LARGEST_GAUSSIAN_VARIANCE = 2.0**80
LARGEST_SKELLAM_VARIANCE = 2.0**48

Array = NDArray[np.float64]

_CHUNK = 1 << 14  # proposals per pass: their work space stays in a core's second-level cache
_TOP = np.uint64(48)  # the upper 16 bits of a word settle most picks from the table by one look-up
_MARGIN = 2.0**-40  # far above what float64 may err by in a probability of keeping a proposal
_ROOM = 1 + 2.0**-30  # by which a table's entries exceed the law, so that no such probability exceeds 1
_SINGLE = 2.0**14  # Poisson laws of a mean below this one are tabulated number by number


def discrete_gaussian(stream: NoiseStream, n: int, variance: float) -> NDArray[np.int64]:
    """``n`` integers x, independent, each with probability proportional to exp(-x² / (2·variance)): exactly that law.

    ``variance`` is the parameter σ² of the law, as the float64 number it is. The numbers' own variance is less, by
    14 % at σ² = 1/4 and by less than a millionth from σ² = 1 on.

    Raises:
        ConfigError: ``n`` is negative, or ``variance`` is neither 0 (all numbers are 0) nor in [2⁻⁴⁰, 2⁸⁰].
    """
    if _is_zero("discrete Gaussian", variance, LARGEST_GAUSSIAN_VARIANCE, n):
        return np.zeros(n, dtype=np.int64)
    return _gaussian_table(float(variance)).draw(stream, n)


def skellam(stream: NoiseStream, n: int, variance: float) -> NDArray[np.int64]:
    """``n`` integers, independent, each the difference of two Poisson numbers of mean variance / 2: exactly that law.

    Sums of such numbers have the same law, with the sum of their variances. ``variance`` is the float64 number it is.

    Raises:
        ConfigError: ``n`` is negative, or ``variance`` is neither 0 (all numbers are 0) nor in [2⁻⁴⁰, 2⁴⁸].
    """
    if _is_zero("Skellam", variance, LARGEST_SKELLAM_VARIANCE, n):
        return np.zeros(n, dtype=np.int64)
    table = _poisson_table(float(variance) / 2)
    noise = table.draw(stream, n)
    noise -= table.draw(stream, n)
    return noise


def _is_zero(name: str, variance: float, largest: float, n: int) -> bool:
    if n < 0:
        raise ConfigError(f"the number of random values is {n}: it must not be negative.")
    if not (variance == 0 or SMALLEST_VARIANCE <= variance <= largest):
        raise ConfigError(
            f"the variance of {name} noise is {variance}: it must be 0 (no noise) or a number from 2^-40 to "
            f"2^{math.log2(largest):.0f}; take a coarser or a finer grid."
        )
    return variance == 0


class _Law(Protocol):
    """A log-concave law on the integers, given by weights relative to its mode, from which offsets are counted."""

    mode: int
    deviation: float
    lowest: int | None
    """The smallest offset, ``None`` if there is none."""

    def log_weights(self, offsets: Array) -> Array:
        """The logarithms of the weights of whole ``offsets``, with an absolute error below 2⁻⁴³ down to -60."""

    def weight(self, offset: int) -> Decimal:
        """One weight, in the current decimal context, with a relative error below 10¹⁵ of the context's units."""


class _Gaussian:
    def __init__(self, variance: float) -> None:
        self.variance, self.deviation = variance, math.sqrt(variance)
        self.mode = 0
        self.lowest: int | None = None

    def log_weights(self, offsets: Array) -> Array:
        squares: Array = offsets * offsets
        squares *= -0.5 / self.variance
        return squares

    def weight(self, offset: int) -> Decimal:
        return (-Decimal(offset) * offset / (2 * Decimal(self.variance))).exp()


class _Poisson:
    def __init__(self, mean: float) -> None:
        self.mean, self.deviation, self.mode = mean, math.sqrt(mean), math.floor(mean)
        self.lowest: int | None = -self.mode
        if mean < _SINGLE:
            self._tabulate()
        else:
            self._expand()

    def _tabulate(self) -> None:
        """The logarithms of all weights that matter, from the ratios of neighbours."""
        reach = math.ceil(12 * self.deviation) + 100
        self.bottom = max(-self.mode, -reach)
        with localcontext(Context(prec=40)):
            below = accumulate(map(self._down, range(-self.bottom)), mul, initial=Decimal(1))
            above = accumulate(map(self._up, range(1, reach + 1)), mul, initial=Decimal(1))
            weights = list(below)[:0:-1] + list(above)
            powers = [weight.adjusted() for weight in weights]
            digits = [float(weight.scaleb(-power)) for weight, power in zip(weights, powers, strict=True)]
        self.logs = np.log(digits) + math.log(10) * np.array(powers)

    def _expand(self) -> None:
        """The Taylor series of the log-weights in t = k/mean - 1, from Stirling's series for log k!."""
        mean, widest = self.mean, 12 / self.deviation
        terms = next(n for n in range(4, 64) if mean * widest**n < 2.0**-50)
        powers = range(1, terms + 1)
        self.series = [
            (-1.0) ** n * (-(mean / (n * (n - 1)) if n > 1 else 0.0) + 0.5 / n - 1 / (12 * mean)) for n in powers
        ]
        self.fraction = mean - self.mode
        self.top = 0.0
        self.top = float(self.log_weights(np.zeros(1))[0])

    def log_weights(self, offsets: Array) -> Array:
        if self.mean < _SINGLE:
            places = offsets.astype(np.int64) - self.bottom
            return np.where(places < 0, -np.inf, self.logs[places.clip(0)])
        t = offsets - self.fraction
        t /= self.mean
        logs = t * self.series[-1]
        for coefficient in self.series[-2::-1]:
            logs += coefficient
            logs *= t
        logs -= self.top
        return logs

    def weight(self, offset: int) -> Decimal:
        if offset < -self.mode:
            return Decimal(0)
        product = Decimal(1)
        for step in range(0, -offset):
            product *= self._down(step)
        for step in range(1, offset + 1):
            product *= self._up(step)
        return product

    def _down(self, step: int) -> Decimal:
        """P(mode - step - 1) / P(mode - step)."""
        return Decimal(self.mode - step) / Decimal(self.mean)

    def _up(self, step: int) -> Decimal:
        """P(mode + step) / P(mode + step - 1)."""
        return Decimal(self.mean) / (self.mode + step)


@dataclass(frozen=True)
class _Tail:
    """What lies beyond the table on one side: lengths that are picked with probability 1/2, 1/4, 1/8, …"""

    start: int
    sign: int
    length: int


class _Table:
    """Proposals for a law: blocks of equal length, each picked with an integer weight out of 2⁶⁴, and two tails."""

    def __init__(self, law: _Law) -> None:
        self.law = law
        self.block: int = max(1, 2 ** math.floor(math.log2(law.deviation / 64)))
        reach = math.ceil((10 * law.deviation + 48) / self.block)
        below = reach if law.lowest is None else min(reach, -(law.lowest // self.block))
        numbers = np.arange(-below, reach, dtype=np.float64)
        nearest = np.where(numbers < 0, numbers + 1, numbers) * self.block - (numbers < 0)  # its offset near the mode
        weights = self.block * np.exp(law.log_weights(nearest))
        self.scale = (1 - 2.0**-20) * 2.0**64 / float(weights.sum())
        right = self._tail(range(1, reach), +1)
        left = None if below < reach and law.lowest is not None else self._tail(range(1, below), -1)
        self.first = -below if left is None else (left.start + 1) // self.block
        self.tails = [tail for tail in (left, right) if tail is not None]
        kept = slice(self.first + below, right.start // self.block + below)
        entries = np.ceil(weights[kept] * self.scale * _ROOM).clip(1)
        self.entries = [int(entry) for entry in entries] + [1] * len(self.tails)
        total, ends = 0, []
        for entry in self.entries:
            total += entry
            ends.append(total)
        assert total < 1 << 64
        self.ends = np.array(ends, dtype=np.uint64)
        starts = np.arange(1 << 16, dtype=np.uint64) << _TOP
        low, high = (np.searchsorted(self.ends, words, side="right") for words in (starts, starts + (2**48 - 1)))
        self.pick = np.where(low == high, low, -1).astype(np.int16)
        # A tail has no float64 probability, and what is left over of the 2⁶⁴ words is never kept.
        shifts = np.log(self.scale * self.block / entries)
        self.shifts = np.concatenate([shifts, np.full(len(self.tails), np.nan), [-np.inf]])
        alone = np.concatenate([law.log_weights(nearest[kept]), np.zeros(len(self.tails) + 1)])
        self.kept_alone = np.exp(alone + self.shifts)

    def _tail(self, numbers: range, sign: int) -> _Tail:
        """The first place beyond which a geometric tail of weight 1 lies above the law."""
        for number in numbers:
            start = number * self.block if sign > 0 else -number * self.block - 1
            log = float(self.law.log_weights(np.array([start], dtype=np.float64))[0])
            length = 1
            while 4 * self.scale * length * math.exp(log) <= 1:
                then = self.law.log_weights(np.array([start + sign * length], dtype=np.float64))
                if then[0] < log - 0.7:  # half or less, and by log-concavity so in every length that follows
                    return _Tail(start, sign, length)
                length *= 2
        raise AssertionError("the distribution's tails are heavier than the table's reach allows for")

    def draw(self, stream: NoiseStream, n: int) -> NDArray[np.int64]:
        """``n`` numbers with the law."""
        out = np.empty(n, dtype=np.int64)
        for start in range(0, n, _CHUNK):
            part = out[start : start + _CHUNK]
            part[:], kept = self._propose(stream, len(part))
            missing = np.flatnonzero(~kept)
            while missing.size:
                values, kept = self._propose(stream, missing.size)
                part[missing[kept]] = values[kept]
                missing = missing[~kept]
        out += self.law.mode
        return out

    def _propose(self, stream: NoiseStream, n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """``n`` offsets, and which of them are kept."""
        words = stream.words((2 if self.block == 1 else 3) * n).reshape(-1, n)
        entry = self.pick.take((words[0] >> _TOP).view(np.int64)).astype(np.int64)
        unsettled = np.flatnonzero(entry < 0)
        entry[unsettled] = np.searchsorted(self.ends, words[0, unsettled], side="right")
        offsets = entry + self.first
        if self.block == 1:
            chances = self.kept_alone.take(entry)
        else:
            offsets *= self.block
            offsets += (words[2] & np.uint64(self.block - 1)).view(np.int64)
            chances = self.law.log_weights(offsets.astype(np.float64))
            chances += self.shifts.take(entry)
            np.exp(chances, out=chances)
        uniform = (words[1] >> np.uint64(11)).view(np.int64).astype(np.float64)
        uniform *= 2.0**-53
        kept = uniform < chances - _MARGIN
        decided = uniform >= chances + _MARGIN
        decided |= kept
        if not decided.all():
            for place in np.flatnonzero(~decided):
                number, offset = int(entry[place]), int(offsets[place])
                offsets[place], kept[place] = self._settle(stream, number, offset, int(words[1, place]))
        return offsets, kept

    def _settle(self, stream: NoiseStream, number: int, offset: int, word: int) -> tuple[int, bool]:
        """The offset proposed by the table's entry ``number``, and whether it is kept, without floating point."""
        if number == len(self.entries):
            return offset, False
        size, halvings = self.block, 0
        beyond = number - (len(self.entries) - len(self.tails))
        if beyond >= 0:
            tail = self.tails[beyond]
            size, halvings = tail.length, _leading_zeros(stream) + 1
            inside = int(stream.words(1)[0]) & (tail.length - 1)
            offset = tail.start + tail.sign * ((halvings - 1) * tail.length + inside)

        def chance() -> Decimal:
            above = Decimal(self.scale) * size * (1 << halvings) / self.entries[number]
            return self.law.weight(offset) * above

        return offset, _below(stream, word, chance)


def _leading_zeros(stream: NoiseStream) -> int:
    """How many coins show 0 before the first 1: k with probability 2⁻⁽ᵏ⁺¹⁾."""
    zeros = 0
    while not (word := int(stream.words(1)[0])):
        zeros += 64
    return zeros + 64 - word.bit_length()


def _below(stream: NoiseStream, word: int, chance: Callable[[], Decimal]) -> bool:
    """Whether a uniform number whose first 64 bits are ``word`` is below ``chance()``: bits and digits as needed."""
    bits, prefix = 64, word
    while True:
        digits = bits // 3 + 10
        with localcontext(Context(prec=digits + 20, Emin=MIN_EMIN, Emax=MAX_EMAX)):
            scaled = chance() * 2**bits
            error = scaled.scaleb(-digits)
            if prefix + 1 <= scaled - error:
                return True
            if prefix >= scaled + error:
                return False
        bits, prefix = bits + 64, prefix << 64 | int(stream.words(1)[0])


@lru_cache(maxsize=64)
def _gaussian_table(variance: float) -> _Table:
    return _Table(_Gaussian(variance))


@lru_cache(maxsize=64)
def _poisson_table(mean: float) -> _Table:
    return _Table(_Poisson(mean))
