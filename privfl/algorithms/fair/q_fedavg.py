"""q-FedAvg: the larger a client's loss, the more it counts, by a power q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.base import Weighting
from privfl.algorithms.fair.loss_shares import LossShares
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

SMALLEST_LOSS = 1e-10
"""Losses count as at least this much, as in the authors' code, so that every power of them exists."""


@dataclass(frozen=True)
class QFedAvg(LossShares):
    """q-FedAvg (Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020), for Σ p_k F_k^{q+1}/(q + 1).

    With F_k the loss at the received model, Δ_k the client's update and L = 1/η for its learning rate η of the round::

        w ← w + η_g·Σ F_k^q·L·Δ_k / Σ h_k,    h_k = q·F_k^{q−1}·‖L·Δ_k‖² + L·F_k^q

    which are two sums: a client sends ``a_k·Δ_k`` and ``h_k/L``, both in units of the public level of
    :class:`privfl.algorithms.fair.loss_shares.LossShares`, so that nothing overflows where F_k^q would. The weights of
    the Δ_k sum to at most 1: to 1 at q = 0, which is FedAvg, and the longer the updates, the less. One full-batch step
    makes it q-FedSGD.

    Differs from the paper: losses below 1e-10 count as 1e-10 (the authors' code adds it). The paper samples clients
    with probability p_k = n_k/n and does not weigh the sums: take :class:`privfl.federation.cohorts.SizeWeightedCohort`
    for it. ``weighting="size"`` is for cohorts that are drawn otherwise.

    Args:
        q: q ≥ 0; the paper has 0.001 to 15, by data set.

    Other arguments: :class:`privfl.algorithms.fair.loss_shares.LossShares`.
    """

    name: ClassVar[str] = "q-fedavg"
    usual_weighting: ClassVar[Weighting] = "uniform"
    q: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("q-fedavg's q", self.q, 0)

    def log_share(self, loss: Tensor) -> Tensor:
        return self.q * loss.clamp_min(SMALLEST_LOSS).log()

    def normaliser(self, share: Tensor, loss: Tensor, update: Tensor, training: LocalTraining) -> Tensor:
        """h_k/L = a_k·(1 + q·‖Δ_k‖²/(η·F_k))."""
        length = update.square().sum().double()
        return share * (1 + self.q * length / (training.learning_rate * loss.clamp_min(SMALLEST_LOSS)))
