"""AAggFF-D from sums alone: no server learns a client's loss or weight if the sums are aggregated securely.

By the exact simplification (16) of AAggFF in ``docs/reference/equations.md`` only the accumulators of the clients that
report change, so each client can keep its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Survey, Tensors
from privfl.algorithms.fair.aaggff import FairAggregation
from privfl.algorithms.fair.loss_survey import LOSS, LossSurvey
from privfl.algorithms.fair.online_decisions import entropy_scale, relative_to, respond, sampled_lipschitz, visit_gain
from privfl.errors import ConfigError
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining

RESPONSE, ACCUMULATOR, SHARE = "response", "accumulator", "share"
LARGEST_EXPONENT = 30.0
"""Clients clip the exponent of their share to ± this, so that a sum of shares neither overflows nor loses anybody."""


@dataclass(frozen=True)
class AAggFFDSums(FairAggregation):
    """AAggFF-D in which the server sees sums only: of losses, of responses, and of updates times shares.

    A round has three phases: the losses are summed and F̄ is broadcast; clients form ``r_i`` and the responses are
    summed, r̄ is broadcast; each client moves its own accumulator u_i, trains, and sends ``a_i·Δ_i`` and
    ``a_i = exp(s·u_i)``, whose sums the server divides. Weights and losses stay with the clients.

    The result is that of :class:`AAggFFD` but for rounding, unless a client is lost between survey and update (its
    accumulator then stays where it was) or an exponent exceeds ±30. Where everybody reports it is the sampled rule at
    rate 1: the exact gradient would need the single responses. Clients are stateful.

    Args:
        minimum: the least number m ≥ 3 of reports for which sums are used; with fewer the round moves no accumulator.
            F̄ and r̄ are broadcast, and with m = 2 each tells a participant the other's value.

    Other arguments: :class:`FairAggregation`.
    """

    name: ClassVar[str] = "aaggff-d-sums"
    keeps: ClassVar[tuple[str, ...]] = (ACCUMULATOR,)
    minimum: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.randomised:
            raise ConfigError(
                "aaggff-d-sums weighs updates at the client by the exact response, so noise on what is reported "
                "protects nothing; leave response_epsilon out, or use aaggff-d"
            )
        if not (isinstance(self.minimum, int) and self.minimum >= 3):
            raise ConfigError(
                f"aaggff-d-sums' minimum is {self.minimum!r}, but a mean of two tells each the other's; give 3 or more"
            )

    def fields(self) -> tuple[Field, ...]:
        return (Field("update", weighted=False), Field(SHARE, shape=(), weighted=False))

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "uniform"

    def survey(self) -> Algorithm | None:
        return ResponseSumSurvey(self)

    def start(self, parameters: Tensor) -> Tensors:
        number = parameters.new_zeros((), dtype=torch.float64)
        names = ("decided", "mean_loss", "mean_response", "rate", "scale", "counted")
        return super().start(parameters) | {name: number.clone() for name in names}

    def hear_losses(self, server: Tensors, total: Tensor, round: Round) -> Tensors:
        """F̄ from the sum [] of the losses, or 0 where too few reported to publish it."""
        reports = len(round.members)
        enough = reports >= self.minimum
        mean = total.to(torch.float64) / reports if enough else torch.zeros_like(server["mean_loss"])
        rate = torch.full_like(mean, reports / round.clients)
        return {**server, "mean_loss": mean, "rate": rate, "counted": torch.full_like(mean, float(enough))}

    def hear_responses(self, server: Tensors, total: Tensor, round: Round) -> Tensors:
        """r̄ from the sum [] of the responses, and s for the decision that they lead to."""
        reports = len(round.members)
        if reports < self.minimum or not bool(server["counted"]):
            return {
                **server,
                "mean_response": torch.zeros_like(server["rate"]),
                "counted": torch.zeros_like(server["rate"]),
            }
        rate = float(server["rate"])
        decided = server["decided"] + 1
        scale = entropy_scale(round.clients, decided, sampled_lipschitz(self.lower, self.upper or rate, rate))
        return {**server, "mean_response": total.to(torch.float64) / reports, "decided": decided, "scale": scale}

    def broadcast(self, server: Tensors) -> Tensors:
        names = ("parameters", "mean_response", "rate", "scale", "counted")
        return {name: server[name] for name in names}

    def initial_client_state(self, client: int) -> Tensors:
        nothing = torch.zeros((), dtype=torch.float64, device=self.context.device)
        return {name: nothing.clone() for name in (ACCUMULATOR, LOSS, RESPONSE)}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        gain = visit_gain(client_state[RESPONSE].to(torch.float64), received["mean_response"], received["rate"])
        accumulator = client_state[ACCUMULATOR] + torch.where(received["counted"] > 0, gain, torch.zeros_like(gain))
        exponent = (received["scale"] * accumulator).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
        share = torch.exp(exponent).to(received["parameters"].dtype)
        return super().begin(received, client_state, training) | {ACCUMULATOR: accumulator, SHARE: share}

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": local[SHARE] * super().finish(local, received, training)["update"], SHARE: local[SHARE]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return self.move(server, total["update"] / total[SHARE], training)

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {"mean_loss": float(server["mean_loss"]), "mean_response": float(server["mean_response"])}


@dataclass(frozen=True)
class LossSumSurvey(LossSurvey):
    """A :class:`LossSurvey` whose clients remember what they reported."""

    name: ClassVar[str] = "loss-sum-survey"
    keeps: ClassVar[tuple[str, ...]] = (LOSS,)


@dataclass(frozen=True)
class ResponseSumSurvey(Survey):
    """The second survey of :class:`AAggFFDSums`: clients respond to the F̄ that the first one gave.

    It looks at no data: a response is computed from the loss that the client has just reported.
    """

    name: ClassVar[str] = "response-sum-survey"
    keeps: ClassVar[tuple[str, ...]] = (RESPONSE,)
    fair: AAggFFDSums

    def survey(self) -> Algorithm | None:
        return LossSumSurvey(self.fair.hear_losses, self.fair.loss_bound, "sum")

    def fields(self) -> tuple[Field, ...]:
        return (Field(RESPONSE, shape=(), weighted=False),)

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", "mean_loss", "rate")}

    def initial_client_state(self, client: int) -> Tensors:
        return self.fair.initial_client_state(client)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        relative = relative_to(client_state[LOSS].to(torch.float64), received["mean_loss"])
        upper = received["rate"] if self.fair.upper == 0 else torch.full_like(relative, self.fair.upper)
        response = self.fair.lower + (upper - self.fair.lower) * respond(relative, self.fair.cdf, 0.0, 1.0)
        return {"parameters": received["parameters"], RESPONSE: response}

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {RESPONSE: local[RESPONSE]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return self.fair.hear_responses(server, total[RESPONSE], round)
