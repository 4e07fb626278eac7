"""Whether noise is drawn as claimed: each stream for one value, of the stated deviation, from a key that is told."""

from __future__ import annotations

import math

import numpy as np

from audits.fuzz.found import Found, Violation
from audits.fuzz.tape import Noised, Tape
from privfl.privacy.accounting.release import Unit

RARE = 12 * math.log(10)
"""Random numbers are found fault with once in 10¹² experiments at most."""


def check_streams(tape: Tape, unit: Unit, found: Found) -> None:
    """No noise is used twice for different values, none is shared, and a fixed key is admitted."""
    cell = f"{unit}/*"
    by_key: dict[tuple[bytes, str, int], Noised] = {}
    residuals: dict[bytes, Noised] = {}
    squares, numbers = 0.0, 0
    for noised in tape.noised.values():
        if noised.kind in ("size", "report", "share") or noised.deviation == 0:
            continue
        first = by_key.setdefault((noised.key, noised.kind, noised.place[2]), noised)
        if first is not noised:
            if not _same(first, noised):
                what = f"{noised.place} and {first.place} share a stream and hide different values"
                found.violations.append(Violation("noise used twice", cell, what))
            continue
        if noised.kind == "correlated" or not np.isfinite(noised.value).all():
            continue
        # Values beyond 2^20 deviations leave too few digits of float32 to see the noise.
        small = np.abs(noised.value) < noised.deviation * 2.0**20
        if not small.all():
            continue
        residual = (noised.released - noised.value) / noised.deviation
        squares, numbers = squares + float(residual @ residual), numbers + residual.size
        if residual.size >= 6:
            twin = residuals.setdefault(np.round(residual[:6], 1).tobytes(), noised)
            if twin is not noised and _noise_is_shared(twin, noised):
                what = f"{noised.place} and {twin.place} carry the same noise"
                found.violations.append(Violation("noise used twice", cell, what))
    if numbers and not _plausible(squares, numbers):
        what = f"the mean square of {numbers} numbers of noise is {squares / numbers:.4g} of the deviation's"
        found.violations.append(Violation("noise is not as stated", cell, what))
    drawn = sum(len(coins.drawn) for coins in tape.coins.values())
    expected = sum(coins.count * coins.rate for coins in tape.coins.values())
    variance = sum(coins.count * coins.rate * (1 - coins.rate) for coins in tape.coins.values())
    if abs(drawn - expected) > math.sqrt(2 * variance * RARE) + RARE / 3 * 2:
        found.violations.append(Violation("coins are not as stated", cell, f"{drawn} drawn, {expected:.6g} expected"))
    if tape.fixed_key_used and tape.reproducible is False and tape.noised:
        found.violations.append(Violation("fixed key", cell, "noise came from a fixed key, and nothing says so"))


def _same(one: Noised, other: Noised) -> bool:
    return one.deviation == other.deviation and np.array_equal(one.value, other.value, equal_nan=True)


def _noise_is_shared(one: Noised, other: Noised) -> bool:
    mine, theirs = ((noised.released - noised.value) / noised.deviation for noised in (one, other))
    return mine.shape == theirs.shape and float(np.abs(mine - theirs).max()) < 1e-3


def _plausible(squares: float, numbers: int) -> bool:
    """Whether a sum of squares of normal numbers is one, but for one case in 10¹² (Laurent and Massart 2000)."""
    x = RARE
    return numbers - 2 * math.sqrt(numbers * x) <= squares <= numbers + 2 * math.sqrt(numbers * x) + 2 * x
