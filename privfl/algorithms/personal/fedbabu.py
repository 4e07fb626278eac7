"""FedBABU: the body is trained and averaged, the head rests at its random start until clients personalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.personal.partial_sharing import PartialUpload, descend_part
from privfl.privacy.door.batch_plans import Epochs, LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_count


@dataclass(frozen=True)
class FedBABU(PartialUpload):
    """FedBABU (Oh, Kim and Yun, ICLR 2022): clients train and upload the body; the head stays at the common start.

    The global model is the averaged body under the initial head. Personalisation fine-tunes it on a client's own data.
    Here a client does so whenever it takes part, from the model it receives, once its upload is settled; the fine-tuned
    model stays with it, enters no upload and has no protection, DP-SGD or not: it must not leave the client. What is
    judged by personal models is these.

    Under DP-SGD a step passes one noisy gradient of all parameters, clipped over all of them, and the head's is thrown
    away: the claim holds, and the noise is what training both would need.

    Differs from the paper: fine-tuning follows each round that a client is in, so it starts from the model before that
    round's mean, and its passes come on top of every round's; the paper fine-tunes once, at the end.

    Args:
        weighting, server_learning_rate: as for :class:`~privfl.algorithms.fedavg.FedAvg`; the authors' code takes the
            plain mean.
        finetune_epochs: passes ≥ 0 of personalisation after every round, in batches of ``training.batch_size``; 5, as
            in the authors' code. They take learning rate, momentum and weight decay from the training settings. 0
            leaves personalisation out, for runs that test the global model alone.
        finetune: what personalisation trains: ``full`` (the paper's choice), ``head`` or ``body``.
    """

    name: ClassVar[str] = "fedbabu"
    local_only: ClassVar[bool] = True
    finetune_epochs: int = 5
    finetune: Literal["full", "head", "body"] = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("fedbabu's finetune_epochs", self.finetune_epochs, 0)
        object.__setattr__(self, "keeps", ("personal",) if self.finetune_epochs else ())

    def part(self) -> Tensor:
        return ~self.context.head

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        if self.finetune_epochs:
            local["personal"] = received["parameters"].clone()
            if training.momentum:
                local["personal_momentum"] = torch.zeros_like(received["parameters"])
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        gradient = client.gradient(client.loss, local["parameters"], batch)
        descend_part(local, gradient, self.shared, training)

    def personal_plan(self, training: LocalTraining) -> Epochs | None:
        return Epochs(training.batch_size, self.finetune_epochs) if self.finetune_epochs else None

    def personalise(
        self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining
    ) -> None:
        body = self.shared
        tuned = {"full": torch.ones_like(body), "head": ~body, "body": body}[self.finetune]
        gradient = client.local_only_gradient(client.loss, local["personal"], batch)
        slot = {"parameters": local["personal"]}
        if training.momentum:
            slot["momentum"] = local["personal_momentum"]
        descend_part(slot, gradient, tuned, training)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        return {"personal": client_state.get("personal", server["parameters"])} if self.finetune_epochs else {}
