"""Which examples are among some rows: as they are, or brought to another scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WIDE = 8
"""Values of an example from which on it is known again whatever public factor and offset it was given."""
SAME = 1e-4
"""By how much of a value, or of its deviation over the examples, two examples differ that are the same."""
ROUNDED = 1e-6
"""By how much of its largest value an example in float32 may be off at another one, such as 0."""
NEAR = 1e-3
"""By how much of an example's own length the row that is the same may miss it: deviations may be those of outliers."""
FAINT, ENOUGH = 20, 4
"""Known at another scale is an example by at least :data:`ENOUGH` values whose usual deviation over the examples is
:data:`FAINT` times what rounding leaves open."""
MANY = 2048
"""Values of an example of which this is asked, spread over all."""
FAR = 10.0
"""Usual deviations from which on it does not matter, for what is nearest, how far away a value is."""


def alike(examples: Tensor, rows: Tensor) -> Tensor:
    """Which of ``examples`` [E, width] are among ``rows`` [R, width], both float64.

    With many values the row of the nearest direction is brought to the example's factor and offset, and must then come
    near in every value: where one is large in all examples (an income beside shares), all directions are near. By the
    example's own length too: beside examples a million times as large, every row is near to a small one.
    """
    equal = equals(examples, rows)
    if examples.shape[1] < WIDE:
        return equal
    first, second = (one - one.mean(1, keepdim=True) for one in (examples, rows))
    cosines: Tensor = first @ second.mT / (first.norm(dim=1, keepdim=True) * second.norm(dim=1))
    nearest = second[cosines.nan_to_num(-1).argmax(1)]
    factor = (first * nearest).sum(1, keepdim=True) / nearest.square().sum(1, keepdim=True)
    missed, deviation = first - factor * nearest, examples.std(0, correction=0)
    least = ROUNDED * examples.abs().amax(1, keepdim=True)
    near = (missed.abs() <= SAME * (deviation + examples.abs()) + least).all(1)
    near &= missed.norm(dim=1) <= NEAR * first.norm(dim=1) + least[:, 0] * math.sqrt(examples.shape[1])
    some = slice(None, None, 1 + examples.shape[1] // MANY)
    usual = usual_deviations(examples[:, some])
    usual = torch.where(usual > 0, usual, torch.minimum(deviation, first.abs())[:, some])
    telling = (FAINT * least <= usual).sum(1) >= ENOUGH
    found = equal | (telling & near & (factor > 0)[:, 0])
    rest = ~(telling | found)
    found[rest] = _alike_by_middles(examples[rest], rows)
    return found


def equals(examples: Tensor, rows: Tensor) -> Tensor:
    """Which of ``examples`` [E, width] are in float32 just like one of ``rows`` [R, width]."""
    return torch.isin(_hashes(examples), _hashes(rows))


def _alike_by_middles(examples: Tensor, rows: Tensor) -> Tensor:
    """The same by what a huge value, such as a date in seconds, does not blur.

    That is an example's middle value, and the distance from it within which half of the others lie.
    """
    seen = torch.zeros(len(examples), dtype=torch.bool)
    first, open_still = _from_middles(examples)
    second, _ = _from_middles(rows)
    able, there = first.isfinite().all(1), second.isfinite().all(1)
    if not able.any() or not there.any():
        return seen
    first, second, open_still = first[able], second[there], open_still[able]
    usual = usual_deviations(first)
    usual = torch.where(usual > 0, usual, 1)
    centre = first.median(0).values
    nearest = second[_nearest(*(((one - centre) / usual).clamp(-FAR, FAR) for one in (first, second)))]
    off = open_still + ROUNDED * first.abs()
    near = ((first - nearest).abs() <= SAME * usual.clamp(max=1) + off).all(1)  # of a huge value too
    telling = (FAINT * off <= usual).sum(1) >= ENOUGH
    seen[able] = near & telling
    return seen


def _from_middles(rows: Tensor) -> tuple[Tensor, Tensor]:
    """``rows`` [R, width] less their middle values, by half's distance; and what rounding leaves open of that."""
    middles = rows.median(1, keepdim=True).values
    apart = rows - middles
    half = apart.abs().median(1, keepdim=True).values
    return apart / half, ROUNDED * middles.abs() / half


class Columns(NamedTuple):
    """What is known of the columns of a table, by column: [width] each, ``largest`` by absolute value."""

    means: Tensor
    deviations: Tensor
    largest: Tensor

    @classmethod
    def of(cls, pieces: Iterable[Tensor]) -> Columns:
        """Those of the table [R, width] that these ``pieces`` are, one below the other, in float64."""
        count, means, squares, largest = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())
        for piece in pieces:
            step, share = piece.mean(0) - means, len(piece) / (count + len(piece))
            squares = squares + (piece - piece.mean(0)).square().sum(0) + step.square() * share * count
            means, count = means + step * share, count + len(piece)
            largest = torch.maximum(largest, piece.abs().amax(0))
        return cls(means, (squares / count).sqrt(), largest)

    def standardised(self, rows: Tensor) -> Tensor:
        """``rows`` [R, width] of the table at the scale of its columns."""
        return (rows - self.means) / self.deviations


def alike_by_columns(examples: Tensor, own: Columns, pieces: Iterable[Tensor], other: Columns) -> Tensor:
    """Which of ``examples`` [E, width] are among the rows of ``pieces``, whose columns may have scales of their own.

    That can be told of whole tables: columns less their means and by their deviations are the same at any scale, but
    for their sign. Where fewer than three columns say something, nothing is.

    Args:
        examples: some rows of a table.
        own: that table's columns.
        pieces: what may be the table at another scale, in pieces [R, width].
        other: the columns of that.
    """
    seen = torch.zeros(len(examples), dtype=torch.bool)
    open_still = ROUNDED * own.largest / own.deviations
    some = (own.deviations > 0) & (other.deviations > 0) & (FAINT * open_still <= 1)
    if int(some.sum()) < 3:
        return seen
    first = own.standardised(examples)[:, some].abs()
    for piece in pieces:
        second = other.standardised(piece)[:, some].abs()
        nearest = second[_nearest(first.clamp(max=FAR), second.clamp(max=FAR))]
        seen |= ((first - nearest).abs() <= SAME * (1 + first) + open_still[some]).all(1)
    return seen


def _nearest(first: Tensor, second: Tensor) -> Tensor:
    """For each row of ``first`` [E, width] the place of the nearest of ``second`` [R, width]: [E]."""
    return (second.square().sum(1) - 2 * first @ second.mT).argmin(1)


def usual_deviations(rows: Tensor) -> Tensor:
    """By how much nine in ten of the values of each column of ``rows`` [R, width] differ from their middle at most."""
    columns = rows.T.contiguous()
    apart = (columns - columns.median(1, keepdim=True).values).abs()
    return apart.kthvalue(1 + int(0.9 * (len(rows) - 1)), 1).values  # not that of outliers


def _hashes(rows: Tensor) -> Tensor:
    """Numbers [R] that are the same where ``rows`` [R, width] are in float32, and else most likely not."""
    bits = (rows.float() + 0.0).contiguous().view(torch.int32).long()  # zeros have one sign
    odd = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, rows.shape[1]) * 2 + 1
    return (bits * torch.from_numpy(odd)).sum(1)
