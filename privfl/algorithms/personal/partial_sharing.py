"""Methods that split a model: clients upload one part of its parameters and train, or rest, the other by themselves.

The shared part is gathered from the flat vector before it is sent, so an upload has no place for the rest; the server
scatters the mean back. Its own copy of the rest stays at the initial model for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from privfl.algorithms.base import Round, Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.errors import ConfigError
from privfl.federation.context import RunContext
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_count


@dataclass(frozen=True)
class PartialUpload(FedAvg, ABC):
    """FedAvg on a part of the parameters: the others are in no upload, and the server never moves its copy of them.

    Arguments as for :class:`~privfl.algorithms.fedavg.FedAvg`.
    """

    @abstractmethod
    def part(self) -> Tensor:
        """Which parameters are uploaded and averaged, bool [size]; it follows from public facts alone."""

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        for name in ("shared", "places"):  # anew for this run, and now: inside a stack no network can be built
            bound.__dict__.pop(name, None)
            getattr(bound, name)
        return bound

    @cached_property
    def shared(self) -> Tensor:
        """:meth:`part` of this run, bool [size]."""
        return self.part()

    @cached_property
    def places(self) -> Tensor:
        """Where the shared parameters lie in the flat vector, int64 [shared]."""
        return self.shared.nonzero().flatten()

    def fields(self) -> tuple[Field, ...]:
        return (Field("update", shape=(len(self.places),)),)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": local["parameters"][self.places] - received["parameters"][self.places]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        sent = total["update"]
        whole = sent.new_zeros(len(self.shared)).index_copy(0, self.places, sent)
        return super().aggregate(server, {**total, "update": whole}, round, training)


@dataclass(frozen=True)
class Split(PartialUpload):
    """A shared part that the server averages, and a private part that stays with each client from round to round.

    A client begins with the received shared part and its own private one; both start at the common initial model. It
    keeps its whole vector, so a client's own model is the server's shared part with its own private one. The global
    test averages the soft-max outputs of the own models of all clients that have trained, because the server has no
    private part that was ever trained. That test costs as much as for :class:`~privfl.algorithms.references.Local`: one
    forward pass over the test data for each client that has trained.

    The private part shapes later uploads, so noise has to reach it too. Under DP-SGD it does: both parts are functions
    of the same noisy gradients and of public values, so by post-processing they cost exactly what these gradients cost.
    Noise that hides clients covers uploads, whatever shaped them. The private part itself memorises the client's data
    and must not leave the client; without DP-SGD it has no protection of its own.

    Arguments as for :class:`~privfl.algorithms.fedavg.FedAvg`.
    """

    keeps: ClassVar[tuple[str, ...]] = ("parameters",)
    ensemble: ClassVar[bool] = True

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return super().begin({**received, "parameters": self.joined(received, client_state)}, client_state, training)

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        return {"personal": self.joined(server, client_state)}

    def joined(self, server: Tensors, client_state: Tensors) -> Tensor:
        """A client's model [size]: the shared part as the server has it, and the client's own private part."""
        current = server["parameters"]
        return (
            torch.where(self.shared, current, client_state["parameters"]) if "parameters" in client_state else current
        )


def last_layers(context: RunContext, count: int | None, asked_by: str) -> Tensor:
    """Which parameters belong to the model's last ``count`` layers, bool [size]; ``None``: to its head.

    A layer is a module with parameters of its own, in the model's order; a normalisation layer counts as one.

    Args:
        setting: the run.
        count: 1 to all layers but one.
        asked_by: the algorithm and its setting, for the error.

    Raises:
        ConfigError: the model has no head, or not that many layers.
    """
    if count is None:
        return context.head
    layers = int(context.blocks.max()) + 1
    if count >= layers:
        raise ConfigError(
            f"{asked_by} is {count}, but of the model's {layers} layers at least one must be left; give fewer, or use "
            "fedavg to share all layers and local to share none"
        )
    return context.blocks >= layers - count


def check_layers(name: str, count: int | None) -> None:
    """Raise :class:`ConfigError` unless ``count`` is ``None`` or a whole number of at least 1."""
    if count is not None:
        check_count(name, count)


def descend_part(local: Tensors, gradient: Tensor, trained: Tensor, training: LocalTraining) -> None:
    """One SGD step in place on the parameters where ``trained`` [size] is true; the others and their momentum rest.

    Weight decay, then momentum, then the step, as :func:`privfl.algorithms.base.descend`; ``gradient`` [size] is used
    up. What is not finite in the gradient of a resting parameter does not touch it.
    """
    if training.weight_decay:
        gradient.add_(local["parameters"], alpha=training.weight_decay)
    step = torch.where(trained, gradient, 0)
    if training.momentum:
        momentum = local["momentum"]
        momentum.copy_(torch.where(trained, momentum * training.momentum + gradient, momentum))
        step = torch.where(trained, momentum, 0)
    local["parameters"].add_(step, alpha=-training.learning_rate)
