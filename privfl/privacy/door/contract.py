"""The door: the one handle through which training sees a client's data.

With nothing on, a value passes and the door notes why the upload that follows is unprotected. With DP-SGD on,
``gradient`` clips, adds noise, divides by a public number and notes the event. :class:`Door` decides what is refused,
noised and noted; how gradients are computed, for one client or for a stacked cohort, is its subclasses' matter
(:mod:`privfl.privacy.door.client_door`, :mod:`privfl.privacy.door.cohort_door`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from privfl.data.mapped import Rows
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import Epochs, Plan, public_plan
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import BARE_GRADIENT, BARE_SIZE, DoorLog
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.door.precision import Precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss, refuse_coupled
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

ROWS_AT_ONCE = 512
"""Rows of one forward pass; larger batches are summed in pieces, so memory does not grow with a client's size."""
SECOND_GRADIENT = (
    "DP-SGD refuses a second gradient on one batch, because both share the draw that amplifies; take one gradient of "
    "each batch"
)
Given = dict[str, Any]
"""What a loss takes by name: tensors of one client, or for a cohort :data:`privfl.privacy.clipping.stacked.Given`."""


@dataclass(frozen=True)
class Batch:
    """One batch, as a step gets it: its number of rows, and the numbers of its step.

    All are tensors, so that an algorithm may compute with them for one client and for a stacked cohort alike.

    Args:
        counted: number of rows; read it as :attr:`count`.
        last: 1 if the batch belongs to the client's last pass over its data, else 0; [].
        uniform: numbers in [0, 1) from the client's own stream, as many as the algorithm draws; [u].
        normal: standard normal numbers, likewise; [n].
        note_count: notes that the number of rows was read.
    """

    counted: Tensor
    last: Tensor
    uniform: Tensor
    normal: Tensor
    note_count: Callable[[], None]

    @property
    def count(self) -> Tensor:
        """Number of rows [], private under DP-SGD as the client's size is: reading it is noted as unprotected."""
        self.note_count()
        return self.counted


@dataclass(frozen=True)
class DrawnBatch(Batch):
    """A batch as the doors know it: ``inputs`` [B, ...] and ``targets`` [B] of rows ``rows`` [B].

    Stacked batches hold [clients, B, ...], and ``mask`` [clients, B] tells rows from padding. ``plans`` and ``counts``
    say of each client which plan drew its rows, and how many there are.
    """

    plans: Sequence[Plan]
    counts: Sequence[int]
    rows: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None

    def divisors(self) -> list[float]:
        """What every client's sum of gradients is divided by without DP-SGD."""
        return [plan.divide_by(count) for plan, count in zip(self.plans, self.counts, strict=True)]


@dataclass
class ClientSlot:
    """One client at a door during one round: its rows [n], its plan, its own streams, and its log.

    ``noise`` is for batches and gradients, ``total_noise`` for totals; both are ``None`` without a mechanism.
    """

    client: int
    rows: Tensor
    plan: Plan
    shuffle: torch.Generator
    noise: NoiseStream | None = None
    draws: Draws = field(default_factory=Draws)
    total_noise: NoiseStream | None = None
    log: DoorLog = field(default_factory=DoorLog)

    def __post_init__(self) -> None:
        self.steps = self.plan.length(len(self.rows))
        self.batches: Iterator[Tensor] = self.plan.rows(self.rows, self.shuffle, self.noise)


class Door(ABC):
    """What an algorithm's step may do with the data of the clients in ``slots``.

    ``loss_kwargs`` holds tensors of ``local`` that a loss or function takes by name besides the network, the inputs and
    the targets.

    Args:
        slots: the clients, those with more steps first.
        inputs: of all clients [N, ...].
        targets: of all clients [N].
        loss: the task's own.
        dpsgd: clips and noises gradients, ``None`` for none of it.
        totals: mechanisms of the sums over samples.
        precision: in which the losses of gradients are computed.
    """

    def __init__(
        self,
        slots: Sequence[ClientSlot],
        inputs: Rows,
        targets: Tensor,
        loss: Loss,
        dpsgd: DPSGD | None,
        totals: Sequence[NoisyTotal] = (),
        precision: Precision = "float32",
    ) -> None:
        self.slots, self.loss = list(slots), loss
        self._inputs, self._targets, self._dpsgd, self._precision = inputs, targets, dpsgd, precision
        self._mechanisms = {one.statistic: one for one in totals}
        self._active: Sequence[ClientSlot] = self.slots
        self._spent: DrawnBatch | None = None

    def batches(self) -> Iterator[DrawnBatch]:
        """The batches of one round, drawn as every client's plan says; those with fewer steps drop out from the end."""
        for step in range(self.slots[0].steps):
            active = [slot for slot in self.slots if slot.steps > step]
            plans, rows = [slot.plan for slot in active], [next(slot.batches) for slot in active]
            last = [slot.plan.is_last(step, len(slot.rows)) for slot in active]
            self._active = active
            yield self._gather(plans, rows, last, [slot.draws for slot in active])

    def everything(self) -> DrawnBatch:
        """All rows of every client as one batch."""
        self._active, rows = self.slots, [slot.rows for slot in self.slots]
        plan = Epochs(max(map(len, rows)), 1)
        return self._gather([plan] * len(rows), rows, [True] * len(rows), [Draws()] * len(rows))

    def gradient(
        self, loss: Loss, parameters: Tensor, batch: Batch, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Gradient [size] of the mean (or, by the plan's divisor, scaled sum) of ``loss`` over ``batch``.

        The result may be changed in place, and may be overwritten by the next gradient. Without DP-SGD an empty batch
        gives zero; with DP-SGD the batch must come from a Poisson plan with a divisor, and an empty one gives pure
        noise.

        Raises:
            ConfigError: DP-SGD is on, but the loss couples samples, the batch does not come from a Poisson plan with a
                public divisor, or a gradient of it was taken before.
        """
        drawn, active, dpsgd = self._drawn(batch), self._active, self._dpsgd
        if dpsgd is None:
            self._note(BARE_GRADIENT)
            return self._outside(partial(self._mean, loss, drawn), parameters, loss_kwargs)
        refuse_coupled(loss)
        public = [public_plan(plan) for plan in drawn.plans]
        if drawn is self._spent:
            raise ConfigError(SECOND_GRADIENT)
        self._spent = drawn

        def private(parameters: Tensor, loss_kwargs: Given) -> Tensor:
            total = self._clipped_sum(loss, drawn, parameters, loss_kwargs, dpsgd.max_grad_norm)
            if dpsgd.noise_at == "client":
                deviations = [dpsgd.noise(slot.client) * dpsgd.max_grad_norm for slot in active]
                _add_noise_(total, [slot.noise for slot in active], deviations)
            for slot, (rate, _) in zip(active, public, strict=True):
                slot.log.note_private(dpsgd, slot.client, rate)
            return divided_(total, [divisor for _, divisor in public])

        return self._outside(private, parameters, loss_kwargs)

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch,
        loss_kwargs: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Sum over ``batch`` of ``statistic(network, inputs, targets, **given) -> [B, ...]``; no gradient is taken.

        For losses, label counts, prototypes. The network is in evaluation mode. If the run has a noisy total
        (:class:`privfl.privacy.door.noisy_total.NoisyTotal`) for ``name``, one of the algorithm's ``statistics``, the
        sum leaves clipped and with noise; otherwise it is noted as unprotected.

        Raises:
            ConfigError: there is a noisy total for ``name``, but the statistic couples samples.
        """
        drawn, active = self._drawn(batch), self._active
        mechanism = None if name is None else self._mechanisms.get(name)
        if mechanism is not None:
            refuse_coupled(statistic)

        def released(parameters: Tensor, loss_kwargs: Given) -> Tensor:
            clip = None if mechanism is None else mechanism.clip
            total, dtype = self._total(statistic, drawn, parameters, loss_kwargs, clip)
            if mechanism is not None and mechanism.noise_multiplier > 0:
                total = total.contiguous()
                _add_noise_(total, [slot.total_noise for slot in active], [mechanism.deviation] * len(active))
            for slot in active:
                slot.log.note_total(mechanism)
            return total.to(dtype) if dtype.is_floating_point else total

        return self._outside(released, parameters, loss_kwargs)

    def local_only_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the mean of ``loss`` over ``batch`` that stays with the client, whatever it is used for.

        For personal models and local discriminators. It is neither protected nor noted: it must never influence an
        upload, and an algorithm that takes one tests that. ``wrt`` may name a tensor of ``loss_kwargs`` instead.
        """
        return self._outside(partial(self._mean, loss, self._drawn(batch), wrt=wrt), parameters, loss_kwargs)

    def data_free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the sum of ``function(network, **given)``, in evaluation mode; no data passes.

        For what depends on data only through the parameters: synthetic inputs, regularisers of the network's outputs.
        ``wrt`` may name a tensor of ``loss_kwargs``, such as the synthetic inputs.
        """
        return self._outside(partial(self._value, function, wrt=wrt), parameters, loss_kwargs)

    def data_free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """``function(network, **given)`` in evaluation mode, without a gradient; no data passes."""
        return self._outside(partial(self._value, function), parameters, loss_kwargs)

    def size(self) -> Tensor:
        """The client's exact number of samples [], noted as unprotected."""
        self._note_size()
        return self._sizes([float(len(slot.rows)) for slot in self._active])

    def _note_size(self) -> None:
        self._note(BARE_SIZE)

    def _note(self, reason: str) -> None:
        """Note for every client that is left why a value leaves as it is."""
        for slot in self._active:
            slot.log.bare[reason] = None

    def _drawn(self, batch: Batch) -> DrawnBatch:
        """``batch`` with its data, which a step does not see."""
        assert isinstance(batch, DrawnBatch)
        return batch

    def _outside(
        self, work: Callable[[Tensor, Given], Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None
    ) -> Tensor:
        """The answer of ``work``, which sees all clients at once where the step that asks is stacked."""
        return work(parameters, loss_kwargs or {})

    @abstractmethod
    def _gather(
        self, plans: Sequence[Plan], rows: Sequence[Tensor], last: Sequence[bool], draws: Sequence[Draws]
    ) -> DrawnBatch:
        """The next batch, of ``rows`` [B] of every active client, with the numbers of their steps from ``draws``."""

    @abstractmethod
    def _mean(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        """Gradient of every client's mean (by its plan's divisor) of ``loss``, for the tensor called ``wrt``.

        ``None`` is the parameters too, but the answer may lie in a buffer that the next gradient overwrites.
        """

    @abstractmethod
    def _clipped_sum(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, max_grad_norm: float
    ) -> Tensor:
        """Every client's sum of per-sample gradients clipped to ``max_grad_norm``, likewise in a buffer."""

    @abstractmethod
    def _total(
        self,
        statistic: Loss,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
        clip: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, torch.dtype]:
        """Every client's sum of ``statistic``, single rows passed through ``clip``, and the type that these had."""

    @abstractmethod
    def _value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        """Every client's ``function(network, **given)``, or the gradient of its sum for the tensor called ``wrt``."""

    @abstractmethod
    def _sizes(self, sizes: Sequence[float]) -> Tensor:
        """The active clients' ``sizes`` as float64 tensors [] for the step."""


def divided_(total: Tensor, divisors: Sequence[float]) -> Tensor:
    """``total``, every client's part divided in place by its divisor."""
    if len(set(divisors)) == 1:
        return total.div_(divisors[0])
    numbers = torch.tensor(divisors, dtype=total.dtype, device=total.device)
    return total.div_(numbers.view(-1, *[1] * (total.dim() - 1)))


def _add_noise_(total: Tensor, streams: Sequence[NoiseStream | None], deviations: Sequence[float]) -> None:
    """Add to every client's part of ``total`` noise from the client's own stream, in place."""
    present = [stream for stream in streams if stream is not None]
    assert len(present) == len(deviations)
    add_gaussian_rows_(present, total.view(len(present), -1), deviations)
