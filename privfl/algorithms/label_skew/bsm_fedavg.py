"""BSM-FedAvg: FedAvg whose clients train with the exact balanced soft-max of their own labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.label_skew.balanced_softmax import balanced_loss, label_counts, smoothed_prior
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door


@dataclass(frozen=True)
class BalancedFedAvg(FedAvg):
    """BSM-FedAvg, ReBaFL's baseline: cross-entropy on ``z + log p_i``, p_i the client's label frequencies.

    Balanced soft-max is due to Ren et al. (NeurIPS 2020); equation (8) of ReBaFL. Equal to ``ReBaFL(epsilon=0, mu=0)``.

    Differs from the released code, which adds 1e-9 to p_i: classes that a client does not hold are masked exactly, so
    their rows of the head get no gradient.
    """

    name: ClassVar[str] = "bsm-fedavg"
    statistics: ClassVar[tuple[str, ...]] = ("label_prior",)
    needs_classes: ClassVar[bool] = True

    def dpsgd_refusal(self) -> str:
        return (
            "bsm-fedavg masks the classes that a client does not hold, which shows exactly which ones it holds; use "
            "rebafl with mu = 0 and epsilon > 0"
        )

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        return {**local, "log_prior": received["parameters"].new_zeros(self.context.classes)}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        statistic = partial(label_counts, classes=self.context.classes)
        counts: Tensor = client.total(statistic, local["parameters"], everything, name="label_prior")
        local["log_prior"] = torch.log(smoothed_prior(counts, 0.0)).to(local["log_prior"].dtype)

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        given = {"log_prior": local["log_prior"]}
        descend(local, client.gradient(balanced_loss, local["parameters"], batch, given), training)
