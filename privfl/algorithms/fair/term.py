"""TERM: tilted empirical risk, which weighs clients by the exponential of their losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.loss_shares import LossShares, check_loss_bound
from privfl.algorithms.fair.loss_survey import LossSurvey
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

SHARES, RUNNING = "shares", "running_mean"


@dataclass(frozen=True)
class TERM(LossShares):
    """TERM (Li et al., "Tilted Empirical Risk Minimization", ICLR 2021), for ``(1/t)·log Σ p_k·e^{t·F_k}``.

    The server averages updates with weights ``∝ p_k·e^{t·F_k}``, F_k the loss at the received model; with one
    full-batch step each that is a gradient step on the objective. t → 0 is FedAvg, t → ∞ attends to the largest loss
    alone, t → −∞ to the smallest.

    The weights sum to 1 exactly, from two sums in units of the public level of
    :class:`privfl.algorithms.fair.loss_shares.LossShares`, which is here t times the objective of the last round:
    exponents t·F_k further above it than ``reach`` count as that far. Differs from the authors' code, which is
    :class:`RunningTERM`.

    Args:
        weighting: ``"size"``: p_k = n_k/n; ``"uniform"``: p_k = 1/m.
        t: the tilt, any finite number. The authors' federated run has 0.1, other code 0.01.

    Other arguments: :class:`privfl.algorithms.fair.loss_shares.LossShares`.
    """

    name: ClassVar[str] = "term"
    t: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("term's t", self.t, -math.inf)

    def log_share(self, loss: Tensor) -> Tensor:
        return self.t * loss


@dataclass(frozen=True)
class RunningTERM(Algorithm):
    """TERM as its authors' code has it: weights are normalised by a running mean, and divided by m once more.

    With ``e_k = e^{t·F_k − max t·F}`` over the m clients of a round (each as often as it was drawn) and
    ``ē ← ē/2 + mean(e)/2`` from ē = 0, the step is ``(1/m²)·Σ e_k·Δ_k / ē``. The weights sum to about 1/m (2/m in the
    first round): larger cohorts take smaller steps, unless ``server_learning_rate`` makes up for it. All clients have
    the same p_k. The server needs every client's loss in a survey before training; DP-SGD needs a noisy total for
    ``loss`` beside it, or the statement is ∞.

    Args:
        t: the tilt, any finite number.
        server_learning_rate: η_g > 0.
        loss_bound: as for :class:`privfl.algorithms.fair.loss_shares.LossShares`.
    """

    name: ClassVar[str] = "term-running"
    t: float = 0.1
    server_learning_rate: float = 1.0
    loss_bound: float = math.inf

    def __post_init__(self) -> None:
        check_number("term-running's t", self.t, -math.inf)
        check_number("term-running's server_learning_rate", self.server_learning_rate, 0, above=True)
        check_loss_bound(self.name, self.loss_bound)

    def survey(self) -> Algorithm | None:
        return LossSurvey(self.hear, self.loss_bound)

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "server"

    def start(self, parameters: Tensor) -> Tensors:
        none = torch.zeros((), dtype=torch.float64, device=parameters.device)
        return {**super().start(parameters), SHARES: none.repeat(self.context.clients), RUNNING: none}

    def hear(self, server: Tensors, losses: Tensor, round: Round) -> Tensors:
        """The weights of this round's members, from their ``losses`` [m], and the running mean that divides them."""
        tilted = self.t * losses.double()
        shares = (tilted - tilted.max()).exp()
        times = round.weights.to(shares.device)
        running = server[RUNNING] / 2 + (times @ shares) / times.sum() / 2
        weights = torch.zeros_like(server[SHARES])
        weights[round.members.to(weights.device)] = shares / (running * times.sum() ** 2)
        return {**server, SHARES: weights, RUNNING: running}

    def server_weights(self, server: Tensors, clients: Tensor) -> Tensor:
        return server[SHARES].cpu()[clients]

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        step = self.server_learning_rate * total["update"]
        return {**server, "parameters": server["parameters"] + step}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {RUNNING: float(server[RUNNING])}
