"""The door of a stacked cohort: what a step sees when ``torch.func.vmap`` runs it for many clients at once.

Inside the step every tensor looks like one client's. When the step asks for something, the door leaves the stack
(:class:`_Outside`), computes for all clients at once with whatever kernel is best, adds each client's noise from that
client's own stream, notes each client's release, and hands the stacked answer back in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from privfl.data.mapped import Rows
from privfl.errors import ConfigError
from privfl.privacy.clipping.stacked import Given, StackedGradients
from privfl.privacy.door.batch_plans import Epochs, Plan
from privfl.privacy.door.contract import (
    BARE_GRADIENT,
    BARE_SIZE,
    ROWS_AT_ONCE,
    SECOND_GRADIENT,
    Batch,
    DoorLog,
    DrawnBatch,
    public_plan,
)
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import Totals
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss, is_coupled, refuse_coupled
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

Draw = Callable[[Sequence[int]], None]
"""Told how many rows of each client the next forward pass holds, so that drop-out draws for these and no others."""


@dataclass
class Visitor:
    """One client at the door: its rows [n], its plan, and its own streams."""

    client: int
    rows: Tensor
    plan: Plan
    shuffle: torch.Generator
    noise: NoiseStream | None
    draws: Draws = field(default_factory=Draws)
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.log = DoorLog()
        self.steps = self.plan.length(len(self.rows))
        self.batches: Iterator[Tensor] = self.plan.rows(self.rows, self.shuffle, self.noise)


class CohortDoor:
    """The data of several clients during one round; see :class:`privfl.privacy.door.contract.Door` for what it
    promises.

    Args:
        visitors: the clients, those with more steps first.
        announce: told before every forward pass how many rows each client has in it.
    """

    def __init__(
        self,
        visitors: Sequence[Visitor],
        inputs: Rows,
        targets: Tensor,
        stacked: StackedGradients,
        loss: Loss,
        dpsgd: DPSGD | None,
        announce: Draw,
        precision: Precision = "float32",
    ) -> None:
        self.loss = loss
        self.visitors = list(visitors)
        self._inputs, self._targets, self._stacked, self._dpsgd = inputs, targets, stacked, dpsgd
        self._announce, self._precision = announce, precision
        self._like = next(stacked.module.parameters())
        self._none = self._like.new_empty(len(self.visitors), 0)
        self._last = torch.ones(len(self.visitors), dtype=torch.float64, device=self._like.device)
        self._step = 0
        self._spent: DrawnBatch | None = None

    def draw(self) -> Batch | None:
        """The next batch of every client that has one, stacked and padded; ``None`` when all are through.

        Clients drop out from the end; ``count`` [clients] tells who is left. Padding repeats the first row of the
        client's own batch (of its data if the batch is empty), so nobody's values meet another client's.
        """
        step = self._step
        self._step += 1
        active = [visitor for visitor in self.visitors if visitor.steps > step]
        if not active:
            return None
        last = [float(visitor.plan.is_last(step, len(visitor.rows))) for visitor in active]
        return self._stack(active, active[0].plan, [next(visitor.batches) for visitor in active], last)

    def everything(self) -> Batch:
        """All rows of every client, stacked and padded."""
        drawn = [visitor.rows for visitor in self.visitors]
        plan = Epochs(max(map(len, drawn)), 1)
        return self._stack(self.visitors, plan, drawn, [1.0] * len(drawn), drawing=False)

    def _stack(
        self, active: Sequence[Visitor], plan: Plan, drawn: list[Tensor], last: list[float], *, drawing: bool = True
    ) -> Batch:
        counts = [len(rows) for rows in drawn]
        self._counts, self._plans = counts, [visitor.plan if drawing else plan for visitor in active]
        count = torch.tensor(counts, dtype=torch.float64, device=self._inputs.device)
        mask = None
        if min(counts) == max(counts) > 0:
            index = torch.stack(drawn)
        else:
            firsts = [(rows if len(rows) else visitor.rows)[:1] for rows, visitor in zip(drawn, active, strict=True)]
            drawn = [rows if len(rows) else first for rows, first in zip(drawn, firsts, strict=True)]
            index = pad_sequence(drawn, batch_first=True, padding_value=-1)
            index = index.where(index >= 0, torch.stack(firsts))
            mask = torch.arange(index.shape[1], device=index.device) < count[:, None]
        uniform, normal = self._numbers(active, drawing)
        flags = self._last if all(last) else torch.tensor(last, dtype=torch.float64, device=count.device)
        flags = flags[: len(last)]
        inputs, targets = self._inputs[index], self._targets[index]
        self._batch = DrawnBatch(plan, count, flags, uniform, normal, self._note_sizes, index, inputs, targets, mask)
        return self._batch

    def _numbers(self, active: Sequence[Visitor], drawing: bool) -> tuple[Tensor, Tensor]:
        """The random numbers [clients, u] and [clients, n] of the clients' next steps."""
        if not drawing or not (active[0].draws.uniform or active[0].draws.normal):
            return self._none[: len(active)], self._none[: len(active)]
        numbers = [visitor.draws.next(self._like) for visitor in active]
        uniform, normal = zip(*numbers, strict=True)
        return torch.stack(uniform), torch.stack(normal)

    def enter(self, count: Tensor, last: Tensor, uniform: Tensor, normal: Tensor) -> Batch:
        """The drawn batch as one client inside the stack sees it: its own numbers, and nobody's data."""
        self._count = count
        return Batch(self._batch.plan, count, last, uniform, normal, self._note_sizes)

    def _note_sizes(self) -> None:
        for visitor in self.visitors[: len(self._counts)]:
            visitor.log.bare[BARE_SIZE] = None

    def gradient(self, loss: Loss, parameters: Tensor, batch: Batch, given: dict[str, Tensor] | None = None) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.gradient`."""
        return self._outside(self._gradient, loss, parameters, given or {})

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.total`."""
        return self._outside(partial(self._total, name), statistic, parameters, given or {})

    def kept_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.kept_gradient`."""
        return self._outside(partial(self._kept_gradient, wrt), loss, parameters, given or {})

    def free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.free_gradient`."""
        return self._outside(partial(self._free_gradient, wrt), function, parameters, given or {})

    def free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.free_value`."""
        return self._outside(self._free_value, function, parameters, given or {})

    def size(self) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.size`."""
        answer: Tensor = _Outside.apply(self._sizes, self._count, self._count)  # type: ignore[no-untyped-call]
        return answer

    def _sizes(self, count: Tensor) -> Tensor:
        active = self.visitors[: len(count)]
        self._note_sizes()
        return torch.tensor([float(len(visitor.rows)) for visitor in active], dtype=count.dtype, device=count.device)

    def _outside(self, work: Callable[..., Tensor], loss: Loss, parameters: Tensor, given: dict[str, Tensor]) -> Tensor:
        arguments = (partial(work, loss, tuple(given)), self._count, parameters, *given.values())
        answer: Tensor = _Outside.apply(*arguments)  # type: ignore[no-untyped-call]
        return answer

    def _gradient(self, loss: Loss, names: tuple[str, ...], parameters: Tensor, *values: Any) -> Tensor:
        given: Given = dict(zip(names, values, strict=True))
        active, private = self.visitors[: len(parameters)], self._dpsgd
        if private is None:
            for visitor in active:
                visitor.log.bare[BARE_GRADIENT] = None
            return self._mean(self._sum(loss, parameters, given), self._divisors())
        refuse_coupled(loss)
        if self._batch is self._spent:
            raise ConfigError(SECOND_GRADIENT)
        self._spent = self._batch
        total = self._sum(loss, parameters, given, private.max_grad_norm)
        return self._mean(total, self._add_noise(total, active, private))

    def _kept_gradient(self, wrt: str, loss: Loss, names: tuple[str, ...], parameters: Tensor, *values: Any) -> Tensor:
        given: Given = dict(zip(names, values, strict=True))
        return self._mean(self._sum(loss, parameters, given, wrt=wrt), self._divisors())

    def _free_gradient(
        self, wrt: str, function: Loss, names: tuple[str, ...], parameters: Tensor, *values: Any
    ) -> Tensor:
        given: Given = dict(zip(names, values, strict=True))
        return self._stacked.free_gradient(function, parameters, given, wrt)

    def _free_value(self, function: Loss, names: tuple[str, ...], parameters: Tensor, *values: Any) -> Tensor:
        return self._stacked.free_value(function, parameters, dict(zip(names, values, strict=True)))

    def _sum(
        self,
        loss: Loss,
        parameters: Tensor,
        given: Given,
        max_grad_norm: float | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Every client's sum of gradients, clipped if there is a bound; zero where the batch is empty."""
        whole = is_coupled(loss)
        loss = in_precision(loss, self._precision, parameters.device)
        total: Tensor | None = None
        for inputs, targets, mask in self._pieces(self._batch, whole=whole):
            if whole:
                present = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
                given = {**given, "present": (present, 0)}
            if max_grad_norm is None:
                part = self._stacked.scaled_sum(loss, parameters, inputs, targets, mask, given, wrt)
            else:
                part = self._stacked.clipped_sum(loss, parameters, inputs, targets, mask, given, max_grad_norm)
            total = part if total is None else total.add_(part)
        assert total is not None
        return self._without_empty(total)

    def _without_empty(self, total: Tensor) -> Tensor:
        """Padding enters no sum, but a value that is not finite would survive a product with 0."""
        if 0 in self._counts:
            total[torch.tensor([count == 0 for count in self._counts], device=total.device)] = 0
        return total

    def _divisors(self) -> list[float]:
        return [plan.divide_by(count) for plan, count in zip(self._plans, self._counts, strict=True)]

    def _mean(self, total: Tensor, divisors: list[float]) -> Tensor:
        if len(set(divisors)) == 1:
            return total.div_(divisors[0])
        numbers = torch.tensor(divisors, dtype=total.dtype, device=total.device)
        return total.div_(numbers.view(-1, *[1] * (total.dim() - 1)))

    def _add_noise(self, total: Tensor, active: Sequence[Visitor], dpsgd: DPSGD) -> list[float]:
        """Noise every client's clipped sum from its own stream, note the releases; returns the public divisors."""
        public = [public_plan(plan) for plan in self._plans]
        if dpsgd.noise_at == "client":
            streams = [visitor.noise for visitor in active if visitor.noise is not None]
            deviations = [dpsgd.noise(visitor.client) * dpsgd.max_grad_norm for visitor in active]
            add_gaussian_rows_(streams, total, deviations)
        for visitor, (rate, _) in zip(active, public, strict=True):
            visitor.log.note_private(dpsgd, visitor.client, rate)
        return [divisor for _, divisor in public]

    def _total(
        self, name: str | None, statistic: Loss, names: tuple[str, ...], parameters: Tensor, *values: Any
    ) -> Tensor:
        given: Given = dict(zip(names, values, strict=True))
        active = self.visitors[: len(parameters)]
        noisy = active[0].totals.mechanism(name)
        kinds = [parameters.dtype]

        def clipped(values: Tensor) -> Tensor:
            assert noisy is not None
            kinds.append(values.dtype)
            return noisy.clip(values)

        clip = None if noisy is None else clipped
        if noisy is not None:
            refuse_coupled(statistic)
        sums = [
            self._stacked.total(statistic, parameters, inputs, targets, mask, given, clip)
            for inputs, targets, mask in self._pieces(self._batch)
        ]
        total = self._without_empty(torch.stack(sums).sum(0))
        parts = zip(active, total, strict=True)
        return torch.stack([visitor.totals.release(part, noisy, visitor.log, kinds[-1]) for visitor, part in parts])

    def _pieces(self, batch: DrawnBatch, *, whole: bool = False) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """The columns of ``batch`` in pieces of at most ``ROWS_AT_ONCE``, as the loop engine cuts a client's rows."""
        columns = batch.inputs.shape[1]
        step = columns if whole else ROWS_AT_ONCE
        for start in range(0, columns, step):
            end = start + step
            self._announce([min(max(count - start, 0), step) for count in self._counts])
            mask = None if batch.mask is None else batch.mask[:, start:end]
            yield batch.inputs[:, start:end], batch.targets[:, start:end], mask


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
