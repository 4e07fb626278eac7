"""FedMGDA+: a server step along which no client's loss rises, to first order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.simplex import Vector, minimise_quadratic
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

RIDGE = 1e-10
"""Added to the diagonal of the Gram matrix, so that equal updates leave one solution."""
COLUMNS = 1 << 16
"""Columns of the updates that are turned to float64 at once."""
LENGTH = "direction_norm"


@dataclass(frozen=True)
class FedMGDA(Algorithm):
    """FedMGDA+ (Hu et al., "Federated Learning Meets Multi-Objective Optimization", IEEE TNSE 2022).

    With ĝ_k the normalised updates of the m clients that took part, the server takes ``w ← w + η_g·Σ λ_k·ĝ_k`` with
    ``λ = argmin ½‖Σ λ_k·ĝ_k‖²`` over ``λ ≥ 0, Σ λ = 1, |λ_k − 1/m| ≤ ε``, solved to a KKT residual below 1e-8. At ε = 1
    every client's ĝ_k has an inner product of at least ‖d‖² with the direction d; ε = 0 is the mean of the normalised
    updates. d has norm at most 1, so that η_g carries the length of the step: tune it, and let it fall.

    λ ≥ 0 is kept explicitly: the bounds ±ε alone would allow negative weights from ε > 1/m on. Updates that are zero
    have no direction and take no part, unless ``normalise`` is false. A client drawn twice for a cohort counts once.
    The server needs every single update for their inner products, so secure aggregation cannot hide them, and
    client-level noise is refused; under DP-SGD all of it is post-processing of the noisy gradients.

    Args:
        epsilon: ε in [0, 1]; the papers try 0, 0.05, 0.1, 0.5 and 1.
        server_learning_rate: η_g > 0.
        server_learning_rate_decay: multiplies η_g after every round, in (0, 1].
        normalise: take updates as they are if false: MGDA, and with ε = 0 FedAvg with uniform weights. An update of
            zero then counts too: at ε = 1 the server stays, as nothing else raises nobody's loss.
    """

    name: ClassVar[str] = "fedmgda"
    epsilon: float = 0.1
    server_learning_rate: float = 1.0
    server_learning_rate_decay: float = 1.0
    normalise: bool = True

    def __post_init__(self) -> None:
        check_number("fedmgda's epsilon", self.epsilon, 0, 1)
        check_number("fedmgda's server_learning_rate", self.server_learning_rate, 0, above=True)
        check_number("fedmgda's server_learning_rate_decay", self.server_learning_rate_decay, 0, 1, above=True)

    def fields(self) -> tuple[Field, ...]:
        return (Field("update", combine="each"),)

    def start(self, parameters: Tensor) -> Tensors:
        length = torch.tensor(math.nan, dtype=torch.float64, device=parameters.device)
        return {**super().start(parameters), LENGTH: length}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        products = gram(total["update"])
        lengths = np.sqrt(np.diag(products))
        moved = lengths > 0
        if not moved.any():
            return {**server, LENGTH: torch.zeros_like(server[LENGTH])}
        if not self.normalise:  # zero is an update like any other, and the only common descent beside it
            moved = np.ones_like(moved)
        scale = np.where(moved, lengths, 1.0) if self.normalise else np.ones_like(lengths)
        products = (products / np.outer(scale, scale))[np.ix_(moved, moved)]
        weights = np.zeros(len(lengths))
        weights[moved] = common_descent(products, self.epsilon)
        length = math.sqrt(max(weights[moved] @ products @ weights[moved], 0.0))
        shares = torch.from_numpy(weights / scale).to(total["update"])
        rate = self.server_learning_rate * self.server_learning_rate_decay**round.number
        return {
            **server,
            "parameters": server["parameters"] + rate * (shares @ total["update"]),
            LENGTH: torch.full_like(server[LENGTH], length),
        }

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {LENGTH: float(server[LENGTH])} if bool(server[LENGTH].isfinite()) else {}


def gram(rows: Tensor) -> NDArray[np.float64]:
    """The inner products [m, m] of ``rows`` [m, size], summed in float64, so that no rounding makes one indefinite."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, COLUMNS, 1):
        wide = part.double()
        found += wide @ wide.T
    return found.cpu().numpy()


def common_descent(products: NDArray[np.float64], epsilon: float) -> Vector:
    """``argmin ½ λᵀGλ`` [m] over ``λ ≥ 0, Σ λ = 1, |λ_k − 1/m| ≤ ε``, for the inner ``products`` G [m, m].

    Raises:
        ArithmeticError: G is not finite, or no positive semi-definite matrix.
    """
    clients = len(products)
    uniform = np.full(clients, 1 / clients)
    scale = float(np.diag(products).max())
    lower, upper = max(0.0, 1 / clients - epsilon), min(1.0, 1 / clients + epsilon)
    return minimise_quadratic(products / scale + RIDGE * np.eye(clients), np.zeros(clients), uniform, lower, upper)
