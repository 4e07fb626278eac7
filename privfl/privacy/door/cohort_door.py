"""The door of a stacked cohort: what a step sees when ``torch.func.vmap`` runs it for many clients at once.

Inside the step every tensor looks like one client's. When the step asks for something, the door leaves the stack
(:class:`_Outside`), computes for all clients at once with whatever kernel is best, adds each client's noise from that
client's own stream, notes each client's release, and hands the stacked answer back in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import _get_current_function_mode_stack

from privfl.data.mapped import MappedRows, Rows
from privfl.devices import in_one_copy, to_device
from privfl.models.module_state import ModuleState
from privfl.privacy.clipping.by_length import by_length
from privfl.privacy.clipping.guard import Guard
from privfl.privacy.clipping.lengths import Lengths, padded, passes
from privfl.privacy.clipping.placement import unnoted
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients, given_to
from privfl.privacy.clipping.steady_stacks import OfPiece, Rounding, SteadyStacks
from privfl.privacy.door.batch_plans import Epochs, Plan
from privfl.privacy.door.contract import Batch
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.keeper import (
    ROWS_AT_ONCE,
    ClientSlot,
    DoorKeeper,
    DrawnBatch,
    Given,
    LocalOnly,
    StepNumbers,
    divided_,
)
from privfl.privacy.door.log import BARE_GRADIENT
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss, is_coupled
from privfl.products import evenly


class UnaidedStack(Protocol):
    """Plain gradients of one loss without autograd, of stacked copies of a network."""

    def serves(self, loss: Loss) -> bool:
        """Whether the gradient of ``loss`` is what this computes."""

    def plain_sum(self, parameters: Tensor, batch: StackedBatch) -> Tensor:
        """Gradient [clients, size] of each client's sum of the loss over its rows."""


Announce = Callable[[Sequence[int], Sequence[int]], None]
"""Told how many rows the next pass holds of which clients, so that drop-out draws for these alone."""


class CohortDoor(DoorKeeper):
    """The data of several clients during one round, as a stacked step asks for them.

    A batch is padded with the first row of the client's own batch (of its data if the batch is empty), so nobody's
    values meet another client's. With ``lengths`` a pass is as long, and a stack as high, as it takes for every row and
    every client to be rounded as in any other; a batch whose rows are coupled passes alone. Where a batch of a plan has
    at most ``fixed_rows``, a public number, it is padded to as many, and no other length need be looked for. Plain
    gradients come from ``unaided`` where that serves.
    """

    def __init__(
        self,
        slots: Sequence[ClientSlot],
        inputs: Rows,
        targets: Tensor,
        stacked: StackedGradients,
        announce: Announce,
        loss: Loss,
        dpsgd: DPSGD | None,
        totals: Sequence[NoisyTotal] = (),
        precision: Precision = "float32",
        state: ModuleState | None = None,
        local_only: LocalOnly = "undeclared",
        lengths: Lengths | None = None,
        unaided: UnaidedStack | None = None,
        fixed_rows: int | None = None,
    ) -> None:
        super().__init__(slots, inputs, targets, loss, dpsgd, totals, precision, state, local_only)
        self._lengths, self._unaided, self._fixed_rows = lengths, unaided, fixed_rows
        self._stacked, self._announce = stacked, announce
        self._like = stacked.like
        self._none = torch.empty(len(slots), 0, dtype=self._like.dtype)

    def hand(self, numbers: StepNumbers) -> Batch:
        """The current batch as one client inside the stack sees it: its own ``numbers``, and nobody's data."""
        self._count = numbers.count
        return super().hand(numbers)

    def _gather(
        self, plans: Sequence[Plan], rows: Sequence[Tensor], last: Sequence[bool], draws: Sequence[Draws]
    ) -> DrawnBatch:
        counts, mask = [own.shape[0] for own in rows], []  # asking a tensor for its length takes ten times as long
        fixed = self._fixed_rows is not None and self._as_planned(plans)
        columns = self._fixed_rows if fixed else None
        if min(counts) == max(counts) == (columns or max(counts)) > 0:
            index = torch.stack(list(rows))
        else:
            firsts = [(own if len(own) else slot.rows)[:1] for own, slot in zip(rows, self._active, strict=True)]
            filled = [own if len(own) else first for own, first in zip(rows, firsts, strict=True)]
            index = pad_sequence(filled, batch_first=True, padding_value=-1)
            if columns:
                index = F.pad(index, (0, columns - index.shape[1]), value=-1)
            index = index.where(index >= 0, torch.stack(firsts))
            mask = [torch.arange(index.shape[1]) < torch.tensor(counts)[:, None]]
        uniform = normal = self._none[: len(draws)]
        if draws[0].uniform or draws[0].normal:
            uniform, normal = map(torch.stack, zip(*[own.next(self._like.dtype) for own in draws], strict=True))
        known = torch.tensor([counts, last], dtype=torch.float64)
        places, known, uniform, normal, *mask = in_one_copy(
            [index, known, uniform, normal, *mask], self._targets.device
        )
        numbers = StepNumbers(known[0], known[1], uniform, normal)
        if isinstance(self._inputs, Tensor):  # which an index of two dimensions takes twice as long for
            inputs = self._inputs.index_select(0, places.flatten()).view(*places.shape, *self._inputs.shape[1:])
        else:
            inputs = self._inputs[index if isinstance(self._inputs, MappedRows) else places]
        mask_of = mask[0] if mask else None
        return DrawnBatch(numbers, plans, counts, places, inputs, self._targets[places], mask_of, fixed)

    def _as_planned(self, plans: Sequence[Plan]) -> bool:
        """Whether ``plans`` are the clients' own, with batches of the fixed size; all data as one batch is neither."""
        return all(
            type(plan) is Epochs and plan is slot.plan and plan.batch_size == self._fixed_rows
            for plan, slot in zip(plans, self._active, strict=True)
        )

    def _outside(
        self, work: Callable[[Tensor, Given], Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None
    ) -> Tensor:
        named = loss_kwargs or {}
        entered_by = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        modes = [mode for mode in entered_by if not isinstance(mode, Guard)]  # which is for the step's own code

        def stacked(parameters: Tensor, *values: Any) -> Tensor:
            active, stack = len(self._active), len(parameters)
            given = dict(zip(named, values, strict=True))
            with ExitStack() as entered:
                for mode in modes:  # which PyTorch leaves on the way out of the stack
                    entered.enter_context(mode)
                if active == stack:
                    return work(parameters, given)
                return padded(work(parameters[:active], given_to(given, slice(0, active), active)), stack)

        answer: Tensor = _Outside.apply(stacked, self._count, parameters, *named.values())  # type: ignore[no-untyped-call]
        return answer

    def descend(self, parameters: Tensor, rate: float) -> None:
        """What a step of plain SGD does to ``parameters`` [clients, size]: go along each client's gradient."""
        assert self._current is not None
        if self._dpsgd is not None:
            release = self._release(self.loss, self._current, self._dpsgd)
            self._forget()
            parameters.sub_(divided_(*release(parameters, {})), alpha=rate)
            return
        self._note(BARE_GRADIENT)
        total = self._mean_of(self.loss, self._current, parameters, {})
        divisors = self._current.divisors()
        if self._lengths is None and len(set(divisors)) == 1:
            # A pass less over memory, and another last place: where a claim rests on a client's bits, they may not
            # depend on whether others have as many rows.
            parameters.sub_(total, alpha=rate / divisors[0])
        else:
            parameters.sub_(divided_(total, divisors), alpha=rate)

    def _sizes(self, sizes: Sequence[float]) -> Tensor:
        own = to_device(torch.tensor(sizes, dtype=torch.float64), self._targets.device)
        return self._outside(lambda count, _: own, self._count, None)

    def _mean(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        return divided_(self._mean_of(loss, batch, parameters, loss_kwargs, wrt), batch.divisors())

    def _mean_of(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        """What :meth:`_mean` divides."""
        unaided = None if wrt is not None or loss_kwargs else self._unaided
        key, whole = self._key(("mean", wrt, unaided is None), loss, loss_kwargs), is_coupled(loss)
        loss = in_precision(loss, self._precision, parameters.device)

        def sums(parameters: Tensor, piece: StackedBatch) -> Tensor:
            if unaided is not None and unaided.serves(loss):
                return unaided.plain_sum(parameters, piece)
            return self._stacked.plain_sum(loss, parameters, piece, wrt=wrt or "parameters")

        return self._sum(key, sums, None, batch, parameters, loss_kwargs, whole=whole).to(parameters.dtype)

    def _clipped_sum(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, max_grad_norm: float
    ) -> Tensor:
        key = self._key("clipped", loss, loss_kwargs)
        loss = in_precision(loss, self._precision, parameters.device)
        unaided = self._stacked.unaided if self._stacked.goes_unaided(loss, loss_kwargs) else None
        key = (*key, unaided is not None)  # other kernels

        def sums(parameters: Tensor, piece: StackedBatch) -> Tensor:
            return self._stacked.clipped_sum(loss, parameters, piece, max_grad_norm)

        shown, values = partial(self._stacked.norms, loss), unaided.values if unaided is not None else 0
        return self._sum(key, sums, shown, batch, parameters, loss_kwargs, values=values)

    def _total(
        self,
        statistic: Loss,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
        clip: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, torch.dtype]:
        key, dtypes = self._key("total", statistic, loss_kwargs), []

        def sums(parameters: Tensor, piece: StackedBatch) -> Tensor:
            total, dtype = self._stacked.total(statistic, parameters, piece, clip)
            dtypes.append(dtype)
            return total

        shown = partial(self._stacked.statistics, statistic, bounded=clip is not None)
        return self._sum(key, sums, shown, batch, parameters, loss_kwargs), dtypes[-1]

    def _sum(
        self,
        key: tuple[Hashable, ...],
        sums: OfPiece,
        shown: OfPiece | None,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
        *,
        whole: bool = False,
        values: int = 0,
    ) -> Tensor:
        """Every client's sum [clients, ...] of the ``sums`` of its pieces; zero where the batch is empty.

        ``shown`` [clients, B, ...] shows how each row is rounded, ``None`` if only sums leave the piece; ``key`` says
        what is asked. A row is ``values`` numbers, 0 if that is not known.
        """
        fixed = batch.fixed and shown is None and not whole
        rounding, parts = Rounding((*key, fixed), sums, shown, fixed), [list(range(len(batch.counts)))]
        stacked = StackedBatch(batch.inputs, batch.targets, batch.mask, loss_kwargs, batch.counts, fixed)
        alone = whole and self._lengths is not None
        if alone:  # a batch is as long as it is, and no length serves all
            parts = [[place] for place in parts[0]]
        elif values and self._lengths is not None and batch.mask is not None and not parameters.is_cuda:
            parts = by_length(batch.counts, values)
        if len(parts) == 1 and not alone:
            return self._sum_of(stacked, parts[0], rounding, parameters, whole=whole)
        indices = [to_device(torch.tensor(part), parameters.device) for part in parts]
        found = [
            self._sum_of(stacked.of(part), part, rounding, parameters.index_select(0, index), whole=whole)
            for part, index in zip(parts, indices, strict=True)
        ]
        together = torch.cat(found)
        return torch.empty_like(together).index_copy_(0, torch.cat(indices), together)

    def _sum_of(
        self,
        batch: StackedBatch,
        clients: Sequence[int],
        rounding: Rounding,
        parameters: Tensor,
        *,
        whole: bool = False,
    ) -> Tensor:
        """:meth:`_sum` of some ``clients``, whose ``batch`` and ``parameters`` these are."""
        total: Tensor | None = None
        for group, piece in self._pieces(batch, clients, rounding, whole=whole):
            count = group.stop - group.start
            if self._lengths is not None:
                self._forget()
            own = padded(parameters[group], len(piece.inputs))
            part = rounding.sums(own if self._lengths is None else evenly(own), piece)[:count]
            self._announce([], [])  # what a step drops by itself is no row's, and must not depend on who is stacked
            if count == len(parameters):
                total = part if total is None else _wide(total).add_(part)
            else:
                total = part.new_zeros(len(parameters), *part.shape[1:]) if total is None else total
                total = _wide(total)
                total[group] += part
        assert total is not None
        return _without_empty(total, batch.together or ())

    def _key(self, question: Hashable, function: Callable[..., Tensor], loss_kwargs: Given) -> tuple[Hashable, ...]:
        """What is asked for, as far as kernels may differ by it."""
        lengths = self._lengths
        return () if lengths is None else lengths.key(question, function, loss_kwargs, plain=function is self.loss)

    def _value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        if self._lengths is None:
            return self._stacked.value(function, parameters, loss_kwargs, wrt)

        def values(parameters: Tensor, piece: StackedBatch) -> Tensor:
            return self._stacked.value(function, parameters, piece.loss_kwargs, wrt)

        rounding = Rounding(self._key(("value", wrt), function, loss_kwargs), values, None)
        one, found = given_to(loss_kwargs, slice(0, 1), 1), []
        steady = SteadyStacks(self._lengths, partial(self._announce, [], []), rounding, one)
        for group, height in steady.groups(len(parameters), 1):
            given = given_to(loss_kwargs, group, height)
            answers = self._stacked.value(function, evenly(padded(parameters[group], height)), given, wrt)
            found.append(answers[: group.stop - group.start])
        return torch.cat(found)

    def _pieces(
        self, batch: StackedBatch, clients: Sequence[int], rounding: Rounding, *, whole: bool
    ) -> Iterator[tuple[slice, StackedBatch]]:
        """Some of ``clients``, and columns of ``batch``: at most ``ROWS_AT_ONCE``, as the loop engine cuts a client's.

        A loss that couples samples gets its ``whole`` batch, and is told which rows are present.
        """
        (stack, columns), own, steady = batch.targets.shape[:2], batch.together, None
        assert own is not None
        if self._lengths is not None and not whole:
            one = given_to(batch.loss_kwargs, slice(0, 1), 1)
            steady = SteadyStacks(self._lengths, partial(self._announce, [], []), rounding, one)
        length_of = int if steady is None or batch.fixed else steady.length
        for rows, length in passes(columns, columns if whole else ROWS_AT_ONCE, length_of):
            groups = [(slice(0, stack), stack)] if steady is None else steady.groups(stack, length)
            for group, height in groups:
                counts = [min(max(count - rows.start, 0), rows.stop - rows.start) for count in own[group]]
                self._announce(counts, clients[group])
                piece = batch.part(clients=group, stack=height, rows=rows, length=length)
                if whole:
                    rows_of = torch.ones(piece.targets.shape[:2], dtype=torch.bool, device=piece.targets.device)
                    present = rows_of if piece.mask is None else piece.mask
                    piece = replace(piece, loss_kwargs={**piece.loss_kwargs, "present": (present, 0)})
                yield group, piece


def _wide(total: Tensor) -> Tensor:
    """``total`` in float64, if it is a floating sum: adding many pieces up in float32 would move them all."""
    return total.double() if total.is_floating_point() else total


def _without_empty(total: Tensor, counts: Sequence[int]) -> Tensor:
    """Padding enters no sum, but a value that is not finite would survive a product with 0."""
    empty = [place for place, count in enumerate(counts) if count == 0]
    return total.index_fill_(0, to_device(torch.tensor(empty), total.device), 0) if empty else total


class _Outside(torch.autograd.Function):
    """Leaves the stack: ``work`` is called with the clients' tensors as they lie in memory, clients first."""

    @staticmethod
    def forward(work: Callable[..., Tensor], count: Tensor, parameters: Tensor, *values: Tensor) -> Tensor:
        raise AssertionError("a cohort's door is used inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: no gradient flows through the door."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        work: Callable[..., Tensor],
        count: Tensor,
        parameters: Tensor,
        *values: Tensor,
    ) -> tuple[Tensor, int]:
        """Call ``work`` outside of the stack; its answer is stacked along the first dimension."""
        _, _, dim, *dims = in_dims
        if dim is None:
            parameters = parameters.expand(info.batch_size, *parameters.shape)
        else:
            parameters = parameters.movedim(dim, 0)
        with unnoted():
            return work(parameters, *zip(values, dims, strict=True)), 0
