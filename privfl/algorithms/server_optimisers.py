"""FedAdagrad, FedAdam and FedYogi: the server treats the mean update as a gradient and adapts its step to it.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. The moments stay at the server from round to
round, which some reference code forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

MOMENT, SPREAD = "server_first_moment", "server_second_moment"
"""Where the server keeps m and v [size]."""


def _adagrad(spread: Tensor, square: Tensor, decay: float) -> Tensor:
    return spread + square


def _adam(spread: Tensor, square: Tensor, decay: float) -> Tensor:
    return decay * spread + (1 - decay) * square


def _yogi(spread: Tensor, square: Tensor, decay: float) -> Tensor:
    return spread - (1 - decay) * square * torch.sign(spread - square)


RULES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = MappingProxyType(
    {"fedadagrad": _adagrad, "fedadam": _adam, "fedyogi": _yogi}
)
"""The next v from v, the squared update and β₂; v stays ≥ 0 under all three."""


@dataclass(frozen=True)
class ServerOptimiser:
    """One rule with its constants.

    ``m ← β₁m + (1 − β₁)Δ``, ``v ←`` its rule, ``w ← w + η_g·m/(√v + τ)``; no correction of the bias, as in the paper
    (the authors' released FedAdam is Keras' Adam, which has one).

    Args:
        rule: a key of :data:`RULES`.
        learning_rate: η_g > 0.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1); FedAdagrad has none.
        tau: τ > 0, the least denominator.
        start_at_zero: v starts at 0, as in the paper's experiments, instead of τ², as in its theory.
    """

    rule: str
    learning_rate: float
    beta1: float
    beta2: float
    tau: float
    start_at_zero: bool = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"the server optimiser is '{self.rule}'; choose {', '.join(sorted(RULES))}")
        for name in ("learning_rate", "tau"):
            check_number(f"{self.rule}'s {name}", getattr(self, name), 0, above=True)
        for name in ("beta1", "beta2"):
            check_number(f"{self.rule}'s {name}", getattr(self, name), 0, 1, below=True)

    def start(self, parameters: Tensor) -> Tensors:
        """The moments before round 0, for ``parameters`` [size]."""
        spread = 0.0 if self.start_at_zero else self.tau**2
        return {MOMENT: torch.zeros_like(parameters), SPREAD: torch.full_like(parameters, spread)}

    def step(self, server: Tensors, update: Tensor) -> Tensors:
        """The server's state after one step along the mean ``update`` [size], with its moments."""
        moment = self.beta1 * server[MOMENT] + (1 - self.beta1) * update
        spread = RULES[self.rule](server[SPREAD], update.square(), self.beta2)
        moved = server["parameters"] + self.learning_rate * moment / (spread.sqrt() + self.tau)
        return {**server, "parameters": moved, MOMENT: moment, SPREAD: spread}


@dataclass(frozen=True)
class AdaptiveServer(Algorithm):
    """FedAvg's clients with an adaptive server; :class:`FedAdam`, :class:`FedYogi` and :class:`FedAdagrad` use it.

    Differs from the authors' released code, whose FedAdam is Keras' and corrects the bias; the paper's does not. v
    starts at τ², as in the paper's theory, and in its experiments at 0 (``start_at_zero``).

    Args:
        weighting: by default the experiment's, and ``"size"`` where it has none. ``"size"``: Δ is the mean update
            weighted by size, as in the paper's experiments; ``"uniform"``: the plain mean, as in its algorithm.
        server_learning_rate: η_g > 0. The paper tunes it on a grid from 10⁻³ to 1.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        tau: τ > 0; the paper recommends 10⁻³.
        start_at_zero: v starts at 0 instead of τ².
    """

    counts_by: ClassVar[str] = "weighting"
    weighting: Literal["size", "uniform"] | None = None
    server_learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    start_at_zero: bool = False

    def __post_init__(self) -> None:
        self.optimiser()

    def optimiser(self) -> ServerOptimiser:
        """The rule with these constants."""
        return ServerOptimiser(
            self.name, self.server_learning_rate, self.beta1, self.beta2, self.tau, self.start_at_zero
        )

    def weights(self) -> Literal["uniform", "size"]:
        return "uniform" if self.weighs == "uniform" else "size"

    def start(self, parameters: Tensor) -> Tensors:
        return super().start(parameters) | self.optimiser().start(parameters)

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if round.weight == 0:  # everybody answered with size 0
            return server
        return self.optimiser().step(server, total["update"] / round.weight)


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """FedAdam (Reddi et al., ICLR 2021): ``v ← β₂v + (1 − β₂)Δ²``.

    Arguments as for :class:`AdaptiveServer`.
    """

    name: ClassVar[str] = "fedadam"


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """FedYogi (Reddi et al., ICLR 2021): ``v ← v − (1 − β₂)Δ²·sign(v − Δ²)``.

    Arguments as for :class:`AdaptiveServer`.
    """

    name: ClassVar[str] = "fedyogi"


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """FedAdagrad (Reddi et al., ICLR 2021): ``v ← v + Δ²``, β₁ = 0.

    Arguments as for :class:`AdaptiveServer`; ``beta2`` has no effect.
    """

    name: ClassVar[str] = "fedadagrad"
    beta1: float = 0.0
