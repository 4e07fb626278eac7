"""Gaussian noise, its addition and the rounding to the grid in one kernel, where Triton is installed.

The operations are those of :mod:`privfl.privacy.noise.chacha` and :mod:`privfl.privacy.noise.box_muller`, one for one
and in the same order, each rounded as IEEE 754 says: the compiler is told to contract no product with a sum
(``enable_fp_fusion=False``), and has ``+ - * /`` and the root of float64 in no other rounding. Whether what it made
gives the bits of the host is tried before it is used (:mod:`privfl.privacy.noise.fused`).

A lane has one block of the key stream of each kind: eight pairs of words, and so sixteen numbers of its row. What
``TRITON_INTERPRET=1`` runs with NumPy, on a machine without a GPU, is this code. Names that a kernel reads outside of
itself have to be ``constexpr``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from privfl.privacy.noise.box_muller import (
    COSINE_SERIES,
    LN2_HIGH,
    LN2_LOW,
    LOG_SERIES,
    REFINE_BELOW,
    ROOT_HALF,
    SINE_SERIES,
    TURN,
)
from privfl.privacy.noise.chacha import CONSTANTS, LANES, WORDS

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton 3.2, which PyTorch 2.6 brings, is there and asks for setuptools
    THERE = False
else:
    THERE = True
"""Whether Triton can be imported; where it cannot, this module only says what the kernel is."""

ROUNDED = {"enable_fp_fusion": False}
"""What the compiler is told: every product and every sum is rounded by itself."""


def _fixed(value: Any) -> Any:
    return tl.constexpr(value) if THERE else value


def _compiled(function: Callable[..., Any]) -> Any:
    return triton.jit(function) if THERE else function


_K0, _K1, _K2, _K3 = map(_fixed, CONSTANTS)
_WORDS = _fixed(WORDS)
_L19, _L17, _L15, _L13, _L11, _L9, _L7, _L5, _L3 = map(_fixed, LOG_SERIES)
_S13, _S11, _S9, _S7, _S5, _S3 = map(_fixed, SINE_SERIES)
_C12, _C10, _C8, _C6, _C4, _C2 = map(_fixed, COSINE_SERIES)
_LN2_HIGH, _LN2_LOW, _TURN = map(_fixed, (LN2_HIGH, LN2_LOW, TURN))
_REFINE_BELOW, _TWO_ROOT_HALF = map(_fixed, (REFINE_BELOW, 2 * ROOT_HALF))
_LEAST, _UNIT, _STEP = map(_fixed, (2.0**-53, 2.0**-63, 2.0**-64))
_FRACTION, _ONE, _WHOLE = map(_fixed, ((1 << 52) - 1, 1023 << 52, 2.0**52))


def _turned_of(words: tl.tensor, left: tl.constexpr) -> tl.tensor:
    return (words << left) | (words >> (32 - left))


_turned = _compiled(_turned_of)


def _quarter_of(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    a = a + b
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 12)
    a = a + b
    d = _turned(d ^ a, 8)
    c = c + d
    b = _turned(b ^ c, 7)
    return a, b, c, d


_quarter = _compiled(_quarter_of)


def _word_of(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """A signed word of 64 bits from two without sign of 32."""
    return (high.to(tl.int64) << 32) | low.to(tl.int64)


_word = _compiled(_word_of)


def _block_of(
    k0: tl.tensor,
    k1: tl.tensor,
    k2: tl.tensor,
    k3: tl.tensor,
    k4: tl.tensor,
    k5: tl.tensor,
    k6: tl.tensor,
    k7: tl.tensor,
    number: tl.tensor,
    nonce: tl.constexpr,
) -> tl.tensor:
    """The eight words of the blocks ``number`` of one key."""
    zero = number ^ number
    s0, s1, s2, s3 = zero + _K0, zero + _K1, zero + _K2, zero + _K3
    s4, s5, s6, s7 = zero + k0, zero + k1, zero + k2, zero + k3
    s8, s9, s10, s11 = zero + k4, zero + k5, zero + k6, zero + k7
    s15 = zero + nonce
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, number, zero, zero, s15
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        _word(x0 + s0, x1 + s1),
        _word(x2 + s2, x3 + s3),
        _word(x4 + s4, x5 + s5),
        _word(x6 + s6, x7 + s7),
        _word(x8 + s8, x9 + s9),
        _word(x10 + s10, x11 + s11),
        _word(x12 + number, x13),
        _word(x14, x15 + s15),
    )


_block = _compiled(_block_of)


def _length_of(word: tl.tensor, fine: tl.tensor) -> tl.tensor:
    """:func:`privfl.privacy.noise.box_muller.radius`."""
    magnitude = tl.abs(word.to(tl.float64))
    refined = tl.maximum(tl.abs(magnitude + fine.to(tl.float64) * _STEP), _LEAST)
    bits = (tl.where(magnitude < _REFINE_BELOW, refined, magnitude) * _UNIT).to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & _FRACTION) | _ONE).to(tl.float64, bitcast=True)
    large = mantissa > _TWO_ROOT_HALF
    mantissa = tl.where(large, mantissa * 0.5, mantissa)
    power = (exponent + large.to(tl.int64)).to(tl.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = (((z * _L19 + _L17) * z + _L15) * z + _L13) * z + _L11
    series = (((series * z + _L9) * z + _L7) * z + _L5) * z + _L3
    double = s + s
    return tl.sqrt((power * _LN2_HIGH + (double + (double * (z * series) + power * _LN2_LOW))) * -2.0)


_length = _compiled(_length_of)


def _rounded_of(values: tl.tensor) -> tl.tensor:
    """To the nearest whole number, to the even one from the middle, with the sign of a zero, as everywhere else."""
    # An addition of 2^52 rounds to whole numbers; what is as large is one, or not a number.
    shift = tl.where(values < 0.0, -_WHOLE, _WHOLE).to(tl.float64)
    whole = (values + shift) - shift
    whole = tl.where(whole == 0.0, values * 0.0, whole)
    return tl.where(tl.abs(values) < _WHOLE, whole, values)


_rounded = _compiled(_rounded_of)


def _add_to(
    place: tl.tensor, inside: tl.tensor, noise: tl.tensor, scale: tl.tensor, inverse: tl.tensor, grid: tl.tensor
) -> None:
    values = tl.load(place, mask=inside, other=0.0).to(tl.float64)
    total = _rounded(values * inverse + noise * scale) * grid
    tl.store(place, total.to(place.dtype.element_ty), mask=inside)


_add = _compiled(_add_to)


def _pair_to(
    row: tl.tensor,
    pair: tl.tensor,
    half: tl.tensor,
    size: tl.tensor,
    radius_word: tl.tensor,
    angle_word: tl.tensor,
    fine: tl.tensor,
    cosines: tl.tensor,
    scale: tl.tensor,
    inverse: tl.tensor,
    grid: tl.tensor,
) -> None:
    """Release the two numbers of ``pair``: :func:`privfl.privacy.noise.box_muller.pairs`."""
    length = _length(radius_word, fine)
    eighth = ((angle_word >> 60) + 1) >> 1
    t = (angle_word - (eighth << 61)).to(tl.float64) * _TURN
    z = t * t
    odd = ((((z * _S13 + _S11) * z + _S9) * z + _S7) * z + _S5) * z + _S3
    even = ((((z * _C12 + _C10) * z + _C8) * z + _C6) * z + _C4) * z + _C2
    sine = t + t * (z * odd)
    cosine = z * even + 1.0
    by_cosine = tl.load(cosines + (eighth & 7))
    by_sine = tl.load(cosines + ((eighth - 2) & 7))
    inside = pair < half
    _add(row + pair, inside, length * (by_cosine * cosine - by_sine * sine), scale, inverse, grid)
    other = half + pair
    _add(row + other, inside & (other < size), length * (by_sine * cosine + by_cosine * sine), scale, inverse, grid)


_pair = _compiled(_pair_to)


def _release_rows(
    rows: tl.tensor,
    apart: tl.tensor,
    keys: tl.tensor,
    starts: tl.tensor,
    scales: tl.tensor,
    inverses: tl.tensor,
    grids: tl.tensor,
    cosines: tl.tensor,
    size: tl.tensor,
    half: tl.tensor,
    programs: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """``programs`` of a row, each with ``LANES`` blocks; rows [n, size] lie ``apart`` numbers from one another."""
    place = (tl.program_id(0) // programs).to(tl.int64)
    block = (tl.program_id(0) % programs).to(tl.int64) * LANES + tl.arange(0, LANES)
    number = (tl.load(starts + place) + block).to(tl.uint32)
    key = keys + place * 8
    k0 = tl.load(key + 0).to(tl.uint32, bitcast=True)
    k1 = tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = tl.load(key + 7).to(tl.uint32, bitcast=True)
    r0, r1, r2, r3, r4, r5, r6, r7 = _block(k0, k1, k2, k3, k4, k5, k6, k7, number, 1)
    a0, a1, a2, a3, a4, a5, a6, a7 = _block(k0, k1, k2, k3, k4, k5, k6, k7, number, 2)
    f0 = block * 0
    f1, f2, f3, f4, f5, f6, f7 = f0, f0, f0, f0, f0, f0, f0
    few = tl.minimum(_size(r0, r1), _size(r2, r3))
    few = tl.minimum(few, tl.minimum(_size(r4, r5), _size(r6, r7)))
    if tl.min(few, axis=0) < _REFINE_BELOW:  # once in some 2^20 programs
        f0, f1, f2, f3, f4, f5, f6, f7 = _block(k0, k1, k2, k3, k4, k5, k6, k7, number, 3)
    row = rows + place * apart
    scale, inverse, grid = tl.load(scales + place), tl.load(inverses + place), tl.load(grids + place)
    pair = block * _WORDS
    _pair(row, pair + 0, half, size, r0, a0, f0, cosines, scale, inverse, grid)
    _pair(row, pair + 1, half, size, r1, a1, f1, cosines, scale, inverse, grid)
    _pair(row, pair + 2, half, size, r2, a2, f2, cosines, scale, inverse, grid)
    _pair(row, pair + 3, half, size, r3, a3, f3, cosines, scale, inverse, grid)
    _pair(row, pair + 4, half, size, r4, a4, f4, cosines, scale, inverse, grid)
    _pair(row, pair + 5, half, size, r5, a5, f5, cosines, scale, inverse, grid)
    _pair(row, pair + 6, half, size, r6, a6, f6, cosines, scale, inverse, grid)
    _pair(row, pair + 7, half, size, r7, a7, f7, cosines, scale, inverse, grid)


def _smaller_size(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return tl.minimum(tl.abs(one.to(tl.float64)), tl.abs(other.to(tl.float64)))


_size = _compiled(_smaller_size)
_release = _compiled(_release_rows)


def release_(
    rows: Tensor, keys: Tensor, starts: Tensor, scales: Tensor, inverses: Tensor, grids: Tensor, cosines: Tensor
) -> None:
    """Add to each of ``rows`` [n, size], of numbers without gaps, the noise of its key, in place, on its grid.

    ``keys`` int32 [n, 8], ``starts`` int64 [n], and float64 [n] each: the deviations in steps of the grid, one over the
    grids and the grids; ``cosines`` of whole eighths of a turn.
    """
    size = rows.shape[1]
    half = (size + 1) // 2
    programs = -(-half // (WORDS * LANES))
    _release[(len(rows) * programs,)](
        rows,
        rows.stride(0),
        keys,
        starts,
        scales,
        inverses,
        grids,
        cosines,
        size,
        half,
        programs,
        LANES=LANES,
        num_warps=4,
        **ROUNDED,
    )
