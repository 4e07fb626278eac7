"""AAggFF: the server decides aggregation weights online, so that clients with large losses gain weight over time.

Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making", ICML 2024. The
decisions themselves, and what differs from the authors' code, are in :mod:`privfl.algorithms.fair.online_decisions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.loss_survey import REFERENCE, LossSurvey, ResponseSurvey
from privfl.algorithms.fair.online_decisions import (
    decision_gradient,
    entropy_decision,
    entropy_scale,
    lipschitz,
    newton_bound,
    newton_constants,
    newton_step,
    next_reference,
    regret,
    relative_losses,
    respond,
    sampled_lipschitz,
    visit_gain,
)
from privfl.algorithms.server_optimisers import ServerOptimiser
from privfl.errors import ConfigError
from privfl.metrics.fairness import effective_clients
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

Cdf = Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"]
Rule = Literal["sgd", "fedadam", "fedyogi", "fedadagrad"]
FIRST_RATE = "first_learning_rate"


@dataclass(frozen=True)
class FairAggregation(Algorithm):
    """What both forms of AAggFF share; use :class:`AAggFFS` or :class:`AAggFFD`.

    Local training is unchanged, so that any optimiser can be plugged in at either side: ``mu`` > 0 trains clients with
    FedProx's term, ``server_optimiser`` lets the server take the decided mean update as a gradient. The authors' table
    uses μ = 0.001, and for the server optimisers β₁ = 0.9 (0 for FedAdagrad), β₂ = 0.999, τ = 10⁻⁴ and the learning
    rate 0.01; their code forgets the optimiser's moments after every round, this one keeps them.

    A loss report is a release of its own, made before training and in addition to the update: without a noisy total
    for ``loss`` (:class:`privfl.privacy.door.noisy_total.NoisyTotal`) the statement is ∞, DP-SGD or not.

    Args:
        cdf: ρ, which turns relative losses into responses.
        lower: C1 ≥ 0, the least response.
        upper: C2 > C1, the largest response; 0 means the paper's, 1/n for -S and m/n for -D.
        loss_bound: ℓ_max > 0, at which every example's loss is cut off before it is averaged. If finite, a client sums
            (loss/ℓ_max, 1)/√2 per example, whose norm is at most 1: with ``NoisyTotal("loss", 1.0, z)`` nothing is
            clipped, and one release covers the sum and the count that its mean is made of.
        response_epsilon: ε per round of a randomised report: clients send ρ(F_i/F̄) with Laplace noise, and not their
            loss. F̄ is then a public reference that starts at log(classes) and follows the reports
            (:func:`privfl.algorithms.fair.online_decisions.next_reference`); not in the paper.
        mu: μ ≥ 0 of FedProx.
        server_optimiser: ``sgd`` adds the mean update times ``server_learning_rate``.
        server_learning_rate: γ_s > 0.
        beta1: β₁ of the server optimiser.
        beta2: β₂ of the server optimiser.
        tau: τ of the server optimiser.
        rising_server_rate: multiply γ_s by η_0/η_t as the clients' learning rate η_t decays, as the authors' code does
            for every method and the paper does not say.
    """

    cdf: Cdf = "normal"
    lower: float = 0.0
    upper: float = 0.0
    loss_bound: float = math.inf
    response_epsilon: float = math.inf
    mu: float = 0.0
    server_optimiser: Rule = "sgd"
    server_learning_rate: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    tau: float = 1e-4
    rising_server_rate: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.lower < math.inf and (self.upper == 0 or self.lower < self.upper < math.inf)):
            raise ConfigError(
                f"{self.name}'s responses range from {self.lower!r} to {self.upper!r}; give 0 ≤ lower < upper"
            )
        if not self.loss_bound > 0:
            raise ConfigError(f"{self.name}'s loss_bound is {self.loss_bound!r}; give a positive number")
        if not self.response_epsilon > 0:
            raise ConfigError(f"{self.name}'s response_epsilon is {self.response_epsilon!r}; give a positive number")
        check_number(f"{self.name}'s mu", self.mu, 0)
        check_number(f"{self.name}'s server_learning_rate", self.server_learning_rate, 0, above=True)
        self._optimiser()

    def _optimiser(self) -> ServerOptimiser | None:
        if self.server_optimiser == "sgd":
            return None
        return ServerOptimiser(self.server_optimiser, self.server_learning_rate, self.beta1, self.beta2, self.tau)

    def start(self, parameters: Tensor) -> Tensors:
        state, optimiser = super().start(parameters), self._optimiser()
        if self.randomised:
            state[REFERENCE] = torch.tensor(self.context.usual_loss, dtype=torch.float64, device=parameters.device)
        if self.rising_server_rate:
            state[FIRST_RATE] = torch.zeros((), dtype=torch.float64, device=parameters.device)
        return state if optimiser is None else state | optimiser.start(parameters)

    @property
    def randomised(self) -> bool:
        """Whether clients report randomised responses instead of losses."""
        return math.isfinite(self.response_epsilon)

    def survey(self) -> Algorithm | None:
        if self.randomised:
            return ResponseSurvey(self.hear, self.loss_bound, cdf=self.cdf, epsilon=self.response_epsilon)
        return LossSurvey(self.hear, self.loss_bound)

    def hear(self, server: Tensors, reports: Tensor, round: Round) -> Tensors:
        """The server's state after the decision that the ``reports`` [m] of ``round.members`` lead to."""
        return server

    def answers(self, reports: Tensor, lower: float, upper: float) -> Tensor:
        """Responses [m] in [``lower``, ``upper``], float64, of who made ``reports`` [m] of losses or of responses."""
        reports = reports.to(torch.float64)
        if self.randomised:
            return lower + (upper - lower) * reports.clamp(0, 1)
        return respond(relative_losses(reports), self.cdf, lower, upper)

    def refer(self, server: Tensors, reports: Tensor) -> Tensors:
        """The public mean loss of the next round, where clients need one."""
        if not self.randomised:
            return {}
        found = next_reference(server[REFERENCE], reports.to(torch.float64), self.cdf, self.response_epsilon)
        return {REFERENCE: found}

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "server"

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        if self.mu:
            gradient.add_(local["parameters"], alpha=self.mu).sub_(received["parameters"], alpha=self.mu)

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if round.weight == 0:  # only clients without weight answered
            return server
        return self.move(server, total["update"] / round.weight, training)

    def move(self, server: Tensors, update: Tensor, training: LocalTraining) -> Tensors:
        """The server's state after its step along the decided mean ``update`` [size]."""
        before, optimiser = server["parameters"], self._optimiser()
        if optimiser is None:
            after = {**server, "parameters": before + self.server_learning_rate * update}
        else:
            after = optimiser.step(server, update)
        if self.rising_server_rate:
            first = float(server[FIRST_RATE]) or training.learning_rate
            after["parameters"] = before + (first / training.learning_rate) * (after["parameters"] - before)
            after[FIRST_RATE] = torch.full_like(server[FIRST_RATE], first)
        return after


@dataclass(frozen=True)
class AAggFFS(FairAggregation):
    """AAggFF-S (Hahn, Kim and Lee, ICML 2024), for few clients that all take part: the online Newton step on losses.

    Every round all clients report their mean training loss F_i at the received model, the server responds
    ``r_i = C1 + (C2 − C1)·ρ(F_i/F̄)`` and decides ``p`` (:func:`privfl.algorithms.fair.online_decisions.newton_step`),
    and this round's updates are averaged with the p of those that arrive.

    Differs from the paper, besides what :mod:`privfl.algorithms.fair.online_decisions` lists: β is min(½, 1/(4L∞)),
    which its proof covers; a client whose report is missing counts with the mean response, which does not move its
    weight against the average. The server needs every single response, so secure aggregation cannot hide the losses.

    Args:
        paper_constants: β = 1/(4L∞) as in the paper.
        log_regret: keep all decisions and responses, T·n numbers each, and report the regret against the best fixed
            decision with its bound in every round.

    Other arguments: :class:`FairAggregation`.
    """

    name: ClassVar[str] = "aaggff-s"
    paper_constants: bool = False
    log_regret: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """C1 and C2."""
        return self.lower, self.upper or 1 / self.context.clients

    def start(self, parameters: Tensor) -> Tensors:
        clients = self.context.clients
        if self.lower >= self.range[1]:
            raise ConfigError(f"aaggff-s's lower is {self.lower!r}, but upper is 1/{clients}; give a larger upper")
        alpha, _ = newton_constants(clients, *self.range, self.paper_constants)
        zeros = torch.zeros(clients, dtype=torch.float64, device=parameters.device)
        state = {
            "decision": zeros + 1 / clients,
            "curvature": torch.diag(zeros + alpha),
            "linear": zeros,
            "incomplete": torch.zeros((), dtype=torch.int64),
        }
        if self.log_regret:
            state |= {"played": zeros.new_zeros(0, clients), "responses": zeros.new_zeros(0, clients)}
        return super().start(parameters) | state

    def hear(self, server: Tensors, reports: Tensor, round: Round) -> Tensors:
        before = server["decision"]
        clients = len(before)
        answers = self.answers(reports, *self.range)
        responses = answers.mean().expand(clients).clone()
        responses[round.members.to(before.device)] = answers
        _, beta = newton_constants(clients, *self.range, self.paper_constants)
        curvature, linear, decision = newton_step(server["curvature"], server["linear"], before, responses, beta)
        state = {"decision": decision, "curvature": curvature, "linear": linear}
        state["incomplete"] = server["incomplete"] + int(len(reports) < clients)
        if self.log_regret:
            state["played"] = torch.cat([server["played"], before[None]])
            state["responses"] = torch.cat([server["responses"], responses[None]])
        return {**server, **state, **self.refer(server, reports)}

    def server_weights(self, server: Tensors, clients: Tensor) -> Tensor:
        decision = server["decision"].cpu()[clients]
        total = decision.sum()
        return decision / total if float(total) > 0 else torch.ones_like(decision) / len(clients)

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        found = _spread(server["decision"])
        if self.log_regret and len(server["played"]):
            rounds, clients = server["played"].shape
            found["regret"] = regret(server["played"], server["responses"])
            found["regret_bound"] = newton_bound(clients, rounds, *self.range, self.paper_constants)
        return found

    def warnings(self, server: Tensors) -> list[str]:
        incomplete = int(server["incomplete"])
        if not incomplete:
            return []
        return [
            f"aaggff-s is for cohorts of everybody, but in {incomplete} rounds reports were missing and counted with "
            "the mean response; use aaggff-d for sampled cohorts"
        ]


@dataclass(frozen=True)
class AAggFFD(FairAggregation):
    """AAggFF-D (Hahn, Kim and Lee, ICML 2024), for many clients of which some take part: exponentiated gradients.

    Responses are made doubly robust. The server keeps one accumulator u_i per client,
    ``u_i ← u_i + (r_i − r̄)/(q(1 + r̄))`` for the m clients that report, q = m/n, and weighs this round's updates with
    ``softmax(s·u)`` over them, ``s = √(log n)/(L̃∞·√(t + 1))``. That is exactly the paper's decision (AAggFF (16) in
    ``docs/reference/equations.md``). When everybody reports, the accumulators take the exact gradient instead (Theorem
    2). Weights move slowly: ``|u_i|`` grows by at most 1 a visit.

    The server sees every loss; :class:`privfl.algorithms.fair.aaggff_sums.AAggFFDSums` is the form that needs only
    sums.
    Arguments: :class:`FairAggregation`.
    """

    name: ClassVar[str] = "aaggff-d"

    def start(self, parameters: Tensor) -> Tensors:
        zeros = torch.zeros(self.context.clients, dtype=torch.float64, device=parameters.device)
        return super().start(parameters) | {
            "accumulators": zeros,
            "decided": zeros.new_zeros((), dtype=torch.int64),
            "scale": zeros.new_zeros(()),
        }

    def hear(self, server: Tensors, reports: Tensor, round: Round) -> Tensors:
        accumulators, decided = server["accumulators"].clone(), server["decided"] + 1
        clients, members = len(accumulators), round.members.to(accumulators.device)
        rate = len(reports) / clients
        upper = self.upper or rate
        answers = self.answers(reports, self.lower, upper)
        if len(reports) == clients:
            bound = lipschitz(self.lower, upper)
            before = entropy_decision(accumulators, entropy_scale(clients, server["decided"], bound))
            accumulators -= decision_gradient(before, answers)  # members are all clients in order
        else:
            bound = sampled_lipschitz(self.lower, upper, rate)
            accumulators[members] += visit_gain(answers, answers.mean(), rate)
        state = {"accumulators": accumulators, "decided": decided, "scale": entropy_scale(clients, decided, bound)}
        return {**server, **state, **self.refer(server, reports)}

    def server_weights(self, server: Tensors, clients: Tensor) -> Tensor:
        return entropy_decision(server["accumulators"].cpu()[clients], server["scale"].cpu())

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return _spread(entropy_decision(server["accumulators"], server["scale"]))


def _spread(decision: Tensor) -> dict[str, float]:
    """How unequal the decision [n] is: the number of clients that count, and the largest weight times n, 1 if equal."""
    return {
        "effective_clients": effective_clients(decision.cpu().numpy()),
        "largest_weight": float(decision.max()) * len(decision),
    }
