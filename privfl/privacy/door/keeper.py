"""Behind the door: whoever keeps the data of a client, or of a stacked cohort, and answers what a step asks.

:class:`DoorKeeper` decides what is refused, noised and noted; its subclasses compute gradients. An algorithm is handed
:class:`~.contract.Door` and :class:`~.contract.Batch`, which hold no more than what a step may have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from privfl.data.mapped import Rows
from privfl.devices import to_device
from privfl.errors import ConfigError
from privfl.models.module_state import ModuleState
from privfl.plain_tensors import given_plain
from privfl.privacy.door.batch_plans import Epochs, Plan, public_plan
from privfl.privacy.door.contract import Batch, Door, Question
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import BARE_GRADIENT, BARE_SIZE, DoorLog, note_bare
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.door.precision import Precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.door.untouched import untouched
from privfl.privacy.loss import Loss, refuse_coupled
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

ROWS_AT_ONCE = 512
"""Rows of one forward pass; larger batches are summed in pieces, so memory does not grow with a client's size."""
SECOND_USE = (
    "DP-SGD refuses a second {} on one batch, because both share the draw that amplifies; take one gradient of each "
    "batch, and totals of everything in prepare or conclude"
)
OTHER_STEP = "a step used the batch of another step; take gradients and totals of the batch that the step is given"
LocalOnly = Literal["given", "withheld", "undeclared"]
Given = dict[str, Any]
"""What a loss takes by name: tensors of one client, or for a cohort :data:`privfl.privacy.clipping.stacked.Given`."""


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of a step as a :class:`~.contract.Batch` has them; of a stacked cohort [clients, ...]."""

    count: Tensor
    last: Tensor
    uniform: Tensor
    normal: Tensor


@dataclass(frozen=True)
class DrawnBatch:
    """A batch as it is drawn: ``inputs`` [B, ...] and ``targets`` [B] of rows ``rows`` [B].

    Stacked batches hold [clients, B, ...], and ``mask`` [clients, B] tells rows from padding. ``plans`` and ``counts``
    say of each client which plan drew its rows, and how many there are. ``fixed``: B is a public number.
    """

    numbers: StepNumbers
    plans: Sequence[Plan]
    counts: Sequence[int]
    rows: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    fixed: bool = False

    def divisors(self) -> list[float]:
        """What every client's sum of gradients is divided by without DP-SGD."""
        return [plan.divide_by(count) for plan, count in zip(self.plans, self.counts, strict=True)]


@dataclass
class ClientSlot:
    """One client at a door during one round: its rows [n], its plan, its own streams, and its log.

    ``noise`` is for batches and gradients, ``total_noise`` for totals; both are ``None`` without a mechanism.
    ``personal_plan`` draws the batches that come after the upload is settled.
    """

    client: int
    rows: Tensor
    plan: Plan
    shuffle: torch.Generator
    noise: NoiseStream | None = None
    draws: Draws = field(default_factory=Draws)
    total_noise: NoiseStream | None = None
    log: DoorLog = field(default_factory=DoorLog)
    personal_plan: Epochs | None = None

    def __post_init__(self) -> None:
        self.samples, self.steps = len(self.rows), self.plan.length(len(self.rows))
        self.batches: Iterator[Tensor] = self.plan.rows(self.rows, self.shuffle, self.noise)

    def afterwards(self) -> ClientSlot:
        """The same place with the batches of its personal plan, shuffled on by the experiment's stream."""
        assert self.personal_plan is not None
        return replace(self, plan=self.personal_plan, draws=Draws())


class DoorKeeper(ABC):
    """Keeps the data of the clients in ``slots``, and answers what their steps ask; :class:`Door` says what that means.

    Args:
        slots: the clients, those with more steps first.
        inputs: of all clients [N, ...].
        targets: of all clients [N].
        loss: the task's own.
        dpsgd: clips and noises gradients, ``None`` for none of it.
        totals: mechanisms of the sums over samples.
        precision: in which the losses of gradients are computed.
        state: what the network remembers besides its parameters, put back before every pass that a mechanism protects.
        local_only: of gradients that stay with the client, whether they are ``"given"``, ``"withheld"`` (zeros in their
            place), or ``"undeclared"`` and refused.
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
        state: ModuleState | None = None,
        local_only: LocalOnly = "undeclared",
    ) -> None:
        self.slots, self.loss = list(slots), loss
        self._inputs, self._targets, self._dpsgd, self._precision = inputs, targets, dpsgd, precision
        self._mechanisms = {one.statistic: one for one in totals}
        self._state, self._local_only = state, local_only
        self._active: Sequence[ClientSlot] = self.slots
        self._current: DrawnBatch | None = None
        self._handed: Batch | None = None
        self._spent = False

    def door(self) -> Door:
        """The side that a step is handed."""
        allowed = frozenset(get_args(Question))

        def ask(question: Question, *arguments: Any) -> Tensor:
            if question not in allowed:
                raise AttributeError(f"a door has no '{question}'")
            return getattr(self, question)(*map(given_plain, arguments))  # type: ignore[no-any-return]

        return Door(ask, self.loss)

    def batches(self) -> Iterator[DrawnBatch]:
        """The batches of one round, drawn as every client's plan says; those with fewer steps drop out from the end."""
        for step in range(self.slots[0].steps):
            active = [slot for slot in self.slots if slot.steps > step]
            plans, rows = [slot.plan for slot in active], [next(slot.batches) for slot in active]
            last = [slot.plan.is_last(step, slot.samples) for slot in active]
            self._active = active
            yield self._now(self._gather(plans, rows, last, [slot.draws for slot in active]))

    def everything(self) -> DrawnBatch:
        """All rows of every client as one batch."""
        self._active, rows = self.slots, [slot.rows for slot in self.slots]
        plan = Epochs(max(slot.samples for slot in self.slots), 1)
        return self._now(self._gather([plan] * len(rows), rows, [True] * len(rows), [Draws()] * len(rows)))

    def personalising(self) -> list[int]:
        """Turn to the batches of the personal plans; where every client stood before, in the order of the new ones."""
        after = [slot.afterwards() for slot in self.slots]
        order = sorted(range(len(after)), key=lambda place: -after[place].steps)
        self.slots = [after[place] for place in order]
        return order

    def hand(self, numbers: StepNumbers) -> Batch:
        """The current batch as a step sees it: ``numbers`` of its own client, and no data."""
        active = self._active  # not the door itself, which would be held by what it hands out, and hold the data

        def count() -> Tensor:
            note_bare(active, BARE_SIZE)
            return numbers.count

        self._handed = Batch(count, numbers.last, numbers.uniform, numbers.normal)
        return self._handed

    def gradient(
        self, loss: Loss, parameters: Tensor, batch: Batch | DrawnBatch, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """:meth:`Door.gradient` of every client."""
        drawn, dpsgd = self._drawn(batch), self._dpsgd
        if dpsgd is None:
            self._note(BARE_GRADIENT)
            return self._outside(partial(self._mean, loss, drawn), parameters, loss_kwargs)
        release = self._release(loss, drawn, dpsgd)

        def private(parameters: Tensor, loss_kwargs: Given) -> Tensor:
            return divided_(*release(parameters, loss_kwargs))

        return self._protected(private, parameters, loss_kwargs)

    def _release(
        self, loss: Loss, drawn: DrawnBatch, dpsgd: DPSGD
    ) -> Callable[[Tensor, Given], tuple[Tensor, list[float]]]:
        """Use the draw of ``drawn`` for a release: clipped sums with noise, noted, and what they are divided by.

        Raises:
            ConfigError: the loss couples samples, no claim is known for the draw, or it was used before.
        """
        active = self._active
        refuse_coupled(loss)
        public = [public_plan(plan) for plan in drawn.plans]
        self._spend("gradient")

        def release(parameters: Tensor, loss_kwargs: Given) -> tuple[Tensor, list[float]]:
            with untouched(loss, self.loss):
                total = self._clipped_sum(loss, drawn, parameters, loss_kwargs, dpsgd.max_grad_norm)
            if dpsgd.noise_at == "client":
                deviations = [dpsgd.noise(slot.client) * dpsgd.max_grad_norm for slot in active]
                _add_noise_(total, [slot.noise for slot in active], deviations)
            for slot, (rate, _) in zip(active, public, strict=True):
                slot.log.note_private(dpsgd, slot.client, rate)
            # Rounded before it is divided, or bits would tell whether other clients' sums took several passes.
            return total.to(parameters.dtype), [divisor for _, divisor in public]

        return release

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch | DrawnBatch,
        loss_kwargs: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """:meth:`Door.total` of every client."""
        drawn, active = self._drawn(batch), self._active
        mechanism = None if name is None else self._mechanisms.get(name)
        if mechanism is not None:
            refuse_coupled(statistic)
            if not isinstance(drawn.plans[0], Epochs):
                self._spend("sum")

        def released(parameters: Tensor, loss_kwargs: Given) -> Tensor:
            clip = None if mechanism is None else mechanism.clip
            with untouched(statistic, statistic if mechanism is None else self.loss):
                total, dtype = self._total(statistic, drawn, parameters, loss_kwargs, clip)
            if mechanism is not None and mechanism.noise_multiplier > 0:
                total = total.contiguous()
                _add_noise_(total, [slot.total_noise for slot in active], [mechanism.deviation] * len(active))
            for slot in active:
                slot.log.note_total(mechanism)
            return total.to(dtype) if dtype.is_floating_point else total

        return self._protected(released, parameters, loss_kwargs)

    def local_only_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch | DrawnBatch,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """:meth:`Door.local_only_gradient` of every client."""
        drawn = self._drawn(batch)
        if self._local_only == "undeclared":
            raise ConfigError(
                "the algorithm takes a gradient that is to stay with the client, and does not declare it; write "
                "local_only: ClassVar[bool] = True into its class"
            )
        if self._local_only == "withheld":
            return torch.zeros_like(parameters if wrt == "parameters" else (loss_kwargs or {})[wrt])
        return self._outside(partial(self._mean, loss, drawn, wrt=wrt), parameters, loss_kwargs)

    def data_free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """:meth:`Door.data_free_gradient` of every client."""
        return self._protected(partial(self._value, function, wrt=wrt), parameters, loss_kwargs)

    def data_free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """:meth:`Door.data_free_value` of every client."""
        return self._protected(partial(self._value, function), parameters, loss_kwargs)

    def size(self) -> Tensor:
        """:meth:`Door.size` of every client."""
        self._note(BARE_SIZE)
        return self._sizes([float(slot.samples) for slot in self._active])

    def _now(self, drawn: DrawnBatch) -> DrawnBatch:
        """``drawn`` as the only batch that gradients and totals may be taken of from now on."""
        self._current, self._handed, self._spent = drawn, None, False
        return drawn

    def _drawn(self, batch: Batch | DrawnBatch) -> DrawnBatch:
        """``batch`` with its data, which a step does not see.

        Raises:
            ConfigError: it is not the current one.
        """
        if self._current is None or (batch is not self._handed and batch is not self._current):
            raise ConfigError(OTHER_STEP)
        return self._current

    def _spend(self, use: str) -> None:
        """Use the draw of the current batch, once; raises a :class:`ConfigError` if it was used before."""
        if self._spent:
            raise ConfigError(SECOND_USE.format(use))
        self._spent = True

    def _protected(
        self, work: Callable[[Tensor, Given], Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None
    ) -> Tensor:
        """:meth:`_outside`, with a network that remembers nothing of an earlier pass."""
        self._forget()
        return self._outside(work, parameters, loss_kwargs)

    def _forget(self) -> None:
        """Put back what the network remembers of earlier passes, those on public rows included."""
        if self._state is not None:
            self._state.restore()

    def _note(self, reason: str) -> None:
        """Note for every client that is left why a value leaves as it is."""
        note_bare(self._active, reason)

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
        """Every client's sum of per-sample gradients clipped to ``max_grad_norm``, likewise in a buffer.

        In float64 where it was made of several passes: noise is added before it is rounded.
        """

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
    numbers = to_device(torch.tensor(divisors, dtype=total.dtype), total.device)
    return total.div_(numbers.view(-1, *[1] * (total.dim() - 1)))


def _add_noise_(total: Tensor, streams: Sequence[NoiseStream | None], deviations: Sequence[float]) -> None:
    """Add to every client's part of ``total`` noise from the client's own stream, in place."""
    present = [stream for stream in streams if stream is not None]
    assert len(present) == len(deviations)
    add_gaussian_rows_(present, total.view(len(present), -1), deviations)
