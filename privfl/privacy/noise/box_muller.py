"""Normal numbers from words of a key stream, by Box and Muller (1958), in operations that IEEE 754 fixes to the bit.

Everything here is +, -, ×, ÷ and square root of float64, each its own kernel, and integers; so every device computes
the same bits. A pair of numbers takes a word for the radius, a word for the angle, and, where the radius is so long
that 64 bits leave its steps coarse, a third.

Errors, relative to the noise's standard deviation σ and against exact values: the series of the logarithm ends with
z⁹/19, z ≤ 0.0295, and leaves off less than 2⁻⁵⁵ of it; those of sine and cosine end with t¹³/13! and t¹²/12!,
for t from -π/8 to π/8, and leave off less than 2⁻⁵⁵. Some thirty roundings of 2⁻⁵³ each come with them, most of terms
that are small beside the first: together less than 2⁻⁴⁸ of a radius of at most 12, so less than 2⁻⁴⁴·σ. The grid that
releases are rounded to is above 2⁻²¹·σ.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from privfl.devices import to_device

REFINE_BELOW = 2.0**33
"""A radius word below this one is a uniform number below 2⁻³⁰, which gets 53 more bits."""
TURN = 2.0 * math.pi * 2.0**-64
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits: products with exponents are exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
ROOT_HALF = math.sqrt(0.5)
EIGHTHS = (1.0, ROOT_HALF, 0.0, -ROOT_HALF, -1.0, -ROOT_HALF, 0.0, ROOT_HALF)
"""The cosines of whole eighths of a turn."""
LOG_SERIES = tuple(1.0 / odd for odd in range(19, 1, -2))
SINE_SERIES = tuple((-1.0) ** (order // 2) / math.factorial(order) for order in range(13, 1, -2))
COSINE_SERIES = tuple((-1.0) ** (order // 2) / math.factorial(order) for order in range(12, 0, -2))
"""Coefficients of the series in z, the highest first, without the first term."""


def radius(words: Tensor, fine: Tensor) -> Tensor:
    """√(-2 log U) in float64 of radius ``words`` int64 and the third words ``fine``, which few of them need.

    U is the word's magnitude times 2⁻⁶³; near 0 it is uniform between the halves of the step around it.
    """
    magnitude = words.to(torch.float64).abs()
    return (-2.0 * _log(_refined(magnitude, fine) * 2.0**-63)).sqrt()


def _refined(magnitude: Tensor, fine: Tensor) -> Tensor:
    offset = fine.to(torch.float64) * 2.0**-64  # in [-1/2, 1/2]
    return torch.where(magnitude < REFINE_BELOW, (magnitude + offset).abs().clamp_min(2.0**-53), magnitude)


def _log(u: Tensor) -> Tensor:
    """log u for normal float64 u in (0, 1]."""
    bits = u.view(torch.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(torch.float64)
    large = mantissa > 2 * ROOT_HALF
    mantissa = torch.where(large, mantissa * 0.5, mantissa)
    power = (exponent + large).to(torch.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = torch.full_like(z, LOG_SERIES[0])
    for factor in LOG_SERIES[1:]:
        series = series * z + factor
    double = s + s
    return power * LN2_HIGH + (double + (double * (z * series) + power * LN2_LOW))


def cosine_and_sine(words: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles word·2π/2⁶⁴, of int64 ``words``; whole eighths of a turn are taken off exactly."""
    eighth = ((words >> 60) + 1) >> 1
    t = (words - (eighth << 61)).to(torch.float64) * TURN
    z = t * t
    sine, cosine = torch.full_like(z, SINE_SERIES[0]), torch.full_like(z, COSINE_SERIES[0])
    for odd, even in zip(SINE_SERIES[1:], COSINE_SERIES[1:], strict=True):
        sine, cosine = sine * z + odd, cosine * z + even
    sine, cosine = t + t * (z * sine), 1.0 + z * cosine
    known = _cosines(words.device)
    by_cosine, by_sine = known[eighth & 7], known[(eighth - 2) & 7]
    return by_cosine * cosine - by_sine * sine, by_sine * cosine + by_cosine * sine


@cache
def _cosines(device: torch.device) -> Tensor:
    """The cosines of whole eighths of a turn."""
    return to_device(torch.tensor(EIGHTHS, dtype=torch.float64), device)


def pairs(radius_words: Tensor, angle_words: Tensor, fine: Tensor) -> tuple[Tensor, Tensor]:
    """Two standard normal numbers, float64 and independent, of each triple of words."""
    length = radius(radius_words, fine)
    cosine, sine = cosine_and_sine(angle_words)
    return length * cosine, length * sine
