"""FedAvg: clients train, the server averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al., AISTATS 2017): ``w ← w + η_g·Σ_S a_k Δ_k``.

    Args:
        weighting: by default the experiment's, and ``"size"`` where it has none. ``"size"``: a_k = n_k / Σ_S n, the
            usual implementation (with a size mechanism n_k is the client's response; without one the exact size is
            sent). ``"uniform"``: a_k = 1/m; with cohorts drawn in proportion to
            size this is scheme I of Li et al., ICLR 2020. ``"scheme-2"``: a_k = (n_k/n)·(N/m), scheme II of Li et al.,
            whose weights need not sum to 1.
        server_learning_rate: η_g > 0.
    """

    name: ClassVar[str] = "fedavg"
    counts_by: ClassVar[str] = "weighting"
    weighting: Literal["size", "uniform", "scheme-2"] | None = None
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_number(f"{self.name}'s server_learning_rate", self.server_learning_rate, 0, above=True)

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "uniform" if self.weighs == "uniform" else "size"

    def asks_sizes(self) -> bool:
        return self.weighting == "scheme-2"

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if self.weighting == "scheme-2":
            assert round.samples is not None
            normaliser = round.samples * round.cohort / round.clients
        else:
            normaliser = round.weight
        if normaliser == 0:  # everybody answered with size 0
            return server
        step = total["update"] * (self.server_learning_rate / normaliser)
        return {**server, "parameters": server["parameters"] + step}
