"""pFedMe: clients train personal models near the federated one, which follows the Moreau envelopes of their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_count, check_number


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """pFedMe (Dinh, Tran and Nguyen, NeurIPS 2020), Algorithm 1.

    A local round is one batch of the training settings. From v (the received model at first) the client takes
    ``personal_steps`` steps ``θ ← θ − η_p·(g(θ) + λ·(θ − v))`` on that batch, towards
    ``argmin_θ F_k(θ) + (λ/2)·‖θ − v‖²``; then ``v ← v − η·λ·(v − θ)``, a step along the gradient of the Moreau envelope
    of F_k, on which momentum and weight decay of the training settings act too. The server averages:
    ``w ← (1 − β)·w + β·Σ a_k v_k``, where β is ``server_learning_rate``. Without momentum and weight decay λ = 0 leaves
    v where it was, and η·λ = 1 sets it to θ.

    The client's own model is its last θ. It is computed from the very gradients that shape the upload, so they all pass
    the door, and with DP-SGD θ and v are functions of noisy gradients and public values. DP-SGD takes one gradient of
    each batch, hence needs ``personal_steps=1``; from θ = v this is then a gradient step of length η·λ·η_p. Noise on
    updates does not cover θ, which must not leave the client then.

    Differs from the authors' code, unless asked for by an option: it decays θ, starts every local round from the θ of
    the one before, and averages by size. It also trains all clients in every round, and averages some.

    Args:
        weighting: see FedAvg; the paper has ``"uniform"``, its code ``"size"``.
        proximal_weight: λ ≥ 0; the paper uses 15 to 30. Explicit steps diverge once η·λ > 2, or
            η_p·(λ + curvature) > 2.
        personal_steps: how many steps, at least 1, of θ on each batch.
        personal_learning_rate: η_p > 0, the same in all rounds; the paper uses 0.01 to 0.1. With λ = 15 the inner
            steps are nearly unstable at 0.1, so that is not the default.
        warm_start: whether θ goes on from the last local round of this round instead of starting at v.
        theta_decay: weight decay ≥ 0 of θ; the authors' code has 0.001.
    """

    name: ClassVar[str] = "pfedme"
    keeps: ClassVar[tuple[str, ...]] = ("theta",)
    proximal_weight: float = 15.0
    personal_steps: int = 5
    personal_learning_rate: float = 0.05
    warm_start: bool = False
    theta_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("pfedme's proximal_weight", self.proximal_weight, 0)
        check_count("pfedme's personal_steps", self.personal_steps)
        check_number("pfedme's personal_learning_rate", self.personal_learning_rate, 0, above=True)
        check_number("pfedme's theta_decay", self.theta_decay, 0)

    def dpsgd_refusal(self) -> str:
        if self.personal_steps == 1:
            return ""
        return (
            f"pfedme takes {self.personal_steps} gradients of every batch, which share the draw that amplifies; set "
            "personal_steps = 1"
        )

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        return {**local, "theta": received["parameters"].clone()}

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        near = local["parameters"]
        theta = local["theta"] if self.warm_start else near
        for _ in range(self.personal_steps):
            gradient = client.gradient(client.loss, theta, batch)
            gradient.add_(theta, alpha=self.proximal_weight + self.theta_decay).sub_(near, alpha=self.proximal_weight)
            theta = theta - self.personal_learning_rate * gradient
        local["theta"] = theta
        descend(local, self.proximal_weight * (near - theta), training)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """The client's θ; the server's model for a client that never took part."""
        return {"personal": client_state.get("theta", server["parameters"])}
