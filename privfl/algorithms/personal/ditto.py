"""Ditto: FedAvg, and for each client a model of its own that is held near the one it receives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from privfl.algorithms.base import Tensors
from privfl.algorithms.personal.own_model import WithOwnModel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number


@dataclass(frozen=True)
class Ditto(WithOwnModel):
    """Ditto (Li, Hu, Beirami and Smith, ICML 2021), Algorithm 1, with FedAvg as its global solver.

    Client k minimises ``F_k(v_k) + (λ/2)·‖v_k − w^t‖²``, w^t the received model, by steps
    ``v_k ← v_k − η·(g(v_k) + λ·(v_k − w^t))``. λ = 0 is training alone; the larger λ, the closer v_k stays to w^t.

    v_k is trained by gradients that stay with the client. None of it enters an upload, so the server's model follows
    FedAvg's path bit for bit (drop-out excepted, whose masks the two models draw in turn from one stream), and every
    claim is FedAvg's. v_k itself memorises the client's data and has no protection of its own: it must not leave.

    Differs from the paper: v_k takes one step on each batch that w takes one on (the paper's s counts them apart), and
    λ is fixed (its code may choose it by validation).

    Args:
        proximal_weight: λ ≥ 0; the paper uses 0.1, 1 and 2. Explicit steps diverge once η·(λ + curvature) > 2.
        personal_learning_rate: η > 0 of v_k, the same in all rounds; by default the training settings'.
    """

    name: ClassVar[str] = "ditto"
    proximal_weight: float = 1.0
    personal_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("ditto's proximal_weight", self.proximal_weight, 0)
        if self.personal_learning_rate is not None:
            check_number("ditto's personal_learning_rate", self.personal_learning_rate, 0, above=True)

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        super().step(local, received, batch, client, training)
        own, near = local["personal"], received["parameters"]
        gradient = self.own_gradient(own, batch, client)
        gradient.add_(own, alpha=self.proximal_weight).sub_(near, alpha=self.proximal_weight)
        if self.personal_learning_rate is not None:
            training = replace(training, learning_rate=self.personal_learning_rate)
        self.descend_own(local, gradient, training)
