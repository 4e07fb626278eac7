"""FedAvg whose clients train on logits that their own label counts scale and shift; FedRS and FedLC derive from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.label_skew.balanced_softmax import label_counts
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.loss import Loss, coupled, is_coupled, of_logits

LABELS = "label_prior"
"""Name of the total of one-hot labels, for a :class:`privfl.privacy.door.noisy_total.NoisyTotal` (whose bound is 1)."""


@dataclass(frozen=True)
class CalibratedFedAvg(FedAvg):
    """FedAvg on the task's loss of the logits ``a ⊙ z + b``, where a and b [C] follow from a client's label counts.

    Nothing but the update is sent, and the logits are used as they are wherever the model is tested. The counts are
    taken anew in every round, through the door: without a mechanism they make the claim infinite, and with a NoisyTotal
    for ``label_prior`` a and b are post-processing of a noisy sum.
    """

    statistics: ClassVar[tuple[str, ...]] = (LABELS,)
    needs_classes: ClassVar[bool] = True

    def calibration(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """a and b [C] for label counts ``counts`` [C], which may be noisy and so negative; here those of FedAvg."""
        return torch.ones_like(counts), torch.zeros_like(counts)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        zeros = received["parameters"].new_zeros(self.context.classes)
        return {**local, "factor": zeros + 1, "shift": zeros}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        if not self.statistics:  # a total that changes nothing must cost nothing
            return
        statistic = partial(label_counts, classes=self.context.classes)
        counts = client.total(statistic, local["parameters"], everything, name=LABELS)
        kind = local["shift"].dtype
        local["factor"], local["shift"] = (part.to(kind) for part in self.calibration(counts))

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        given = {name: local[name] for name in ("factor", "shift")}
        loss = rewritten(calibrated_loss, client.loss)
        descend(local, client.gradient(loss, local["parameters"], batch, given), training)


def rewritten(form: Loss, loss: Loss) -> Loss:
    """``form(loss, network, inputs, targets, …)`` as a loss, coupled where ``loss`` is."""
    whole = partial(form, loss)
    return coupled(whole) if is_coupled(loss) else whole


@of_logits
def calibrated_loss(
    loss: Loss,
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    factor: Tensor,
    shift: Tensor,
    **present: Tensor,
) -> Tensor:
    """Terms [B] of ``loss`` for the logits ``factor ⊙ z + shift``, [B, C] from [C]; it asks for logits only.

    A class whose shift is −∞ is masked: its logit has gradient 0, as long as it is no target. ``present`` is what a
    coupled ``loss`` takes besides.
    """
    logits = factor * network(inputs) + shift
    return loss(lambda _: logits, inputs, targets, **present)
