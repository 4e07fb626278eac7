"""The door of a stacked cohort: what a step sees when ``torch.func.vmap`` runs it for many clients at once.

Inside the step every tensor looks like one client's. When the step asks for something, the door leaves the stack
(:class:`_Outside`), computes for all clients at once with whatever kernel is best, adds each client's noise from that
client's own stream, notes each client's release, and hands the stacked answer back in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from privfl.data.mapped import Rows
from privfl.models.module_state import ModuleState
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.door.batch_plans import Plan
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
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss, is_coupled

Announce = Callable[[Sequence[int]], None]
"""Told how many rows of each client the next forward pass holds, so that drop-out draws for these and no others."""


class CohortDoor(DoorKeeper):
    """The data of several clients during one round, as a stacked step asks for them.

    A batch is padded with the first row of the client's own batch (of its data if the batch is empty), so nobody's
    values meet another client's.
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
    ) -> None:
        super().__init__(slots, inputs, targets, loss, dpsgd, totals, precision, state, local_only)
        self._stacked, self._announce = stacked, announce
        self._like = next(stacked.module.parameters())
        self._none = self._like.new_empty(len(slots), 0)
        self._last = torch.ones(len(slots), dtype=torch.float64, device=self._like.device)

    def hand(self, numbers: StepNumbers) -> Batch:
        """The current batch as one client inside the stack sees it: its own ``numbers``, and nobody's data."""
        self._count = numbers.count
        return super().hand(numbers)

    def _gather(
        self, plans: Sequence[Plan], rows: Sequence[Tensor], last: Sequence[bool], draws: Sequence[Draws]
    ) -> DrawnBatch:
        counts = [len(own) for own in rows]
        count = torch.tensor(counts, dtype=torch.float64, device=self._inputs.device)
        mask = None
        if min(counts) == max(counts) > 0:
            index = torch.stack(list(rows))
        else:
            firsts = [(own if len(own) else slot.rows)[:1] for own, slot in zip(rows, self._active, strict=True)]
            filled = [own if len(own) else first for own, first in zip(rows, firsts, strict=True)]
            index = pad_sequence(filled, batch_first=True, padding_value=-1)
            index = index.where(index >= 0, torch.stack(firsts))
            mask = torch.arange(index.shape[1], device=index.device) < count[:, None]
        flags = self._last[: len(last)]
        if not all(last):
            flags = torch.tensor(last, dtype=torch.float64, device=count.device)
        uniform = normal = self._none[: len(draws)]
        if draws[0].uniform or draws[0].normal:
            uniform, normal = map(torch.stack, zip(*[own.next(self._like) for own in draws], strict=True))
        numbers = StepNumbers(count, flags, uniform, normal)
        return DrawnBatch(numbers, plans, counts, index, self._inputs[index], self._targets[index], mask)

    def _outside(
        self, work: Callable[[Tensor, Given], Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None
    ) -> Tensor:
        named = loss_kwargs or {}

        def stacked(parameters: Tensor, *values: Any) -> Tensor:
            return work(parameters, dict(zip(named, values, strict=True)))

        answer: Tensor = _Outside.apply(stacked, self._count, parameters, *named.values())  # type: ignore[no-untyped-call]
        return answer

    def _sizes(self, sizes: Sequence[float]) -> Tensor:
        return self._outside(lambda count, _: count.new_tensor(sizes), self._count, None)

    def _mean(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        plain_sum = partial(self._stacked.plain_sum, wrt=wrt or "parameters")
        return divided_(self._sum(plain_sum, loss, batch, parameters, loss_kwargs), batch.divisors())

    def _clipped_sum(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, max_grad_norm: float
    ) -> Tensor:
        clipped_sum = partial(self._stacked.clipped_sum, max_grad_norm=max_grad_norm)
        return self._sum(clipped_sum, loss, batch, parameters, loss_kwargs)

    def _sum(
        self,
        of_piece: Callable[[Loss, Tensor, StackedBatch], Tensor],
        loss: Loss,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
    ) -> Tensor:
        """Every client's sum of what ``of_piece`` gives; zero where the batch is empty."""
        whole, loss = is_coupled(loss), in_precision(loss, self._precision, parameters.device)
        parts = (of_piece(loss, parameters, piece) for piece in self._pieces(batch, loss_kwargs, whole=whole))
        return _without_empty(reduce(Tensor.add_, parts), batch)

    def _total(
        self,
        statistic: Loss,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
        clip: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, torch.dtype]:
        found = [self._stacked.total(statistic, parameters, piece, clip) for piece in self._pieces(batch, loss_kwargs)]
        return _without_empty(torch.stack([total for total, _ in found]).sum(0), batch), found[-1][1]

    def _value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        return self._stacked.value(function, parameters, loss_kwargs, wrt)

    def _pieces(self, batch: DrawnBatch, loss_kwargs: Given, *, whole: bool = False) -> Iterator[StackedBatch]:
        """The columns of ``batch`` in pieces of at most ``ROWS_AT_ONCE``, as the loop engine cuts a client's rows.

        A loss that couples samples gets its ``whole`` batch, and is told which rows are present.
        """
        columns = batch.inputs.shape[1]
        step = columns if whole else ROWS_AT_ONCE
        for start in range(0, columns, step):
            end = start + step
            self._announce([min(max(count - start, 0), step) for count in batch.counts])
            targets, mask = batch.targets[:, start:end], None if batch.mask is None else batch.mask[:, start:end]
            if whole:
                rows = torch.ones(targets.shape[:2], dtype=torch.bool, device=targets.device)
                present = rows if mask is None else mask
                loss_kwargs = {**loss_kwargs, "present": (present, 0)}
            yield StackedBatch(batch.inputs[:, start:end], targets, mask, loss_kwargs)


def _without_empty(total: Tensor, batch: DrawnBatch) -> Tensor:
    """Padding enters no sum, but a value that is not finite would survive a product with 0."""
    if 0 in batch.counts:
        total[torch.tensor([count == 0 for count in batch.counts], device=total.device)] = 0
    return total


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
        return work(parameters, *zip(values, dims, strict=True)), 0
