"""A model of the client's own beside the federated one: where it starts, how it descends, and that it stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.models.flat_network import flatten
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door


@dataclass(frozen=True)
class WithOwnModel(FedAvg):
    """FedAvg whose clients keep a model ``personal`` [size] that enters no upload.

    It starts at the model that the run starts from, whenever its client first takes part. Momentum and weight decay of
    the training settings act on it as on the federated model, and its momentum starts anew in every round too. A
    gradient that is not finite is left out: where noise lets such a client carry on, its own model must not end there.
    """

    keeps: ClassVar[tuple[str, ...]] = ("personal",)
    local_only: ClassVar[bool] = True

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        local["personal"] = client_state["personal"] if "personal" in client_state else flatten(self.context.network())
        if training.momentum:
            local["personal_momentum"] = torch.zeros_like(local["personal"])
        return local

    def own_gradient(self, parameters: Tensor, batch: Batch, client: Door) -> Tensor:
        """Gradient [size] of the loss at ``parameters`` that stays with the client; 0 if it is not finite."""
        gradient = client.local_only_gradient(client.loss, parameters, batch)
        return torch.where(gradient.isfinite().all(), gradient, 0.0)

    def descend_own(self, local: Tensors, gradient: Tensor, training: LocalTraining) -> None:
        """One SGD step of the client's own model in place; ``gradient`` [size] is used up."""
        own = {"parameters": local["personal"]}
        if training.momentum:
            own["momentum"] = local["personal_momentum"]
        descend(own, gradient, training)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """The client's own model; the server's for a client that never took part."""
        return {"personal": client_state.get("personal", server["parameters"])}
