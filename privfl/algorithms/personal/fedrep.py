"""FedRep: a head of its own for each client, trained before the shared base and never together with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.personal.partial_sharing import Split, check_layers, descend_part, last_layers
from privfl.privacy.door.batch_plans import Epochs, LocalTraining, Plan, Poisson
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_count


@dataclass(frozen=True)
class FedRep(Split):
    """FedRep (Collins et al., ICML 2021): τ_h epochs on the head with the base frozen, then τ_b on the base.

    τ_b is what the training settings say, ``training.epochs`` (or ``training.steps``); τ_h comes on top of it. With the
    head frozen nothing moves it, and the other way round: weight decay and momentum touch the part that is trained, and
    the base's momentum begins at 0 when its phase does. The client uploads the base, of which the server takes the mean
    (weighted by size, as the authors' code does). With τ_h = 0 heads stay at the initial model: FedBABU.

    Differs from the paper: there τ_h = 10 with τ_b = 1, eleven passes a round where FedPer and FedAvg take one. The
    default is one pass for the head, so that a comparison at equal ``training.epochs`` gives it at most twice what they
    get, as it gives Ditto and APFL, which take two gradients of every batch. ``head_epochs = 10`` is the paper's.

    Under DP-SGD a step passes one noisy gradient of all parameters, clipped over all of them, and the frozen part's is
    thrown away: the claim holds, and the noise is what joint training would need. The head's steps count in full,
    ⌈τ_h/rate⌉ of them, because later uploads depend on the head. See also
    :class:`~privfl.algorithms.personal.partial_sharing.Split`.

    Args:
        weighting, server_learning_rate: as for :class:`~privfl.algorithms.fedavg.FedAvg`.
        head_epochs: τ_h ≥ 0; 1 for a fair comparison. The paper takes 10 on CIFAR, with τ_b = 1.
        personal_layers: number of last layers that are the head here, from 1 to all but one; ``None``: the network's
            head. A normalisation layer counts as a layer.
    """

    name: ClassVar[str] = "fedrep"
    head_epochs: int = 1
    personal_layers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("fedrep's head_epochs", self.head_epochs, 0)
        check_layers("fedrep's personal_layers", self.personal_layers)

    def part(self) -> Tensor:
        return ~last_layers(self.context, self.personal_layers, "fedrep's personal_layers")

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        if isinstance(usual, Poisson):
            head_steps = math.ceil(self.head_epochs / usual.rate - 1e-9)
            return HeadThenBaseSteps(usual.rate, head_steps + usual.steps, usual.divisor, head_steps)
        return HeadThenBaseEpochs(usual.batch_size, usual.epochs, usual.steps, self.head_epochs)

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        gradient = client.gradient(client.loss, local["parameters"], batch)
        trained = torch.where(batch.last > 0, self.shared, ~self.shared)
        descend_part(local, gradient, trained, training)


@dataclass(frozen=True)
class HeadThenBaseEpochs(Epochs):
    """``head_epochs`` passes before those of :class:`~privfl.privacy.door.batch_plans.Epochs`, which alone count as the
    last."""

    head_epochs: int = 0

    def length(self, samples: int) -> int:
        return self._of_head(samples) + super().length(samples)

    def is_last(self, step: int, samples: int) -> bool:
        return step >= self._of_head(samples)

    def _of_head(self, samples: int) -> int:
        return self.head_epochs * math.ceil(samples / self.batch_size)


@dataclass(frozen=True)
class HeadThenBaseSteps(Poisson):
    """``steps`` Poisson batches, of which all but the first ``head_steps`` count as the last pass."""

    head_steps: int = 0

    def is_last(self, step: int, samples: int) -> bool:
        return step >= self.head_steps
