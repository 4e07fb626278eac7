"""Sums of tensors whose bits depend on the summands and on nothing else: neither on their order nor on who adds which.

Floating-point addition rounds after every step, so a cohort that is divided among machines, or stacked in another
order, would come to another model. Here every summand is first rounded to a public grid, 2⁻⁴⁴ of a power of 256 above
its largest number, and multiples of one grid are added in float64 without any rounding, because their sum is never let
grow beyond 2⁵³ steps. Summands of the same power share a grid; the grids' sums are added at the end, smallest first.

A summand in float32 is moved by at most 2⁻³⁷ of its largest number, and so by less (in L2 norm) than float32 rounded it
already in models of up to 2²⁶ parameters. One in float64 leaves its remainder on a second grid. Compare Demmel and
Nguyen, "Fast Reproducible Floating-Point Summation" (ARITH 2013), whose grids follow the largest summand of all, which
a stream does not know in advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import Function, compiled, once_it_pays
from privfl.engine.measures import Measures, measures_of

WIDTH = 8
"""Binary places of a range of magnitudes whose summands share a grid."""
DEPTH = 44
"""Binary places from the top of a range down to its grid."""
AT_ONCE = 1 << (53 - DEPTH - 1)
"""Summands after which a sum is split, so that no sum of two such parts, or of four more, leaves 53 bits."""
TOGETHER = 4
"""Summands of many numbers that are added at once, since memory takes longer to reach than they to be added."""
MANY = 1 << 17
"""Numbers of which a sum in float64 leaves a core's caches."""
STEP = 5 * WIDTH
"""Binary places between the grids of a summand in float64 and of its remainder, which is below 2⁻⁴⁴ of the top."""
LARGEST, SMALLEST = 960, -800
"""Exponents of the highest and the lowest range. Numbers below all ranges are rounded to the grid of the lowest one."""
SAVED = 1.2e-9
"""Seconds that a number takes less by the compiled loop (AMD EPYC)."""
Numbers = NDArray[Any]
_NONE: Numbers = np.empty(0)
_CHUNK = 1 << 15
"""Numbers of one pass on a CPU, whose work space stays in a core's cache."""


@dataclass(frozen=True)
class Part:
    """One range's sum: ``low`` on its grid, of at most ``count`` summands; ``high`` on a grid 2⁴⁴ times as coarse."""

    low: Tensor
    high: Tensor | None
    count: int


@dataclass
class OrderFreeSum:
    """Σ of tensors of one shape; the same bits for every order of :meth:`add` and every division by :meth:`merge`.

    Args:
        parts: what came together so far, by the exponent of its range.
        dtype: float64 if any summand was, else float32.
        waiting: large summands with their factors, which are yet to be added to the part of that exponent.
    """

    parts: dict[int, Part] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    waiting: dict[int, list[tuple[Tensor, float]]] = field(default_factory=dict)

    def add(self, value: Tensor, factor: float, top: int) -> None:
        """Add ``value`` (float32 or float64, finite) times ``factor``, whose :func:`range_of` is ``top``.

        A large one may be kept until others of its range have come; it must not be written into afterwards.
        """
        if value.dtype == torch.float64:
            self.dtype = torch.float64
            value, factor = value.detach() * factor, 1.0
            coarse = value + _shift(top)
            rest = value - coarse.sub_(_shift(top))
            self._add(rest, 1.0, top - STEP)
            value = coarse
        self._add(value, factor, top)

    def _add(self, value: Tensor, factor: float, top: int) -> None:
        if _may_wait(value) and once_it_pays(_add_four_rounded, value.numel() * SAVED) is not None:
            if top not in self.parts:  # the first that are added are written into it
                self.parts[top] = Part(torch.empty(value.shape, dtype=torch.float64), None, 0)
            waiting = self.waiting.setdefault(top, [])
            waiting.append((value.detach().view(-1), factor))
            if len(waiting) == TOGETHER:
                self._add_waiting(top)
            return
        part = self.parts.get(top)
        if part is None or part.count == 0:  # nothing is written into it yet
            part = Part(_zeros(value), None, 0)
        _add_on_grid(part.low, value, factor, top)
        self.parts[top] = _within(Part(part.low, part.high, part.count + 1), top)

    def _add_waiting(self, top: int) -> None:
        summands, part = self.waiting.pop(top), self.parts[top]
        low, four = part.low.view(-1).numpy(), _four(summands)
        if part.count == 0:
            _loop(_write_four_rounded)(low, _NONE, _NONE, *four, _shift(top))
        else:
            _loop(_add_four_rounded)(low, *four, _shift(top))
        self.parts[top] = _within(Part(part.low, part.high, part.count + len(summands)), top)

    def settle(self) -> None:
        """Add what is waiting to the parts."""
        for top in list(self.waiting):
            self._add_waiting(top)

    def merge(self, other: OrderFreeSum) -> None:
        """Add all that ``other`` has added; ``other`` may not be used afterwards."""
        self.settle()
        other.settle()
        for top, part in other.parts.items():
            own = self.parts.get(top)
            self.parts[top] = part if own is None else _within(_joined(own, part), top)
        self.dtype = torch.promote_types(self.dtype, other.dtype)

    def total(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The sum, added up in float64, in ``dtype``; a tensor of its own.

        Raises:
            ValueError: nothing was added.
        """
        if not self.parts:
            raise ValueError("a sum of nothing has no shape")
        *lower, last = sorted(self.parts)
        for top in lower:
            if top in self.waiting:
                self._add_waiting(top)
        sums = [_whole(self.parts[top]) for top in lower]
        before = reduce(torch.add, sums) if sums else None
        part, summands = self.parts[last], self.waiting.get(last)
        if summands and part.count and part.high is None:  # the last pass, which need not be written and read again
            total = torch.empty(part.low.shape, dtype=dtype)
            out, low, less = (_NONE if one is None else one.view(-1).numpy() for one in (total, part.low, before))
            _loop(_write_four_rounded)(out, low, less, *_four(summands), _shift(last))
            return total
        if summands:
            self._add_waiting(last)
        total = _whole(self.parts[last])
        return (total if before is None else before + total).to(dtype, copy=True)


def _may_wait(value: Tensor) -> bool:
    """Whether ``value`` is large, in float32, and not a part of more, which would be kept too."""
    plain = type(value.data) is Tensor and value.device.type == "cpu" and value.dtype == torch.float32
    return (
        plain and value.numel() >= MANY and value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
    )


def _four(summands: Sequence[tuple[Tensor, float]]) -> tuple[tuple[Numbers, ...], tuple[float, ...]]:
    """Up to four summands as arrays, and their factors; what is missing is one of them times 0."""
    given = [*summands, *[(summands[0][0], 0.0)] * (TOGETHER - len(summands))]
    return tuple(value.numpy() for value, _ in given), tuple(factor for _, factor in given)


def _loop(function: Function) -> Function:
    """``function``, compiled: nothing waits where it cannot be."""
    loop = compiled(function)
    assert loop is not None
    return loop


def _whole(part: Part) -> Tensor:
    return part.low if part.high is None else part.low + part.high


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float64, device=like.device)


def range_of(value: Tensor, factor: float, known: Measures | None = None) -> int | None:
    """The exponent, a multiple of :data:`WIDTH`, of the smallest range that holds ``value`` times ``factor``.

    It depends on the summand alone. ``None``: it is too large, or not a number.
    """
    largest = (measures_of(value) if known is None else known).largest * abs(factor)
    if not largest < 2.0**LARGEST:
        return None
    if largest == 0:
        return SMALLEST
    return max(SMALLEST, -(-math.frexp(largest)[1] // WIDTH) * WIDTH)


def _add_on_grid(total: Tensor, value: Tensor, factor: float, top: int) -> None:
    """Add ``value`` times ``factor``, rounded to the grid of the range ``top``, to ``total`` in place.

    A float64 in [2ⁿ, 2ⁿ⁺¹) is a multiple of 2ⁿ⁻⁵², so adding 1.5·2ⁿ and subtracting it rounds to that grid.
    """
    shift = _shift(top)
    if type(value.data) is Tensor and value.device.type == "cpu":
        loop = once_it_pays(_add_rounded, value.numel() * SAVED)
        if loop is not None:
            loop(total.view(-1).numpy(), value.detach().reshape(-1).numpy(), factor, shift)
            return
    if value.numel() <= _CHUNK or value.device.type != "cpu":  # as below, in half of the calls
        wide = value.detach().to(torch.float64, copy=True)
        total.add_((wide if factor == 1 else wide.mul_(factor)).add_(shift).sub_(shift))
        return
    space = torch.empty(min(_CHUNK, value.numel()), dtype=torch.float64, device=value.device)
    chunks = torch.split(total.view(-1), _CHUNK), torch.split(value.detach().reshape(-1), _CHUNK)
    for place, numbers in zip(*chunks, strict=True):
        wide = space[: len(numbers)].copy_(numbers)
        if factor != 1:
            wide.mul_(factor)
        place.add_(wide.add_(shift).sub_(shift))


def _add_rounded(total: Numbers, value: Numbers, factor: float, shift: float) -> None:
    """The same in one loop, over arrays [size] of float64 and of either type; compiled."""
    for i in range(len(total)):
        total[i] += (float(value[i]) * factor + shift) - shift


def _add_four_rounded(total: Numbers, values: tuple[Numbers, ...], factors: tuple[float, ...], shift: float) -> None:
    """The same of four arrays at once; compiled. Multiples of one grid add up alike in any order."""
    a, b, c, d = values
    of_a, of_b, of_c, of_d = factors
    for i in range(len(total)):
        one = ((float(a[i]) * of_a + shift) - shift) + ((float(b[i]) * of_b + shift) - shift)
        other = ((float(c[i]) * of_c + shift) - shift) + ((float(d[i]) * of_d + shift) - shift)
        total[i] += one + other


def _write_four_rounded(
    out: Numbers, low: Numbers, before: Numbers, values: tuple[Numbers, ...], factors: tuple[float, ...], shift: float
) -> None:
    """Write to ``out`` what ``low`` becomes by the same, on top of what comes ``before``; either may be empty."""
    a, b, c, d = values
    of_a, of_b, of_c, of_d = factors
    with_low, with_before = len(low) > 0, len(before) > 0
    for i in range(len(out)):
        one = ((float(a[i]) * of_a + shift) - shift) + ((float(b[i]) * of_b + shift) - shift)
        other = ((float(c[i]) * of_c + shift) - shift) + ((float(d[i]) * of_d + shift) - shift)
        total = one + other
        if with_low:
            total = low[i] + total
        if with_before:
            total = before[i] + total
        out[i] = total


def _shift(top: int) -> float:
    return math.ldexp(1.5, 52 + top - DEPTH)


def _joined(own: Part, other: Part) -> Part:
    high = other.high if own.high is None else own.high if other.high is None else own.high + other.high
    return Part(own.low + other.low, high, own.count + other.count)


def _within(part: Part, top: int) -> Part:
    """``part`` with what its lower half may no longer hold in the upper one; their sum is the same number."""
    if part.count < AT_ONCE:
        return part
    shift = math.ldexp(1.5, 52 + top)
    coarse = (part.low + shift).sub_(shift)
    low = part.low.sub_(coarse)
    return Part(low, coarse if part.high is None else part.high + coarse, 1)
