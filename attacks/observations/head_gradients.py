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

MEND = (
    "labels and sizes are read off one, so attack a model of `privfl list models`, a module that ends in an nn.Linear, "
    "or privfl.models.Network(body, nn.Linear(width, classes))"
)
CHUNK = 1024
"""Auxiliary examples that are evaluated together."""


@dataclass(frozen=True)
class HeadGradient:
    """Gradient of a linear head: ``weight`` [C, d], and ``bias`` [C] if the head has one; float64."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, flat: Tensor, layout: Layout, head: str = "head") -> HeadGradient:
        """The part of ``flat`` [size], a gradient or update in the order of ``layout``, of the layer ``head``.

        Raises:
            ConfigError: ``flat`` has another length, or the model has no linear layer of that name.
        """
        if flat.shape != (layout.size,):
            raise ConfigError(f"the update has the shape {tuple(flat.shape)}; the model needs one of ({layout.size},)")
        parts = layout.named_views(flat.double())
        weight = parts.get(_within(head, "weight"))
        if weight is None or weight.ndim != 2:
            raise ConfigError(f"the model has no linear head; {MEND}")
        return cls(weight, parts.get(_within(head, "bias")))

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


def head_name(network: nn.Module) -> str:
    """The name of the linear layer that gives the outputs of ``network``: its ``head``, or else its last ``nn.Linear``.

    Raises:
        ConfigError: there is no linear layer.
    """
    named = dict(network.named_parameters())
    weight = named.get("head.weight")
    if weight is not None and weight.ndim == 2:
        return "head"
    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    found = [name for name in layers if _within(name, "weight") in named]
    if not found:
        raise ConfigError(f"{type(network).__name__} has no linear head; {MEND}")
    last: str = found[-1]
    return last


@torch.no_grad()
def checked_head(network: nn.Module, probe: Tensor) -> str:
    """:func:`head_name`, once one input ``probe`` [1, ...] has shown that this layer gives the outputs.

    Raises:
        ConfigError: it does not, or there is no linear layer.
    """
    features(network, probe)
    return head_name(network)


def _within(layer: str, parameter: str) -> str:
    """The name of a layer's ``parameter``; the layer without a name is the whole network."""
    return f"{layer}.{parameter}" if layer else parameter


def features(network: nn.Module, inputs: Tensor) -> Tensor:
    """What the linear head of ``network`` reads of ``inputs`` [N, ...], [N, d].

    Raises:
        ConfigError: there is no linear layer, or what the last one gives are not the network's outputs.
    """
    name = head_name(network)
    if name == "head" and callable(getattr(network, "features", None)):
        found: Tensor = network.features(inputs)  # type: ignore[operator]
        return found
    seen: list[tuple[Tensor, Tensor]] = []
    layer = network.get_submodule(name)
    handle = layer.register_forward_hook(lambda _, given, made: seen.append((given[0], made)))
    try:
        outputs = network(inputs)
    finally:
        handle.remove()
    if len(seen) != 1 or not torch.equal(seen[0][1].nan_to_num(), outputs.nan_to_num()) or seen[0][0].ndim != 2:
        raise ConfigError(
            f"the last linear layer of {type(network).__name__}, '{name}', does not give its outputs [N, classes]; "
            f"{MEND}"
        )
    return seen[0][0]


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
        network: a network that ends in a linear layer, at the parameters that the client received.
        inputs: [N, ...].
        targets: [N], integers below ``classes``.
        bias: whether the head has a bias.
        log_prior: [C], added to the logits before the soft-max.

    Raises:
        ConfigError: there is no example, or fewer inputs than targets.
    """
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ConfigError(f"there are {len(inputs)} inputs for {len(targets)} labels; give one label for each input")
    read = torch.cat([features(network, chunk).double() for chunk in torch.split(inputs, CHUNK)])
    if bias:
        read = torch.cat([read, torch.ones_like(read[:, :1])], dim=1)
    errors = predictions(network, inputs, log_prior)
    errors[torch.arange(len(targets)), targets] -= 1
    means = read.new_zeros(classes, classes * read.shape[1])
    spread = read.new_zeros(classes * read.shape[1])
    seen = torch.zeros(classes, dtype=torch.bool)
    for label in torch.unique(targets).tolist():
        rows = targets == label
        seen[label] = True
        means[label] = (errors[rows].T @ read[rows]).reshape(-1) / rows.sum()
        squares = (errors[rows].square().T @ read[rows].square()).reshape(-1)
        spread += squares - rows.sum() * means[label].square()
    return ClassGradients(means, (spread.clamp_min(0) / len(targets)).sqrt(), seen)
