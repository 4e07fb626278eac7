"""Gaussian noise for many rows at once, each from its own stream: on the CPU by its fastest functions, on CUDA there.

A pair of numbers is made of the same words everywhere (:mod:`privfl.privacy.noise.box_muller`). With Numba the CPU
takes the exact operations, compiled (:mod:`privfl.privacy.noise.compiled`). Without, it takes its libraries' functions,
which differ from these in the last places; a release, rounded to the grid, then differs about once in 5·10¹² values.
Where NumPy has a tangent for AVX-512 (:data:`TANGENTS`), cosine and sine come from that of half the angle, in a quarter
of the time that these two take and as exactly. Where PyTorch is told to be deterministic, or Numba is there and not
loaded yet, values so close to the middle between two steps of the grid that it could matter are computed anew, and no
release differs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl import compiling
from privfl.devices import in_one_copy
from privfl.privacy.noise import compiled, fused
from privfl.privacy.noise.box_muller import REFINE_BELOW, TURN, pairs
from privfl.privacy.noise.chacha import WORDS

CHUNK = 1 << 15
"""Pairs of a pass on the CPU: its work space (1.5 MiB) stays in a core's own cache or near it, and calls are few."""
APART = 72
"""Numbers between buffers, whose lines would else lie in the same places of the cache."""
CLOSE = 2.0**-22
"""How close to the middle between two steps of the grid, in steps, a value is computed anew; 16 times the errors."""
_KEPT = threading.local()
"""The buffers of each thread's passes."""
FAR = 2.0**28
"""Steps from 0 beyond which float64 is too coarse for that to be told, so that all is computed anew."""


def _has_wide_tangent() -> bool:
    """Whether NumPy computes tangents of float64 eight at a time; elsewhere it takes one after the other."""
    try:
        found = np.lib.introspect.opt_func_info(func_name="^tan$", signature="float64")
        chosen = str(found["tan"]["dd"]["current"])
    except (AttributeError, KeyError, TypeError):  # NumPy is too old to say
        return False
    return "X86_V4" in chosen or "AVX512" in chosen


TANGENTS = _has_wide_tangent()
"""Whether sine and cosine are made of tangents; fixed by processor and NumPy, so that a key gives the same bits."""


class PairStream(compiled.PairWords, Protocol):
    """The same, on a device too, where the key makes the words."""

    @property
    def key(self) -> bytes:
        """The key of both kinds of word."""

    def skip_pairs(self, blocks: int) -> int:
        """Pass over as many blocks of each kind of word; the number of the first."""


def add_rows_(streams: Sequence[PairStream], rows: Tensor, deviations: Sequence[float], grids: Sequence[float]) -> None:
    """Add to each of ``rows`` [n, size] noise of its stream, n > 0, and round the sum to a multiple of its grid."""
    if rows.is_cuda:
        _add_on_device(streams, rows, deviations, grids)
        return
    if rows.stride(1) == 1 and (release := compiled.release_once_it_pays(rows.numel())) is not None:
        compiled.add_rows_(release, streams, rows, deviations, grids)
        return
    size = rows.shape[1]
    pairs_of_row = (size + 1) // 2
    at_once = max(1, CHUNK // max(pairs_of_row, 1))
    for first in range(0, len(streams), at_once):
        some = slice(first, first + at_once)
        work = _Work(streams[some], pairs_of_row, deviations[some], grids[some])
        for start in range(0, pairs_of_row, CHUNK):
            number = min(CHUNK, pairs_of_row - start)
            places = (slice(first, first + number) for first in (start, pairs_of_row + start))
            work.release([rows[some, place] for place in places], work.noise(number))


def normal(stream: PairStream, n: int) -> NDArray[np.float64]:
    """``n`` standard normal numbers: all cosines, then the sines."""
    if n == 0:
        return np.empty(0)
    half = (n + 1) // 2
    out = np.empty((2, half))
    work = _Work([stream], half, [1.0], [1.0])
    for start in range(0, half, CHUNK):
        for row, numbers in zip(out, work.noise(min(CHUNK, half - start)), strict=True):
            row[start : start + CHUNK] = numbers[0].numpy()
    return out.reshape(-1)[:n]


class _Work:
    """What the passes over some rows share: buffers, and the noise's scale in units of the grid."""

    def __init__(
        self, streams: Sequence[PairStream], most: int, deviations: Sequence[float], grids: Sequence[float]
    ) -> None:
        self.streams = streams
        whole = math.ceil(min(CHUNK, most) / WORDS) * WORDS
        needed = len(streams) * whole
        if getattr(_KEPT, "size", 0) < needed:  # fresh pages cost more than what is done in them
            _KEPT.size = needed
            _KEPT.words = np.empty((2, needed + APART), dtype=np.int64)
            _KEPT.numbers = torch.empty(4, needed + APART, dtype=torch.float64)
        self.words = [kept[:needed].reshape(-1, whole) for kept in _KEPT.words]
        self.radius, self.angle, *self.both = (kept[:needed].view(-1, whole) for kept in _KEPT.numbers)
        self.blocks = [0] * len(streams)
        scales = [one / grid for one, grid in zip(deviations, grids, strict=True)]
        self.scale, self.grid = _column_or_one(scales), _column_or_one(grids)
        self.steepness = (-8.0 if TANGENTS else -2.0) * self.scale * self.scale

    def noise(self, number: int) -> list[Tensor]:
        """``number`` pairs for each row, twice [rows, number], in units of the grid; the next call overwrites them."""
        whole = math.ceil(number / WORDS) * WORDS
        for row, stream in enumerate(self.streams):
            self.blocks[row] = stream.pair_words(self.words[0][row, :whole], self.words[1][row, :whole])
        radius, angle, cosine, sine = (one[:, :number] for one in (self.radius, self.angle, *self.both))
        radius.copy_(torch.from_numpy(self.words[0])[:, :number])
        angle.copy_(torch.from_numpy(self.words[1])[:, :number])
        torch.abs(radius, out=radius)
        if radius.numel() and radius.numpy().min() < REFINE_BELOW:  # which is faster than torch's
            self._refine(radius)
        radius.mul_(2.0**-63)
        if TANGENTS:
            return self._by_tangents(radius, angle, cosine)
        radius.log_().mul_(self.steepness).sqrt_()
        angle.mul_(TURN)
        torch.cos(angle, out=cosine)
        torch.sin(angle, out=sine)
        return [cosine.mul_(radius), sine.mul_(radius)]

    def _by_tangents(self, radius: Tensor, angle: Tensor, cosine: Tensor) -> list[Tensor]:
        """r·cos θ = 2r / (1 + t²) - r and r·sin θ = 2r·t / (1 + t²), t = tan θ/2; of r = √(-2 log radius), here twice.

        Whatever t is, its relative error comes with a factor of at most 1 into either. It is finite, since no float64
        is the half of π.
        """
        np.log(radius.numpy(), out=radius.numpy())
        radius.mul_(self.steepness)
        np.sqrt(radius.numpy(), out=radius.numpy())
        angle.mul_(TURN / 2)
        np.tan(angle.numpy(), out=angle.numpy())
        torch.mul(angle, angle, out=cosine).add_(1.0)
        torch.div(radius, cosine, out=cosine)
        angle.mul_(cosine)
        return [cosine.sub_(radius, alpha=0.5), angle]

    def release(self, parts: Sequence[Tensor], both: Sequence[Tensor]) -> None:
        """Add the noise ``both`` to the two ``parts`` of the rows, in place, and round to the grid."""
        inverse, exact = 1.0 / self.grid, compiling.installed() or torch.are_deterministic_algorithms_enabled()
        for part, noise in zip(parts, both, strict=True):
            total = noise[:, : part.shape[1]]
            if isinstance(inverse, float):
                total.add_(part, alpha=inverse)  # a power of 2: the product is exact, fused or not
            else:
                total.add_(part * inverse)
            if not exact:
                part.copy_(total.round_().mul_(self.grid))
        if exact:
            self._decide(parts, both)
            for part, noise in zip(parts, both, strict=True):
                part.copy_(noise[:, : part.shape[1]].round_().mul_(self.grid))

    def _refine(self, radius: Tensor) -> None:
        """Give small uniform numbers 53 more bits, uniform between the halves of the step around each."""
        for row, stream in enumerate(self.streams):
            small = np.flatnonzero(radius[row].numpy() < REFINE_BELOW)
            if small.size:
                offsets = stream.fine_words(self.blocks[row], small).astype(np.float64) * 2.0**-64
                fine = np.maximum(np.abs(radius[row].numpy()[small] + offsets), 2.0**-53)
                radius[row, torch.from_numpy(small)] = torch.from_numpy(fine)

    def _decide(self, parts: Sequence[Tensor], both: Sequence[Tensor]) -> None:
        """Compute anew, in exact operations, the sums ``both`` whose rounding the last places could decide."""
        for which, (part, sums) in enumerate(zip(parts, both, strict=True)):
            sums = sums[:, : part.shape[1]]
            if not sums.numel():
                continue
            farthest, least = float((sums - sums.round()).abs().max()), max(map(abs, map(float, torch.aminmax(sums))))
            if farthest <= 0.5 - CLOSE and least < FAR:
                continue
            close = ((sums - sums.round()).abs() > 0.5 - CLOSE) | ~(sums.abs() < FAR)
            for row in close.any(1).nonzero()[:, 0].tolist():
                places = close[row].nonzero()[:, 0]
                radius, angle = (torch.from_numpy(words[row])[places] for words in self.words)
                fine = torch.from_numpy(self.streams[row].fine_words(self.blocks[row], places.numpy()))
                scale, grid = (one if isinstance(one, float) else float(one[row]) for one in (self.scale, self.grid))
                noise = pairs(radius, angle, fine)[which]
                sums[row, places] = part[row, places] * (1.0 / grid) + noise * scale


def _column_or_one(values: Sequence[float]) -> Tensor | float:
    """A number is faster than a column of equal ones."""
    return values[0] if len(set(values)) == 1 else _column(values)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def _add_on_device(
    streams: Sequence[PairStream], rows: Tensor, deviations: Sequence[float], grids: Sequence[float]
) -> None:
    """The same on the device of ``rows``, which the host does not wait for; the keys are copied there."""
    size = rows.shape[1]
    half = (size + 1) // 2
    starts = [stream.skip_pairs(math.ceil(half / WORDS)) for stream in streams]
    keys = torch.from_numpy(np.stack([np.frombuffer(stream.key, "<i4") for stream in streams]))
    scales = [one / grid for one, grid in zip(deviations, grids, strict=True)]
    parts = [keys, torch.tensor(starts), _column(scales), _column([1.0 / grid for grid in grids]), _column(grids)]
    there = in_one_copy(parts, rows.device)
    if rows.stride(1) == 1 and fused.gives_the_bits_of_the_host(rows.device):
        fused.release_(rows, *there)
    else:
        fused.release_by_operations_(rows, *there)
