"""Shamir's t-of-n secret sharing of 32-byte secrets (Shamir, "How to Share a Secret", CACM 1979).

A secret is the constant term of a polynomial of degree t − 1 over a prime field; the other coefficients are uniform and
secret; a share is the polynomial's value at a public point. Any t shares give the secret back; fewer say nothing about
it, whatever the computing power: every secret is equally likely given any t − 1 shares.

The field is that of the prime 2²⁶⁴ − 275, the largest below 2²⁶⁴: every 32-byte secret is an element, a share takes
33 bytes, and a uniform 33-byte string is an element except with probability 2⁻²⁵⁵ (then it is drawn again).

Shares are not authenticated here. Whoever holds t − 1 of t shares and may choose the last can choose the outcome, so
the protocol sends shares under authenticated encryption. If *more* than t shares are given, :func:`combine` checks that
all of them lie on one polynomial. Python's integers take a time that depends on their values, so whoever can time a
client's arithmetic to fractions of a microsecond is outside the threat model.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import mul

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import BadShare

PRIME = 2**264 - 275
SECRET_BYTES = 32
SHARE_BYTES = 33
_CACHED_POINT_SETS = 4096  # 100 points of 264 bits each: about 40 MiB if ever full
_LARGEST_POINT = 2**32 - 1


def split(
    secret: bytes, threshold: int, points: Sequence[int], entropy: Callable[[int], bytes] = secrets.token_bytes
) -> dict[int, bytes]:
    """Shares of ``secret``, one for each of ``points``, of which any ``threshold`` give it back.

    Args:
        secret: 32 bytes.
        threshold: t with 1 ≤ t ≤ number of points; with 1, every share *is* the secret.
        points: where the polynomial is evaluated, distinct integers in [1, 2³²).
        entropy: ``entropy(n)`` returns n uniform secret bytes; the operating system's by default.

    Returns:
        Point → share (33 bytes, big endian), in the order of ``points``.

    Raises:
        ConfigError: the secret is not 32 bytes, the threshold is outside 1 … number of points, or a point is repeated
            or outside [1, 2³²).
    """
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"the secret to share has {len(secret)} bytes: it must have {SECRET_BYTES}.")
    if not 1 <= threshold <= len(points):
        raise ConfigError(
            f"the threshold {threshold} is outside 1 to {len(points)}, the number of shares: choose one inside."
        )
    if len(set(points)) != len(points) or not all(1 <= point <= _LARGEST_POINT for point in points):
        raise ConfigError(f"the points {list(points)} of the shares must be distinct integers from 1 below 2^32.")
    coefficients = [int.from_bytes(secret, "big"), *_elements(threshold - 1, entropy)]
    values = evaluate(coefficients, points, PRIME)
    return {point: value.to_bytes(SHARE_BYTES, "big") for point, value in zip(points, values, strict=True)}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The 32-byte secret of which ``shares`` (point → 33 bytes) are at least ``threshold`` shares.

    The shares at the ``threshold`` smallest points decide. Further ones are checked against them by one random linear
    test, which a set that is not on one polynomial of degree below the threshold passes with probability below 2⁻²⁶³.

    Raises:
        BadShare: there are fewer shares than the threshold; a point is outside [1, 2³²); a share is not 33 bytes of a
            field element; the shares contradict each other; or what comes out is no 32-byte secret.
    """
    if threshold < 1 or len(shares) < threshold:
        raise BadShare(f"{len(shares)} shares cannot give back a secret whose threshold is {threshold}.")
    points = tuple(sorted(shares))
    if not 1 <= points[0] <= points[-1] <= _LARGEST_POINT:
        raise BadShare(f"a share's point is outside 1 to {_LARGEST_POINT}: the points are {points[0]} to {points[-1]}.")
    values = [_value(point, shares[point]) for point in points]
    if len(points) > threshold and sum(map(mul, _parity_check(points, threshold), values)) % PRIME:
        raise BadShare(
            f"the {len(points)} shares do not lie on one polynomial of threshold {threshold}: at least one is wrong."
        )
    secret = interpolate_at_zero(points[:threshold], values[:threshold], PRIME)
    if secret >> (8 * SECRET_BYTES):
        raise BadShare(f"the {threshold} shares give no secret of {SECRET_BYTES} bytes: at least one is wrong.")
    return secret.to_bytes(SECRET_BYTES, "big")


def evaluate(coefficients: Sequence[int], points: Sequence[int], prime: int) -> list[int]:
    """The polynomial with these coefficients (constant first) at small ``points``, modulo ``prime``.

    Horner's rule with one reduction at the end: at points below 2³² and the degrees that occur, carrying the growing
    integer costs half of what a division in every step does.
    """
    values = []
    descending = coefficients[::-1]
    for point in points:
        value = 0
        for coefficient in descending:
            value = value * point + coefficient
        values.append(value % prime)
    return values


def interpolate_at_zero(points: tuple[int, ...], values: Sequence[int], prime: int) -> int:
    """The value at 0 of the polynomial of degree < len(points) through (point, value), modulo ``prime``.

    Lagrange's weights are kept for the point sets seen last: under one session many secrets share their point set.
    """
    total: int = sum(map(mul, _weights_at_zero(points, prime), values))
    return total % prime


@lru_cache(_CACHED_POINT_SETS)
def _weights_at_zero(points: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Lagrange's weights ∏_{j≠i} x_j / (x_j − x_i): the products are small integers, one inversion serves all."""
    whole = math.prod(points)
    return _divided(
        [whole % prime] * len(points),
        [x * math.prod([y - x for y in points if y != x]) for x in points],
        prime,
    )


@lru_cache(_CACHED_POINT_SETS)
def _parity_check(points: tuple[int, ...], threshold: int) -> tuple[int, ...]:
    """A random word of the dual code: orthogonal to all evaluations of polynomials of degree < ``threshold``.

    With g of degree < len(points) − threshold, Σ f(x_i) g(x_i) / ∏_{j≠i} (x_i − x_j) is the leading coefficient of f·g
    and vanishes (Cascudo and David, "SCRAPE", ACNS 2017). g is drawn by the verifier, where nobody can foresee it.
    """
    test = _elements(len(points) - threshold, secrets.token_bytes)
    return _divided(
        evaluate(test, points, PRIME),
        [math.prod([x - y for y in points if y != x]) for x in points],
        PRIME,
    )


def _divided(numerators: Sequence[int], denominators: Sequence[int], prime: int) -> tuple[int, ...]:
    """Element by element n/d modulo ``prime``, by one inversion (Montgomery's trick)."""
    reduced = [d % prime for d in denominators]
    before = [1]
    for d in reduced:
        before.append(before[-1] * d % prime)
    inverse = pow(before[-1], -1, prime)
    quotients = []
    for n, d, product in zip(reversed(numerators), reversed(reduced), reversed(before[:-1]), strict=True):
        quotients.append(n * product % prime * inverse % prime)
        inverse = inverse * d % prime
    return tuple(reversed(quotients))


def _elements(count: int, entropy: Callable[[int], bytes]) -> list[int]:
    """So many uniform field elements, by rejection."""
    elements: list[int] = []
    while missing := count - len(elements):
        drawn = entropy(missing * SHARE_BYTES)
        if len(drawn) != missing * SHARE_BYTES:
            raise ConfigError(f"the source of entropy gave {len(drawn)} bytes for {missing * SHARE_BYTES}.")
        found = (int.from_bytes(drawn[at : at + SHARE_BYTES], "big") for at in range(0, len(drawn), SHARE_BYTES))
        elements += [element for element in found if element < PRIME]
    return elements


def _value(point: int, share: bytes) -> int:
    if len(share) != SHARE_BYTES:
        raise BadShare(f"the share at point {point} has {len(share)} bytes: a share has {SHARE_BYTES}.")
    if (value := int.from_bytes(share, "big")) >= PRIME:
        raise BadShare(f"the share at point {point} is no element of the field.")
    return value
