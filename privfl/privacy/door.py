"""The door: the one handle through which training sees a client's data, and the log of everything that passed it.

With nothing on, a value passes and the door notes why the upload that follows is unprotected. With DP-SGD on,
``gradient`` clips, adds noise, divides by a public number and notes the event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from dp_accounting import DpEvent
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.parameters import FlatNetwork
from privfl.privacy.dpsgd import DPSGD
from privfl.privacy.noise import NoiseStream
from privfl.privacy.per_sample import PerSampleGradients

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
ROWS_AT_ONCE = 512
"""Rows of one forward pass; larger batches are summed in pieces, so memory does not grow with a client's size."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in one round: plain SGD over shuffled batches, or Poisson batches under DP-SGD.

    Under DP-SGD ``batch_size`` is the public divisor of every gradient and a round has ``steps``, or ⌈epochs / rate⌉.
    """

    learning_rate: float = 0.05
    batch_size: int = 20
    epochs: int = 1
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        positive = {"learning_rate": self.learning_rate, "batch_size": self.batch_size, "epochs": self.epochs}
        for name, value in {**positive, **({} if self.steps is None else {"steps": self.steps})}.items():
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"training.{name} is {value!r}; give a positive number")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"training.momentum is {self.momentum!r}; give a number in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"training.weight_decay is {self.weight_decay!r}; give a number ≥ 0")

    def steps_at(self, rate: float) -> int:
        """Steps of one round under Poisson batches of public ``rate``: ``steps``, or as many as ``epochs`` take."""
        return self.steps or math.ceil(self.epochs / rate - 1e-9)


@dataclass(frozen=True)
class Poisson:
    """A plan of ``steps`` batches that hold each sample independently with the public ``rate``.

    ``divisor`` is the public number that a sum of gradients is divided by; ``None`` divides by the rows of the batch,
    which only a run without DP-SGD may do.
    """

    rate: float
    steps: int = 1
    divisor: float | None = None


@dataclass(frozen=True)
class Epochs:
    """A plan of ``epochs`` passes over shuffled data in batches of ``batch_size``; ``steps`` cuts or extends it."""

    batch_size: int
    epochs: int
    steps: int | None = None


Plan = Epochs | Poisson


def private_plan(training: LocalTraining, dpsgd: DPSGD | None, client: int) -> Plan:
    """How ``client`` draws its batches: shuffled epochs, or with DP-SGD Poisson batches of the public rate."""
    if dpsgd is None:
        return Epochs(training.batch_size, training.epochs, training.steps)
    rate = dpsgd.rate(client)
    return Poisson(rate, training.steps_at(rate), float(training.batch_size))


@dataclass(frozen=True)
class Batch:
    """One batch: ``inputs`` [B, ...] and ``targets`` [B] of rows ``rows`` [B], with the plan that drew it."""

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    plan: Plan

    def pieces(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and targets in pieces of at most ``ROWS_AT_ONCE`` rows."""
        return _split(self.inputs), _split(self.targets)


@dataclass
class DoorLog:
    """What passed one client's door in one round."""

    noisy: Counter[DpEvent] = field(default_factory=Counter)
    """Gradients that left with noise: event → count."""
    clipped: Counter[float] = field(default_factory=Counter)
    """Gradients that left clipped, to be noised on the sum: sampling rate → count."""
    bare: dict[str, None] = field(default_factory=dict)
    """Why a value left as it is, in one sentence each."""


class Door:
    """One client's data during one round. Everything that an algorithm learns about the data, it learns here."""

    def __init__(
        self,
        client: int,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        network: FlatNetwork,
        clipper: PerSampleGradients | None,
        loss: Loss,
        dpsgd: DPSGD | None,
        shuffle: torch.Generator,
        noise: NoiseStream | None,
    ) -> None:
        self.client, self.loss = client, loss
        self.log = DoorLog()
        self._rows, self._inputs, self._targets = rows, inputs, targets
        self._network, self._clipper, self._dpsgd = network, clipper, dpsgd
        self._shuffle, self._noise = shuffle, noise

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """The batches of one round, drawn as ``plan`` says."""
        for rows in self._poisson_rows(plan) if isinstance(plan, Poisson) else self._shuffled_rows(plan):
            yield Batch(rows, self._inputs[rows], self._targets[rows], plan)

    def gradient(self, loss: Loss, parameters: Tensor, batch: Batch) -> Tensor:
        """Gradient [size] of the mean (or, by the plan's divisor, scaled sum) of ``loss`` over ``batch``.

        The result is the workspace's own buffer: it may be changed in place and is overwritten by the next call.
        Without DP-SGD an empty batch gives zero. With DP-SGD the batch must come from a Poisson plan with a divisor.

        Raises:
            ConfigError: DP-SGD is on, but the batch does not come from a Poisson plan with a public divisor.
        """
        network = self._network
        if parameters is not network.flat:
            network.load(parameters)
        if self._dpsgd is None:
            return self._bare_gradient(network, loss, batch)
        return self._private_gradient(network, loss, batch, self._dpsgd)

    def size(self) -> int:
        """The client's exact number of samples, noted as unprotected."""
        self.log.bare["the exact number of the client's samples is sent"] = None
        return len(self._rows)

    def _bare_gradient(self, network: FlatNetwork, loss: Loss, batch: Batch) -> Tensor:
        self.log.bare["gradients are computed without a mechanism (no DP-SGD)"] = None
        rows = len(batch.rows)
        divisor = batch.plan.divisor if isinstance(batch.plan, Poisson) and batch.plan.divisor else max(rows, 1)
        if rows <= ROWS_AT_ONCE and rows > 0:
            _gradient_into(network.gradient, network, loss, batch.inputs, batch.targets, divisor)
            return network.gradient
        total = torch.zeros_like(network.gradient)
        for inputs, targets in zip(*batch.pieces(), strict=True):
            _gradient_into(network.gradient, network, loss, inputs, targets, divisor)
            total += network.gradient
        return network.gradient.copy_(total)

    def _private_gradient(self, network: FlatNetwork, loss: Loss, batch: Batch, dpsgd: DPSGD) -> Tensor:
        plan, private = batch.plan, self._clipper
        if not isinstance(plan, Poisson) or plan.divisor is None or private is None:
            raise ConfigError(
                "DP-SGD needs Poisson batches with a public divisor; let the algorithm keep the plan it is given"
            )
        gradient = network.gradient
        if len(batch.rows) <= ROWS_AT_ONCE:
            private.clipped_sum(loss, batch.inputs, batch.targets, dpsgd.max_grad_norm)
        else:
            total = torch.zeros_like(gradient)
            for inputs, targets in zip(*batch.pieces(), strict=True):
                private.clipped_sum(loss, inputs, targets, dpsgd.max_grad_norm)
                total += gradient
            gradient.copy_(total)
        if dpsgd.noise_at == "server":
            self.log.clipped[plan.rate] += 1
        else:
            multiplier = dpsgd.noise(self.client)
            assert self._noise is not None
            self._noise.add_gaussian_(gradient, multiplier * dpsgd.max_grad_norm)
            if multiplier > 0:
                self.log.noisy[dpsgd.event(multiplier, plan.rate)] += 1
            else:
                self.log.bare["gradients are clipped but the noise multiplier is 0"] = None
        return gradient.div_(plan.divisor)

    def _poisson_rows(self, plan: Poisson) -> Iterator[Tensor]:
        for _ in range(plan.steps):
            if self._noise is not None:  # the coins of a claimed amplification are as secret as the noise
                chosen = torch.from_numpy(self._noise.poisson_sample(len(self._rows), plan.rate))
            else:
                coins = torch.rand(len(self._rows), generator=self._shuffle, dtype=torch.float64)
                chosen = (coins < plan.rate).nonzero().flatten()
            yield self._rows[chosen.to(self._rows.device)]

    def _shuffled_rows(self, plan: Epochs) -> Iterator[Tensor]:
        size = len(self._rows)
        per_epoch = math.ceil(size / plan.batch_size)
        steps = plan.epochs * per_epoch if plan.steps is None else plan.steps
        for step in range(steps):
            place = step % per_epoch
            if place == 0:
                order = self._rows[torch.randperm(size, generator=self._shuffle).to(self._rows.device)]
            yield order[place * plan.batch_size : (place + 1) * plan.batch_size]


def _split(values: Tensor) -> tuple[Tensor, ...]:
    return tuple(values[start : start + ROWS_AT_ONCE] for start in range(0, len(values), ROWS_AT_ONCE))


def _gradient_into(
    place: Tensor, network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float
) -> None:
    with torch.enable_grad():
        total = loss(network.module, inputs, targets).sum() / divisor
    torch.cat([gradient.reshape(-1) for gradient in network.gradient_of(total)], out=place)
