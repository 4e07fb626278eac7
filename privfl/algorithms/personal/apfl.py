"""APFL: each client mixes the federated model with one of its own, in a share that it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.personal.interpolation import mix
from privfl.algorithms.personal.own_model import WithOwnModel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number


@dataclass(frozen=True)
class APFL(WithOwnModel):
    """Adaptive personalised federated learning (Deng, Kamani and Mahdavi, arXiv 2003.13461).

    Client k holds its own model v and a share α. On every batch the mixture ``v̄ = α·v + (1 − α)·w_k`` is formed of v
    and the federated model in training, both as they are before the step; then

        w_k ← w_k − η·g(w_k),   v ← v − η·α·g(v̄),

    and on the first batch of a round ``α ← clip(α − η·⟨v − w_k, g(v̄)⟩, 0, 1)``, as in the authors' code. The client
    uploads w_k and uses v̄, here with the server's newest model in place of w_k. A fixed α of 0 is FedAvg, and of 1
    training alone.

    g(v̄) stays with the client, and neither v nor α enters an upload: the server's model follows FedAvg's path bit for
    bit (drop-out excepted, whose masks are drawn in turn from one stream), and every claim is FedAvg's. v and α have no
    protection of their own: they must not leave the client.

    Differs from common re-implementations: nothing is added to the slope of α unless ``alpha_decay`` says so, and α
    does not change with every batch unless ``alpha_updates`` says so: it then runs to 0, where v gets no gradient.

    Args:
        alpha: share in [0, 1] that every client starts with; the paper uses 0.25, 0.5 and 0.75.
        adaptive: whether clients learn their α.
        alpha_updates: α changes once a ``round``, on its first batch, or on every ``batch``.
        alpha_decay: ≥ 0, times α is added to its slope; re-implementations add 0.02·α.
    """

    name: ClassVar[str] = "apfl"
    keeps: ClassVar[tuple[str, ...]] = ("personal", "alpha")
    alpha: float = 0.5
    adaptive: bool = True
    alpha_updates: Literal["round", "batch"] = "round"
    alpha_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("apfl's alpha", self.alpha, 0, 1)
        check_number("apfl's alpha_decay", self.alpha_decay, 0)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        local["alpha"] = (
            client_state["alpha"] if "alpha" in client_state else received["parameters"].new_tensor(self.alpha)
        )
        local["alpha_rate"] = received["parameters"].new_ones(())
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        federated, own, alpha = local["parameters"], local["personal"], local["alpha"]
        gradient = self.own_gradient(mix(federated, own, alpha), batch, client)
        slope = torch.dot(own - federated, gradient) + self.alpha_decay * alpha
        self.descend_own(local, gradient.mul_(alpha), training)
        super().step(local, received, batch, client, training)
        if self.adaptive:
            step = training.learning_rate * torch.where(slope.isfinite(), slope, 0.0)  # w_k may be broken, not α
            local["alpha"] = (alpha - local["alpha_rate"] * step).clamp(0, 1)
            if self.alpha_updates == "round":
                local["alpha_rate"] = torch.zeros_like(alpha)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """v̄ of the client's v and α and the server's model; the server's alone for a client that never took part."""
        if "personal" not in client_state:
            return super().personal(server, client_state)
        return {"personal": mix(server["parameters"], client_state["personal"], client_state["alpha"])}
