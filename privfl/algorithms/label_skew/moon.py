"""MOON: clients keep their features near the received model's and away from those of their own previous model."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.label_skew.calibrated_logits import rewritten
from privfl.federation.context import RunContext
from privfl.models.flat_network import flatten
from privfl.models.layouts import lay_channels_innermost
from privfl.privacy.clipping.known import known_ranks
from privfl.privacy.clipping.placement import wherever_it_stands
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.loss import Loss, of_features
from privfl.validation import check_number


@dataclass(frozen=True)
class MOON(FedAvg):
    """MOON (Li, He and Song, CVPR 2021): model-contrastive federated learning.

    A client minimises ``loss + μ·ℓ_con`` with, for every sample,
    ``ℓ_con = −log[e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ})]``, where z are the features of
    the model in training, and z_glob and z_prev those of the received model and of the one that the client ended its
    last round with. Both are frozen and in evaluation mode, two more forward passes a batch. μ = 0 is FedAvg.

    The features are what the network's head reads. The paper puts a projection head of two layers and width 256 before
    it, as part of the network for all methods that it compares: the model ``moon-cnn``, or
    :func:`privfl.models.projection.projection_head` in a network of your own.

    The previous model stays with the client and shapes its later uploads. Under DP-SGD it is made of received models
    and noisy gradients alone, so it costs nothing by post-processing, and ℓ_con is a term of its own sample alone;
    without DP-SGD it is as private as the client's data.

    Differs from the authors' code: a client that joins late has no previous model, where the code has a random network
    that never trained; one previous model is kept (the code's default too).

    Args:
        mu: μ ≥ 0; the paper uses 5 for CIFAR-10, 1 for CIFAR-100 and Tiny-ImageNet, 10 and 0.1 among what it tries.
        temperature: τ > 0.
        first: what a client that never trained contrasts with. ``"none"``: nothing, ℓ_con counts 0, as in the code's
            first round (the received model would give ln 2 and the same gradient, 0). ``"initial"``: the model that the
            run began with.
    """

    name: ClassVar[str] = "moon"
    keeps: ClassVar[tuple[str, ...]] = ("parameters",)
    mu: float = 1.0
    temperature: float = 0.5
    first: Literal["none", "initial"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("moon's mu", self.mu, 0)
        check_number("moon's temperature", self.temperature, 0, above=True)

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        bound.__dict__.pop("frozen", None)  # anew for this run, and now: threads must not make two of it
        bound.frozen.check()
        return bound

    @cached_property
    def frozen(self) -> FrozenFeatures:
        """Features of models that are not in training."""
        return FrozenFeatures(self.context)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        self.frozen.here()
        local = super().begin(received, client_state, training)
        previous, weight = client_state.get("parameters"), self.mu
        if previous is None:
            previous, weight = received["parameters"], 0.0
            if self.first == "initial":
                previous, weight = flatten(self.context.network()), self.mu
        return {**local, "previous": previous, "weight": received["parameters"].new_tensor(weight)}

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        given = {"received": received["parameters"], "previous": local["previous"], "weight": local["weight"]}
        loss = rewritten(self.contrasted, client.loss)
        descend(local, client.gradient(loss, local["parameters"], batch, given), training)

    @of_features
    def contrasted(
        self,
        loss: Loss,
        network: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        received: Tensor,
        previous: Tensor,
        weight: Tensor,
        **present: Tensor,
    ) -> Tensor:
        """Terms [B] of ``loss + weight·ℓ_con``; ``received`` and ``previous`` are parameters [size].

        ``present`` is what a coupled ``loss`` takes besides.
        """
        features = network.features(inputs)  # type: ignore[operator]
        logits = network.head(features)  # type: ignore[operator]
        near, far = (self.frozen.of(parameters, inputs) for parameters in (received, previous))
        terms = contrastive_terms(features, near, far, self.temperature)
        return loss(lambda _: logits, inputs, targets, **present) + weight * terms


def contrastive_terms(features: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """ℓ_con [B] of ``features`` against ``near`` and ``far``, all [B, d]; ln 2 where both are equally like them.

    A feature of norm 0 counts as orthogonal to everything.
    """
    features, near, far = (one.flatten(1) for one in (features, near, far))  # a next-token model has some per position
    gap = F.cosine_similarity(features, far, dim=1) - F.cosine_similarity(features, near, dim=1)
    return wherever_it_stands(F.softplus, gap / temperature)


class FrozenFeatures(threading.local):
    """Features under parameters other than those in training, without a gradient for them.

    A network holds one set of parameters at a time and engines train on threads, so every thread has a network of its
    own; it has no part in what an engine does with the one it trains.
    """

    def __init__(self, context: RunContext) -> None:
        """Called anew in every thread that uses the object."""
        self._setting = context
        self._extractor: _Extractor | None = None

    def check(self) -> None:
        """Raise a :class:`ConfigError` if the task's network does not say what its features are."""
        _ = self._setting.feature_dim

    def here(self) -> _Extractor:
        """This thread's network. Inside a stack of clients none can be built, so ask for it before."""
        if self._extractor is None:
            network = self._setting.network()
            if self._setting.device.type == "cpu" and known_ranks(network):
                lay_channels_innermost(network)
            self._extractor = _Extractor(network)
        return self._extractor

    def of(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Features [B, d] of ``inputs`` [B, ...] under ``parameters`` [size], in evaluation mode."""
        views = self._setting.layout.named_views(parameters)
        with torch.no_grad():
            features: Tensor = functional_call(
                self.here(), {f"network.{name}": view for name, view in views.items()}, (inputs,)
            )
        return features


class _Extractor(nn.Module):
    """A network's features as a forward pass, which is what ``functional_call`` calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.network.features(inputs)  # type: ignore[operator]
        return features
