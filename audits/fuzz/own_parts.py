"""Honest parts of one's own, as a user would write them: tiny networks, losses, algorithms and mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.models import Network
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.mechanisms.mechanism import ChannelRound, Kind, Mechanism
from privfl.privacy.noise.source import NoiseStream

CLASSES = 3
VOCABULARY = 5
FEATURES = 3


@dataclass(frozen=True)
class Model:
    """A network for inputs of ``shape``, or for that many tokens; ``split``: it has features and a head."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (FEATURES,)
    tokens: bool = False
    split: bool = False


class Pooled(nn.Module):
    """One linear layer on every position, whose outputs are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        averaged: Tensor = self.layer(inputs).mean(1)
        return averaged


class Contrast(nn.Module):
    """The difference between two halves of the positions: contributions of one layer that nearly cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs[:, 0::2].sum(1) - outputs[:, 1::2].sum(1)


class Words(nn.Module):
    """Embeddings of tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, FEATURES)
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.words(inputs).mean(1))
        return logits


class Scaled(nn.Module):
    """A layer with a parameter that stands outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES, bias=False)
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(inputs) * self.scale
        return logits


class Tied(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.outer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.outer(torch.tanh(self.inner(torch.tanh(self.inner(inputs)))))
        return logits


def _mlp() -> nn.Module:
    return Network(nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh()), nn.Linear(4, CLASSES))


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, CLASSES))


def _convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


MODELS: dict[str, Model] = {
    "linear": Model(lambda: nn.Linear(FEATURES, CLASSES)),
    "split": Model(_mlp, split=True),
    "layer-norm": Model(_normed),
    "convolution": Model(_convolution, (2, 4)),
    "pooled": Model(Pooled, (4, FEATURES)),
    "contrast": Model(Contrast, (4, FEATURES)),
    "words": Model(Words, (4,), tokens=True),
    "own-parameter": Model(Scaled),
    "tied": Model(Tied),
}
"""Networks by name."""


def focal(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Focal loss of every sample [B]."""
    entropy = F.cross_entropy(network(inputs), targets, reduction="none")
    return (1 - torch.exp(-entropy)) ** 2 * entropy


def squared(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of every sample [B], whose gradients are as large as its inputs."""
    errors: Tensor = network(inputs) - one_hot(network, inputs, targets)
    return errors.square().sum(1)


def enlarged(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy times a million."""
    return F.cross_entropy(network(inputs), targets, reduction="none") * 1e6


@dataclass(frozen=True)
class Regularised(FedAvg):
    """FedAvg whose step adds a pull that depends on no data."""

    name: ClassVar[str] = "regularised"

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        """One private gradient, and a pull towards the received model."""
        gradient = client.gradient(client.loss, local["parameters"], batch)
        gradient.add_(local["parameters"] - received["parameters"], alpha=0.1)
        local["parameters"].add_(gradient, alpha=-training.learning_rate)


@dataclass(frozen=True)
class Counting(Algorithm):
    """One step of a private gradient, and a noisy count of the classes that the server adds up."""

    name: ClassVar[str] = "counting"
    statistics: ClassVar[tuple[str, ...]] = ("classes",)

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """Count the classes, with noise if the run has a noisy total for them."""
        counts = client.total(one_hot, local["parameters"], everything, name="classes")
        local["counts"] = counts.to(local["parameters"].dtype)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        """The received model, and room for the counts."""
        parameters = received["parameters"]
        return {**super().begin(received, client_state, training), "counts": parameters.new_zeros(CLASSES)}

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        """The update, moved a little by the counts."""
        update = local["parameters"] - received["parameters"]
        return {"update": update + local["counts"].sum() * 1e-3}


def one_hot(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The class of every sample [B, classes]."""
    return (targets[:, None] == torch.arange(CLASSES)).to(torch.float32)


@dataclass(frozen=True)
class TopK(Mechanism):
    """Keeps the ``k`` largest numbers of an update."""

    kind: ClassVar[Kind] = "transform"
    k: int = 2

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """The update with zeros in all other places."""
        kept = torch.zeros_like(update)
        places = update.abs().topk(min(self.k, update.numel())).indices
        kept[places] = update[places]
        return kept


@dataclass(frozen=True)
class Quantised(Mechanism):
    """Rounds updates to multiples of ``step``."""

    kind: ClassVar[Kind] = "transform"
    step: float = 0.01

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """The update on the grid."""
        return update.div_(self.step).round_().mul_(self.step)


@dataclass(frozen=True)
class BoxClip(Mechanism):
    """A bound of one's own: every number is cut to a box that lies within the ball."""

    kind: ClassVar[Kind] = "bound"
    max_norm: float = 1.0

    def norm_bound(self, server: Tensors) -> float:
        """The radius of the ball."""
        return self.max_norm

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """The update cut to the box."""
        half = self.max_norm / update.numel() ** 0.5
        return update.nan_to_num_(0.0).clamp_(-half, half)
