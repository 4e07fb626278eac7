"""What federated generative models share: FedAvg over a generator, and the synthetic set that the server draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from privfl.algorithms.base import Round, Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.generative.fedevg import adam
from privfl.algorithms.generative.server_training import train_classifier
from privfl.errors import ConfigError
from privfl.models.conditional import Generator
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.randomness import torch_stream
from privfl.validation import check_count, check_number

NOISE_ROWS = 256
"""Rows of z that a step draws; of a larger batch, rows 256 apart share theirs."""


@dataclass(frozen=True)
class GenerativeFedAvg(FedAvg, ABC):
    """Base of algorithms that average a conditional generator and train a classifier on what it draws.

    The generator is a network of the algorithm's own, beside the task's, which only serves as the classifier that the
    server trains on N = classes · ``samples_per_class`` drawn inputs and that is tested. Their z is the same in every
    round, so that pictures of different rounds can be compared; :meth:`synthesise` draws as many others as wanted.

    Args:
        samples_per_class: synthetic inputs of each class that the server keeps.
        latent: width of z.
        architecture: ``"perceptron"``: networks of one hidden layer; ``"convolutional"``: those of
            :mod:`privfl.models.conditional_convolutions`, for images.
        hidden: hidden units of each perceptron, or channels of the first convolution.
        classifier_epochs: passes over the synthetic set when the server's classifier is trained for a test.
        low: smallest value of a pixel.
        high: largest value of a pixel; inputs beyond the bounds count as the bounds.
    """

    needs_classes: ClassVar[bool] = True
    samples_per_class: int = 10
    latent: int = 16
    hidden: int = 128
    architecture: Literal["perceptron", "convolutional"] = "perceptron"
    classifier_epochs: int = 150
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samples_per_class", "latent", "hidden", "classifier_epochs"):
            check_count(f"{self.name}'s {name}", getattr(self, name))
        for name in ("low", "high"):
            check_number(f"{self.name}'s {name}", getattr(self, name), -1e30)
        if self.low >= self.high:
            raise ConfigError(f"{self.name}'s pixels lie between {self.low!r} and {self.high!r}; give low < high")

    @abstractmethod
    def networks(self) -> Generator:
        """The networks that are trained, as functions of one vector."""

    def dpsgd_refusal(self) -> str:
        return (
            f"{self.name} trains networks of its own, and DP-SGD clips gradients of the task's model alone; hide "
            "clients by privacy.update with weighting = 'uniform', or take fedevg"
        )

    def fields(self) -> tuple[Field, ...]:
        return (Field("update", shape=(self.networks().size,)),)

    def start(self, parameters: Tensor) -> Tensors:
        context, dtype, device = self.context, parameters.dtype, parameters.device
        generator = self.networks().new(torch_stream(context.seed, f"{self.name}-networks"), dtype).to(device)
        labels = torch.arange(context.classes, device=device).repeat_interleave(self.samples_per_class)
        shape = (len(labels), self.latent)
        noise = torch.randn(shape, generator=torch_stream(context.seed, f"{self.name}-set"), dtype=dtype).to(device)
        return {
            "parameters": parameters.clone(),
            "generator": generator,
            "noise": noise,
            "labels": labels,
            "images": self.drawn(generator, noise, labels),
        }

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", "generator")}

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": local["generator"] - received["generator"]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        averaged = super().aggregate({"parameters": server["generator"]}, total, round, training)["parameters"]
        return {**server, "generator": averaged, "images": self.drawn(averaged, server["noise"], server["labels"])}

    def eval_parameters(self, server: Tensors) -> Tensor:
        """The task's model, trained by the server on the synthetic set from fresh parameters."""
        context = self.context
        return train_classifier(
            context.network(),
            context.fresh(f"{self.name}-classifier", 0),
            server["images"],
            server["labels"],
            epochs=self.classifier_epochs,
            seed=context.seed,
        )

    def synthesise(self, server: Tensors, labels: Tensor, seed: int = 0) -> Tensor:
        """Inputs [n, ...] of the classes ``labels`` [n] from a run's final state ``server``, with z from ``seed``.

        Raises:
            ConfigError: there is no such class.
        """
        classes, generator = self.context.classes, server["generator"]
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ConfigError(
                f"labels lie between {int(labels.min())} and {int(labels.max())}; give classes from 0 to {classes - 1}"
            )
        shape = (len(labels), self.latent)
        noise = torch.randn(shape, generator=torch_stream(seed, f"{self.name}-more"), dtype=generator.dtype)
        return self.drawn(generator, noise.to(generator.device), labels.to(generator.device))

    def drawn(self, generator: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        """Inputs [n, ...] that the networks ``generator`` [size] make of ``noise`` [n, latent] and ``labels`` [n]."""
        with torch.no_grad():
            logits = self.networks().generate(generator, noise, self.kinds(labels, noise.dtype))
            pixels = self.low + (self.high - self.low) * logits.sigmoid()
        return pixels.view(-1, *self.context.input_shape)

    def kinds(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """One-hot rows [n, classes] of ``labels`` [n]."""
        return F.one_hot(labels, self.context.classes).to(dtype)

    def pixels(self, inputs: Tensor) -> Tensor:
        """``inputs`` [B, ...] as rows [B, D] in [0, 1]."""
        return ((inputs.flatten(1) - self.low) / (self.high - self.low)).clamp(0, 1)


def noise_of(table: Tensor, rows: int) -> Tensor:
    """z [rows, latent] out of the ``table`` [NOISE_ROWS, latent] of a step's normal numbers."""
    return table[torch.arange(rows, device=table.device) % len(table)]


def with_moments(name: str, parameters: Tensor) -> Tensors:
    """A trained copy of ``parameters`` [size] called ``name``, and what Adam keeps for it during a round."""
    return {
        name: parameters.clone(),
        f"{name}_first_moment": torch.zeros_like(parameters),
        f"{name}_second_moment": torch.zeros_like(parameters),
        f"{name}_steps": parameters.new_zeros(()),
    }


def adam_step(local: Tensors, name: str, gradient: Tensor, training: LocalTraining) -> None:
    """One step of Adam (:func:`privfl.algorithms.generative.fedevg.adam`) in place on the tensor of ``local`` called
    ``name``."""
    moments = {kind: local[f"{name}_{kind}"] for kind in ("first_moment", "second_moment", "steps")}
    adam({"parameters": local[name], **moments}, gradient, training)
