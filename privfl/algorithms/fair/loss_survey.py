"""Surveys of the cohort's losses: what a fair algorithm asks before anybody trains.

A loss report is a release of its own: a function of all of a client's training data at a known model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Round, Survey, Tensors
from privfl.algorithms.fair.online_decisions import CDFS, relative_to
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.loss import Loss

LOSS, REFERENCE = "loss", "reference"
"""Names of the total that a report is made of (for a :class:`privfl.privacy.door.noisy_total.NoisyTotal`), and of F̄."""

Listener = Callable[[Tensors, Tensor, Round], Tensors]
"""``listener(server, total, round)``: the server's state once it knows the losses of the round's members."""


@dataclass(frozen=True)
class LossSurvey(Survey):
    """Every client reports the mean loss [] of its training data at the received model, in evaluation mode.

    Args:
        listener: gets the losses [m] of ``round.members``, or their sum [].
        bound: ℓ_max, at which each example's loss is cut off; if finite, the summed (loss/ℓ_max, 1)/√2 has a norm of at
            most 1 per example.
        combine: ``"each"``: the server needs every loss; ``"sum"``: their sum will do, and can be aggregated securely.
    """

    name: ClassVar[str] = "loss-survey"
    keeps: ClassVar[tuple[str, ...]] = ()
    statistics: ClassVar[tuple[str, ...]] = (LOSS,)
    listener: Listener
    bound: float = math.inf
    combine: Literal["each", "sum"] = "each"

    def fields(self) -> tuple[Field, ...]:
        return (Field(LOSS, combine=self.combine, shape=(), weighted=False),)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {"parameters": received["parameters"], LOSS: received["parameters"].new_zeros(())}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        total = client.total(with_count(client.loss, self.bound), local["parameters"], everything, name=LOSS)
        local[LOSS] = mean_loss(total, self.bound).to(local[LOSS].dtype)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {LOSS: local[LOSS]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return self.listener(server, total[LOSS], round)


@dataclass(frozen=True)
class ResponseSurvey(LossSurvey):
    """Every client reports ρ(F_i/F̄) in [0, 1] with Laplace noise of scale 1/ε, clipped again, and not its loss.

    Guarantee: ε-DP for everything that the client holds, towards the server and the public, in every round anew
    (:class:`~privfl.privacy.channel.field.Field`). It rests on F̄ being public: the server makes it from earlier
    reports.

    Args:
        cdf: ρ.
        epsilon: ε > 0.
    """

    name: ClassVar[str] = "response-survey"
    cdf: str = "normal"
    epsilon: float = 1.0

    def fields(self) -> tuple[Field, ...]:
        return (Field(LOSS, combine="each", shape=(), weighted=False, epsilon=self.epsilon, value_range=(0.0, 1.0)),)

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", REFERENCE)}

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {LOSS: CDFS[self.cdf](relative_to(local[LOSS], received[REFERENCE].to(local[LOSS].dtype)))}


def with_count(loss: Loss, bound: float) -> Loss:
    """A statistic [B, 2]: every example's loss next to a 1 that counts it, scaled to norm ≤ 1 if ``bound`` is finite.

    Their sums divide to the mean loss, and only both together cost one release: a mean whose divisor is the private
    number of examples is not a sum that one example moves by a bounded amount.
    """

    def statistic(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        losses = loss(network, inputs, targets)
        if math.isinf(bound):
            return torch.stack([losses, torch.ones_like(losses)], 1)
        return torch.stack([losses.clamp(-bound, bound) / bound, torch.ones_like(losses)], 1) / math.sqrt(2)

    return statistic


def mean_loss(total: Tensor, bound: float) -> Tensor:
    """The mean loss [] from the sum [2] of :func:`with_count`, which may be noisy: at least one example counts."""
    if math.isinf(bound):
        return total[0] / total[1].clamp_min(1)
    return (bound * total[0] / total[1].clamp_min(1 / math.sqrt(2))).clamp(0, bound)
