"""FedProx: FedAvg whose clients are pulled back to the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.validation import check_number


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020): local objective ``F_k(v) + (μ/2)·‖v − w‖²``.

    The proximal gradient μ(v − w) does not depend on data, so it is added after clipping and noise. μ = 0 is FedAvg.

    Args:
        mu: μ ≥ 0; the papers use 0.001 to 1.
    """

    name: ClassVar[str] = "fedprox"
    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("fedprox's mu", self.mu, 0)

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        gradient.add_(local["parameters"], alpha=self.mu).sub_(received["parameters"], alpha=self.mu)
