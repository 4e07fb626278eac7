"""The gradient of a network's linear head, as it lies in a flat update, and what auxiliary data say about it.

Every attack on labels and sizes reads the head: for a soft-max cross-entropy the gradient of one example is
``(p − e_y) ⊗ (h, 1)``, p its predicted probabilities and h its features, so that the label stands in it unencrypted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.flat_network import Layout

CHUNK = 1024
"""Auxiliary examples that are evaluated together."""


@dataclass(frozen=True)
class HeadGradient:
    """Gradient of a linear head: ``weight`` [C, d], and ``bias`` [C] if the head has one; float64."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, flat: Tensor, layout: Layout) -> HeadGradient:
        """The head's part of ``flat`` [size], a gradient or update in the order of ``layout``.

        Raises:
            ConfigError: ``flat`` has another length, or the model has no linear head named ``head``.
        """
        if flat.shape != (layout.size,):
            raise ConfigError(f"the update has the shape {tuple(flat.shape)}; the model needs one of ({layout.size},)")
        parts = layout.named_views(flat.double())
        weight = parts.get("head.weight")
        if weight is None or weight.ndim != 2:
            raise ConfigError(
                "the model has no linear head; attacks on labels need a model of `privfl list models` or "
                "privfl.models.Network(body, nn.Linear(…))"
            )
        return cls(weight, parts.get("head.bias"))

    def vector(self) -> Tensor:
        """All numbers in one float64 vector [C·d], or [C·(d + 1)] with a bias, class by class."""
        columns = self.weight if self.bias is None else torch.cat([self.weight, self.bias[:, None]], dim=1)
        return columns.reshape(-1)


@dataclass(frozen=True)
class ClassGradients:
    """Head gradients of single examples, by their class.

    ``means`` [C, size]: row k is the mean gradient of an example of class k, zero for a class without examples.
    ``deviations`` [size]: the standard deviation of each number within a class. ``seen`` [C]: classes with examples.
    """

    means: Tensor
    deviations: Tensor
    seen: Tensor

    def averaged(self, other: ClassGradients) -> ClassGradients:
        """The mean of two, for an update that led from one model to another."""
        return ClassGradients(
            (self.means + other.means) / 2, (self.deviations + other.deviations) / 2, self.seen & other.seen
        )


@torch.no_grad()
def predictions(network: nn.Module, inputs: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Predicted probabilities [N, C] of ``inputs`` [N, ...], float64; ``log_prior`` [C] is added to the logits.

    A loss on shifted logits (ReBaFL's and balanced soft-max's) has gradients in terms of the shifted probabilities.
    """
    parts = [network(chunk).double() for chunk in torch.split(inputs, CHUNK)]
    logits = torch.cat(parts)
    return torch.softmax(logits if log_prior is None else logits + log_prior.double(), dim=1)


@torch.no_grad()
def class_gradients(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    classes: int,
    *,
    bias: bool = True,
    log_prior: Tensor | None = None,
) -> ClassGradients:
    """What one example of each class adds to the head's gradient, from labelled auxiliary data.

    Args:
        network: a network with ``features`` and ``head``, at the parameters that the client received.
        inputs: [N, ...].
        targets: [N], integers below ``classes``.
        bias: whether the head has a bias.
        log_prior: [C], added to the logits before the soft-max.

    Raises:
        ConfigError: there is no example, or fewer inputs than targets.
    """
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ConfigError(f"there are {len(inputs)} inputs for {len(targets)} labels; give one label for each input")
    features = torch.cat([network.features(chunk).double() for chunk in torch.split(inputs, CHUNK)])  # type: ignore[operator]
    if bias:
        features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    errors = predictions(network, inputs, log_prior)
    errors[torch.arange(len(targets)), targets] -= 1
    means = features.new_zeros(classes, classes * features.shape[1])
    spread = features.new_zeros(classes * features.shape[1])
    seen = torch.zeros(classes, dtype=torch.bool)
    for label in torch.unique(targets).tolist():
        rows = targets == label
        seen[label] = True
        means[label] = (errors[rows].T @ features[rows]).reshape(-1) / rows.sum()
        squares = (errors[rows].square().T @ features[rows].square()).reshape(-1)
        spread += squares - rows.sum() * means[label].square()
    return ClassGradients(means, (spread.clamp_min(0) / len(targets)).sqrt(), seen)
