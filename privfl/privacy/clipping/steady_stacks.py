"""Stacks of clients in which every row, and every client, is rounded as in any other stack.

What :mod:`privfl.privacy.clipping.lengths` does for the passes of one client, for those of many: a client must come out
with the same bits whoever is stacked with it and however long their batches are, or its update would move with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from privfl.privacy.clipping.factors import narrow_sums
from privfl.privacy.clipping.lengths import LARGE, Lengths, padded_length, public_values
from privfl.privacy.clipping.placement import Call, placed_alike
from privfl.privacy.clipping.stacked import Given, StackedBatch, given_to
from privfl.products import at_even_places, evenly

OfPiece = Callable[[Tensor, StackedBatch], Tensor]
"""Something [clients, ...] of each of the parameters [clients, size] and its rows."""
LEAST = 2
"""Clients in a stack: kernels treat a single one otherwise."""
TRIED = 8
"""Rows of each client, at least, that a number of clients is tried with; half the public rows if these are few."""
SHIFTS = (0, 5, 11)
"""Where the public rows begin in the batches that sums are tried with; of a large network, whose sums are many numbers,
the first is enough."""
LONGEST = 1024
"""Rows of the longest pass that is tried."""
FOUR = 4
"""Lengths of passes are multiples of it where many occur, since products take that many rows at a time."""


@dataclass(frozen=True)
class Rounding:
    """What is asked of a stack, by ``key``: its ``sums`` [clients, ...] and, of each row, what is ``shown``.

    ``shown`` [clients, B, ...] is ``None`` if rows leave the pass in sums alone. ``fixed``: all passes are as long.
    """

    key: tuple[Hashable, ...]
    sums: OfPiece
    shown: OfPiece | None
    fixed: bool = False


class SteadyStacks:
    """How long passes must be, and how many clients they may hold, for one ``rounding`` to be the same in all.

    Of what is shown row by row a device is asked no more than that; how it adds rows up has not been looked at.
    """

    def __init__(self, lengths: Lengths, quiet: Callable[[], None], rounding: Rounding, given: Given) -> None:
        """``quiet`` makes drop-out draw nothing; ``given`` is what the loss takes of one client."""
        self._lengths, self._quiet, self._rounding, self._given = lengths, quiet, rounding, given
        self._on_cpu = lengths.public.targets.device.type == "cpu"

    def length(self, rows: int) -> int:
        """The length of a pass over at most ``rows`` rows of each client.

        Its sums, and each row of it that is shown, are rounded as in passes of the reference length, and these as in
        longer ones; where they are not, a batch is cut at the same rows whatever else is in the stack.
        """
        key, shown = self._rounding.key, self._rounding.shown
        if shown is not None and not self._on_cpu:
            alone = partial(self._pass, shown, 1)
            return self._lengths.of(key, partial(self._run, shown), rows, alone, LEAST)

        def choose() -> int:
            longest = self._lengths.reference_of(key, partial(self._pass, shown or self._rounding.sums, 1))
            while longest < min(rows, LONGEST // 2) and self._alike(longest, longest, 2 * longest):
                longest *= 2
            if rows > longest:
                return longest
            if shown is None:  # most batches of a run have one length
                return padded_length(rows, longest, lambda length: self._alike(rows, length, longest))
            fours = in_fours(rows)  # others have any length, and so few are tried
            return padded_length(fours, longest, lambda length: self._alike(min(length, fours), length, longest))

        return self._lengths.chosen((*key, "pass", rows), choose)

    def _alike(self, rows: int, length: int, longer: int) -> bool:
        """Whether ``rows`` rows are rounded and added up alike in passes of ``length`` and in ``longer`` ones."""
        lengths, key, shown = self._lengths, self._rounding.key, self._rounding.shown
        alone = partial(self._pass, shown or self._rounding.sums, 1)
        if not lengths.placed_alike(key, length, alone) or not lengths.placed_alike(key, longer, alone):
            return False
        if shown is not None and not lengths.rows_alike(key, partial(self._run, shown), length, longer, alone, LEAST):
            return False
        named = (*key, rows, length, longer)
        return lengths.same(named, None, lambda: self._sums(rows, length), lambda: self._sums(rows, longer))

    def groups(self, clients: int, length: int) -> list[tuple[slice, int]]:
        """Which of ``clients`` clients go into one pass of ``length``, and how many it is padded to."""
        key = (*self._rounding.key, "groups", clients, length)
        return self._lengths.chosen(key, lambda: self._grouped(clients, length))

    def _grouped(self, clients: int, length: int) -> list[tuple[slice, int]]:
        shown, key = self._rounding.shown or self._rounding.sums, (*self._rounding.key, "clients")

        def calls(stack: int) -> list[Call]:
            return self._lengths.calls((*key, stack), length, partial(self._pass, shown, stack))

        alone = [(slice(place, place + 1), LEAST) for place in range(clients)]
        if clients == 1:
            return alone
        noted = calls(clients)
        if noted and not placed_alike(noted, calls(1)):  # all are to stand in the first place
            return alone

        def run(stack: int) -> Tensor:
            tried = min(TRIED, len(self._lengths.public.targets) // 2)
            firsts = range(0, max(tried, length), length)
            batches = (self._lengths.public.batch(length, first) for first in firsts)
            works = dict.fromkeys((shown, self._rounding.sums) if self._on_cpu else (shown,))
            found = (self._run_alike(work, stack, *batch).reshape(stack, -1) for batch in batches for work in works)
            return torch.cat(list(found), dim=1)

        if self._on_cpu:  # a device's kernel is one program, whatever the place
            places = (*key, "places", length)
            if not self._lengths.same(places, None, lambda: run(LEAST)[1:], lambda: run(LEAST)[:1]):
                return alone
        if clients == LEAST:
            return [(slice(0, clients), LEAST)]

        smaller = (1 << power for power in range((clients - 1).bit_length() - 1, 1, -1))
        for stack in (clients, *smaller):
            if self._lengths.same((*key, stack), None, partial(run, stack), partial(run, LEAST)):
                return _groups_of(stack, clients)
        return _groups_of(LEAST, clients)

    def _pass(self, work: OfPiece, stack: int, length: int) -> Tensor:
        return self._run_alike(work, stack, *self._lengths.public.batch(length))

    def _sums(self, rows: int, length: int) -> Tensor:
        """Sums over ``rows`` rows in passes of ``length``, [passes, values]."""
        found = []
        for first in SHIFTS if len(self._lengths.public.parameters) <= LARGE else SHIFTS[:1]:
            inputs, targets = self._lengths.public.batch(length, first)
            mask = torch.arange(length, device=targets.device) < rows
            found.append(self._run_alike(self._rounding.sums, LEAST, inputs, targets, mask)[0].flatten())
        return torch.stack(found)

    def _run_alike(
        self, work: OfPiece, stack: int, inputs: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """``work`` on ``stack`` clients who all hold the same public rows."""
        inputs, targets = (part.expand(stack, *part.shape).contiguous() for part in (inputs, targets))
        return self._run(work, inputs, targets, None if mask is None else mask.expand(stack, -1))

    def _run(self, work: OfPiece, inputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """``work`` on clients who hold these public rows, ``inputs`` [clients, B, ...] and ``targets`` [clients, B]."""
        self._quiet()
        stack, public = len(targets), self._lengths.public.parameters
        values = public_values({name: value for name, (value, _) in self._given.items()}, public)
        given = given_to({name: (values[name], dim) for name, (_, dim) in self._given.items()}, slice(0, 1), stack)
        parameters = evenly(public.expand(stack, -1).clone())
        batch = StackedBatch(at_even_places(inputs), targets, mask, given, fixed=self._rounding.fixed)
        with narrow_sums():
            return work(parameters, batch).double()


def in_fours(rows: int) -> int:
    """``rows``, and as many more as make a multiple of :data:`FOUR`."""
    return -(-rows // FOUR) * FOUR


def _groups_of(stack: int, clients: int) -> list[tuple[slice, int]]:
    """``clients`` in stacks of equal height, the last one filled up."""
    return [(slice(first, min(first + stack, clients)), stack) for first in range(0, clients, stack)]
