"""Gaussian noise, its addition and the rounding to the grid in one compiled pass, where Numba is installed.

The operations are those of :mod:`privfl.privacy.noise.box_muller`, one for one and in the same order, and Numba fuses
or reorders none of them unless it is told to: so releases have the bits that a GPU gives and that PyTorch's
deterministic mode gives, in less than half of the latter's time.

Until it pays to load Numba (:mod:`privfl.compiling`), :mod:`privfl.privacy.noise.gaussian` makes the same bits in its
deterministic mode.

The loops are written out in one function, each over arrays that lie in the first cache, and count from 0: only then
does the compiler see that it may take eight numbers at a time. Division and root, which have a slow unit of their own,
stand in loops that have most to do elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import compiled, once_it_pays, wide_vectors
from privfl.privacy.noise.box_muller import (
    COSINE_SERIES,
    LN2_HIGH,
    LN2_LOW,
    LOG_SERIES,
    REFINE_BELOW,
    ROOT_HALF,
    SINE_SERIES,
    TURN,
    pairs,
)
from privfl.privacy.noise.chacha import WORDS

CHUNK = 1 << 18
"""Pairs whose words are drawn at once. Their 4 MiB leave a core's second cache, but with few calls two workers wait
less for the interpreter's lock."""
SAVED = 6.6e-9
"""Seconds that a number takes less than in the deterministic mode (Intel Xeon)."""
BLOCK = 512
"""Pairs of a pass, whose work space of 16 KiB stays in the first cache."""
_L19, _L17, _L15, _L13, _L11, _L9, _L7, _L5, _L3 = LOG_SERIES
_S13, _S11, _S9, _S7, _S5, _S3 = SINE_SERIES
_C12, _C10, _C8, _C6, _C4, _C2 = COSINE_SERIES
_TWO_ROOT_HALF = 2 * ROOT_HALF
_FRACTION, _ONE = (1 << 52) - 1, 1023 << 52
_EIGHTH, _HALF_EIGHTH = (1 << 61) - 1, 1 << 60
Numbers = NDArray[Any]


class PairWords(Protocol):
    """A stream of noise, as far as pairs of normal numbers need it."""

    def pair_words(self, radius: NDArray[np.int64], angle: NDArray[np.int64]) -> int:
        """Overwrite both, whole blocks, with the next words; the number of the first block."""

    def fine_words(self, block: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The third words of the pairs at ``places``, counted from the beginning of ``block``."""


Release = Callable[
    [NDArray[np.int64], NDArray[np.int64], Numbers, int, float, float, float, int, NDArray[np.int64]], int
]


def release() -> Release | None:
    """The compiled pass; ``None`` without Numba."""
    return cast("Release | None", compiled(_release))


def release_once_it_pays(numbers: int) -> Release | None:
    """The compiled pass for so many ``numbers`` more; ``None`` before it pays to load Numba, or without Numba."""
    return cast("Release | None", once_it_pays(_release, numbers * SAVED))


def add_rows_(
    release: Release, streams: Sequence[PairWords], rows: Tensor, deviations: Sequence[float], grids: Sequence[float]
) -> None:
    """Add to each of ``rows`` [n, size] noise of its stream and round the sum to a multiple of its grid, in place.

    Rows are float32 or float64, on the CPU, each contiguous.
    """
    half, limit = (rows.shape[1] + 1) // 2, int(REFINE_BELOW)
    radius, angle = np.empty((2, min(CHUNK, math.ceil(half / WORDS) * WORDS)), dtype=np.int64)
    left = np.empty(math.ceil(len(radius) / BLOCK), dtype=np.int64)
    for stream, row, deviation, grid in zip(streams, rows.detach().numpy(), deviations, grids, strict=True):
        inverse, scale = 1.0 / grid, deviation / grid
        for start in range(0, half, CHUNK):  # few steps of Python: after each pass its code is out of the cache
            whole = len(radius) if half - start >= CHUNK else math.ceil((half - start) / WORDS) * WORDS
            words = radius[:whole], angle[:whole]
            block = stream.pair_words(*words)
            found = release(*words, row, start, inverse, scale, grid, limit, left)
            for begin in left[:found].tolist() if found else ():
                places = np.arange(begin, min(begin + BLOCK, half - start, whole))
                fine = np.zeros(len(places), dtype=np.int64)
                small = np.flatnonzero(np.abs(radius[places].astype(np.float64)) < REFINE_BELOW)
                fine[small] = stream.fine_words(block, places[small])
                triple = [torch.from_numpy(one) for one in (radius[places], angle[places], fine)]
                for first, noise in zip((start, half + start), pairs(*triple), strict=True):
                    some = row[first + begin : first + begin + len(places)]
                    some[:] = np.rint(some * np.float64(inverse) + noise.numpy()[: len(some)] * scale) * grid


def _release(
    radius: NDArray[np.int64],
    angle: NDArray[np.int64],
    row: Numbers,
    begin: int,
    inverse: float,
    scale: float,
    grid: float,
    refine_below: int,
    left: NDArray[np.int64],
) -> int:
    """Release numbers of ``row``, from ``begin`` and from half its length plus ``begin`` on, by pairs of words.

    A block that has a radius word below ``refine_below`` is left as it is, and where it begins is written to ``left``;
    how many there are is returned. Words are compared as they are: below 2⁵³ float64 has them exactly.
    """
    wide_vectors()
    found = 0
    lengths, powers, cosines, sines = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    half = (len(row) + 1) // 2
    number = min(len(radius), half - begin)
    first, second = row[begin : begin + number], row[half + begin : half + begin + number]
    for start in range(0, number, BLOCK):
        stop = min(start + BLOCK, number)
        length, power = lengths[: stop - start], powers[: stop - start]
        cosine, sine = cosines[: stop - start], sines[: stop - start]

        words, few = radius[start:stop], False
        for i in range(len(words)):
            length[i] = abs(float(words[i])) * 2.0**-63
            few |= (words[i] < refine_below) & (words[i] > -refine_below)
        if few:
            left[found] = start
            found += 1
            continue

        bits = length.view(np.int64)
        for i in range(len(bits)):
            word = bits[i]
            bits[i] = (word & _FRACTION) | _ONE
            power[i] = float((word >> 52) - 1023)
        words = angle[start:stop]
        for i in range(len(words)):
            mantissa, exponent = length[i], power[i]
            large = mantissa > _TWO_ROOT_HALF
            mantissa = mantissa * 0.5 if large else mantissa
            power[i] = exponent + 1.0 if large else exponent
            length[i] = (mantissa - 1.0) / (mantissa + 1.0)
            t = float(((words[i] + _HALF_EIGHTH) & _EIGHTH) - _HALF_EIGHTH) * TURN
            z = t * t
            odd = ((((_S13 * z + _S11) * z + _S9) * z + _S7) * z + _S5) * z + _S3
            even = ((((_C12 * z + _C10) * z + _C8) * z + _C6) * z + _C4) * z + _C2
            sine[i], cosine[i] = t + t * (z * odd), 1.0 + z * even
        for i in range(len(words)):  # the root of the logarithm, turned by whole eighths
            s = length[i]
            z = s * s
            series = (((_L19 * z + _L17) * z + _L15) * z + _L13) * z + _L11
            series = (((series * z + _L9) * z + _L7) * z + _L5) * z + _L3
            double = s + s
            root = math.sqrt(-2.0 * (power[i] * LN2_HIGH + (double + (double * (z * series) + power[i] * LN2_LOW))))
            eighth = ((words[i] >> 60) + 1) >> 1
            odd, even = sine[i], cosine[i]
            apart, both = ROOT_HALF * even - ROOT_HALF * odd, ROOT_HALF * even + ROOT_HALF * odd
            one, quarter, half = (eighth & 1) != 0, (eighth & 2) != 0, (eighth & 4) != 0
            x, y = apart if one else even, both if one else odd  # an eighth of a turn on, a quarter, and a half
            along, across = y if quarter else x, x if quarter else y
            cosine[i] = root * (-along if quarter != half else along)
            sine[i] = root * (-across if half else across)

        part = first[start:stop]
        for i in range(len(part)):
            part[i] = np.rint(part[i] * inverse + cosine[i] * scale) * grid
        part = second[start:stop]
        for i in range(len(part)):
            part[i] = np.rint(part[i] * inverse + sine[i] * scale) * grid
    return found
