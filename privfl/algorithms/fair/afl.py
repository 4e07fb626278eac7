"""AFL: agnostic federated learning, which trains for the worst mixture of its clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.loss_shares import check_loss_bound
from privfl.algorithms.fair.loss_survey import LossSurvey
from privfl.algorithms.fair.simplex import project
from privfl.metrics.fairness import effective_clients
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

MIXTURE, MEAN, AVERAGED = "mixture", "mean_parameters", "averaged"


@dataclass(frozen=True)
class AFL(Algorithm):
    """AFL (Mohri et al., "Agnostic Federated Learning", ICML 2019): ``min_w max_λ Σ λ_k·F_k(w)``, λ on the simplex.

    Every round the clients report their losses F_k at the received model, the server takes a step ``λ ← Π(λ + γ·F)``
    with the Euclidean projection Π, and averages the updates with λ. With one full-batch step each and everybody there
    these are the paper's stochastic steps, its two halves in the other order. λ = 1/K at first, and always if γ = 0.

    Differs from the paper, which is for full participation: a client that does not report counts with the mean loss of
    those that do, which moves its λ against their average by nothing, and λ is renormalised over those whose updates
    arrive (uniform if it is 0 for all that were asked; no step if only updates of λ = 0 arrive). The server needs
    every client's loss, so secure aggregation cannot hide them. A loss is a release of its own: DP-SGD needs a noisy
    total for ``loss`` beside it (:class:`privfl.privacy.door.noisy_total.NoisyTotal`), or the statement is ∞.

    Args:
        step_size: γ ≥ 0 of λ.
        average_iterates: test the mean of the models after every round, as in the paper's theorem, and not the last.
        loss_bound: at which each example's loss is cut off before it is averaged; if finite, the summed
            (loss/bound, 1)/√2 has a norm of at most 1 per example.
    """

    name: ClassVar[str] = "afl"
    step_size: float = 0.1
    average_iterates: bool = False
    loss_bound: float = math.inf

    def __post_init__(self) -> None:
        check_number("afl's step_size", self.step_size, 0)
        check_loss_bound(self.name, self.loss_bound)

    def survey(self) -> Algorithm | None:
        return LossSurvey(self.hear, self.loss_bound)

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "server"

    def start(self, parameters: Tensor) -> Tensors:
        clients = self.context.clients
        mixture = torch.full((clients,), 1 / clients, dtype=torch.float64, device=parameters.device)
        server = {**super().start(parameters), MIXTURE: mixture}
        if not self.average_iterates:
            return server
        return {**server, MEAN: parameters.clone(), AVERAGED: mixture.new_zeros(())}

    def hear(self, server: Tensors, losses: Tensor, round: Round) -> Tensors:
        """The server's state after the step of λ on the ``losses`` [m] of ``round.members``."""
        before = server[MIXTURE]
        everybody = losses.double().mean().expand(len(before)).clone()
        everybody[round.members.to(before.device)] = losses.double()
        after = project((before + self.step_size * everybody).cpu().numpy())
        return {**server, MIXTURE: torch.from_numpy(after).to(before.device)}

    def server_weights(self, server: Tensors, clients: Tensor) -> Tensor:
        mixture = server[MIXTURE].cpu()[clients]
        return mixture if float(mixture.sum()) > 0 else torch.ones_like(mixture)

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        after = super().aggregate(server, total, round, training)
        if not self.average_iterates:
            return after
        count = server[AVERAGED] + 1
        mean = server[MEAN] + (after["parameters"] - server[MEAN]) / float(count)
        return {**after, MEAN: mean, AVERAGED: count}

    def eval_parameters(self, server: Tensors) -> Tensor:
        return server[MEAN] if self.average_iterates else server["parameters"]

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        mixture = server[MIXTURE]
        spread = {"effective_clients": effective_clients(mixture.cpu().numpy())}
        return {**spread, "largest_weight": float(mixture.max()) * len(mixture)}
