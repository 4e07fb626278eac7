"""FedBABU: the body is trained and averaged, the head rests at its random start until clients personalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.personal.partial_sharing import PartialUpload, descend_part
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_count


@dataclass(frozen=True)
class FedBABU(PartialUpload):
    """FedBABU (Oh, Kim and Yun, ICLR 2022): clients train and upload the body; the head stays at the common start.

    The global model is the averaged body under the initial head. Personalisation fine-tunes it on a client's own data.
    Here a client does so whenever it takes part, from the model it receives, once its upload is settled; the fine-tuned
    model stays with it, enters no upload and has no protection, DP-SGD or not: it must not leave the client.

    Under DP-SGD a step passes one noisy gradient of all parameters, clipped over all of them, and the head's is thrown
    away: the claim holds, and the noise is what training both would need.

    Differs from the paper: fine-tuning takes steps on all of a client's data at once, because that is the batch there
    is after training (the paper's 5 epochs are 5·⌈n_k/50⌉ steps on mini-batches), and it follows each round that a
    client is in, so it starts from the model before that round's mean. One fine-tuning step costs what an epoch does.

    Args:
        weighting, server_learning_rate: as for :class:`~privfl.algorithms.fedavg.FedAvg`.
        finetune_steps: steps of personalisation after every round, ≥ 0; 0, the default, leaves it out. They take
            learning rate, momentum and weight decay from the training settings.
        finetune: what personalisation trains: ``full`` (the paper's choice), ``head`` or ``body``.
    """

    name: ClassVar[str] = "fedbabu"
    local_only: ClassVar[bool] = True
    finetune_steps: int = 0
    finetune: Literal["full", "head", "body"] = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("fedbabu's finetune_steps", self.finetune_steps, 0)
        object.__setattr__(self, "keeps", ("personal",) if self.finetune_steps else ())

    def part(self) -> Tensor:
        return ~self.context.head

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        if self.finetune_steps:
            local["personal"] = received["parameters"].clone()
            if training.momentum:
                local["personal_momentum"] = torch.zeros_like(received["parameters"])
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        gradient = client.gradient(client.loss, local["parameters"], batch)
        descend_part(local, gradient, self.shared, training)

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        body = self.shared
        tuned = {"full": torch.ones_like(body), "head": ~body, "body": body}[self.finetune]
        for _ in range(self.finetune_steps):
            gradient = client.local_only_gradient(client.loss, local["personal"], everything)
            slot = {"parameters": local["personal"]}
            if training.momentum:
                slot["momentum"] = local["personal_momentum"]
            descend_part(slot, gradient, tuned, training)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        return {"personal": client_state.get("personal", server["parameters"])} if self.finetune_steps else {}
