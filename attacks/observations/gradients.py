"""The gradients that gradient inversion compares: of a dummy batch, of several local steps, and as observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.flat_network import Layout, trained_parameters
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_number

Gradient = Sequence[Tensor]
"""One tensor per parameter, in the order of ``named_parameters()``."""
Criterion = Callable[[Tensor, Tensor], Tensor]
"""From logits [B, classes] and labels (int64 [B], or probabilities [B, classes]) to the mean loss."""
CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {
        "cross_entropy": F.cross_entropy,
        "mean_squared_error": F.mse_loss,
        "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    }
)
"""By what public facts call a loss."""


def batch_gradient(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    criterion: Criterion = F.cross_entropy,
    differentiable: bool = False,
) -> list[Tensor]:
    """Gradient of the mean loss of a batch for every parameter of ``network`` that is trained.

    Args:
        inputs: [B, ...], as the network takes them.
        targets: int64 [B] labels, or probabilities [B, classes].
        differentiable: keep the graph, so that a loss on the gradient can be differentiated for inputs and targets.
    """
    parameters = list(trained_parameters(network).values())
    value = criterion(network(inputs), targets)
    return list(torch.autograd.grad(value, parameters, create_graph=differentiable, materialize_grads=True))


def local_update(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    training: LocalTraining,
    *,
    criterion: Criterion = F.cross_entropy,
    differentiable: bool = False,
) -> list[Tensor]:
    """What local SGD adds to the parameters: the epochs of ``training`` unrolled, with batches in the rows' order.

    The attacker cannot know how a client shuffles, so the order of the rows is part of what it has to find, and the
    same in every epoch; with one batch per epoch nothing is lost. Momentum and weight decay as ``torch.optim.SGD``.

    Args:
        inputs: [n, ...], all rows of the client.
        targets: int64 [n].
        training: epochs or steps, batch size, learning rate, momentum, weight decay.
        differentiable: keep the graph through all steps; its memory grows with their number.
    """
    trained = trained_parameters(network)
    names, start = list(trained), [parameter.detach() for parameter in trained.values()]
    current = [parameter.clone().requires_grad_() for parameter in start]
    velocity = [torch.zeros_like(parameter) for parameter in start]
    rows = torch.split(torch.arange(len(inputs)), training.batch_size)
    total = training.steps if training.steps is not None else training.epochs * len(rows)
    for step in range(total):
        batch = rows[step % len(rows)].to(inputs.device)
        outputs = torch.func.functional_call(network, dict(zip(names, current, strict=True)), (inputs[batch],))
        value = criterion(outputs, targets[batch])
        found = torch.autograd.grad(value, current, create_graph=differentiable, materialize_grads=True)
        gradient = [g + training.weight_decay * p for g, p in zip(found, current, strict=True)]
        velocity = [training.momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
        current = [p - training.learning_rate * v for p, v in zip(current, velocity, strict=True)]
        if not differentiable:
            current = [parameter.detach().requires_grad_() for parameter in current]
    return [after - before for after, before in zip(current, start, strict=True)]


def flat_update(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    training: LocalTraining,
    *,
    criterion: Criterion = F.cross_entropy,
) -> Tensor:
    """:func:`local_update` as the one vector [size] that a client would send."""
    parts = local_update(network, inputs, targets, training, criterion=criterion)
    return torch.cat([part.reshape(-1) for part in parts]).detach()


def criterion_of(loss: str) -> Criterion:
    """The mean over a batch of the loss that a transcript's facts call ``loss``.

    Raises:
        ConfigError: it is none that takes one number, or one class, for each output and has no settings.
    """
    if loss not in CRITERIA:
        raise ConfigError(
            f"the loss is {loss}, whose update of public images this attack cannot compute; attack a run whose loss "
            f"is one of {', '.join(CRITERIA)}"
        )
    return CRITERIA[loss]


def as_gradient(network: nn.Module, update: Tensor, learning_rate: float) -> list[Tensor]:
    """The gradient −Δ/η behind an ``update`` Δ [size] of one SGD step; of several, their sum.

    Raises:
        ConfigError: the update does not have the network's size, or η is not positive.
    """
    layout = Layout.of(network)
    if update.shape != (layout.size,):
        raise ConfigError(f"the update is {tuple(update.shape)} but the network has {layout.size} parameters")
    check_number("learning_rate", learning_rate, 0, above=True)
    return layout.views(update / -learning_rate)


def squared_distance(first: Gradient, second: Gradient) -> Tensor:
    """Σ over all parameters of the squared difference, a scalar."""
    return torch.stack([(a - b).square().sum() for a, b in zip(first, second, strict=True)]).sum()


def cosine_distance(first: Gradient, second: Gradient) -> Tensor:
    """1 − ⟨a, b⟩ / (‖a‖‖b‖) over all parameters together, a scalar."""
    pairs = list(zip(first, second, strict=True))
    product = torch.stack([(a * b).sum() for a, b in pairs]).sum()
    norms = [torch.stack([g[side].square().sum() for g in pairs]).sum().sqrt() for side in (0, 1)]
    return 1 - product / (norms[0] * norms[1]).clamp_min(1e-30)


def check_gradient(network: nn.Module, observed: Gradient) -> None:
    """Refuse an observed gradient that does not have one finite tensor per parameter of ``network``.

    Raises:
        ConfigError: numbers or shapes differ, a value is not finite, or all are zero.
    """
    shapes = [tuple(parameter.shape) for parameter in trained_parameters(network).values()]
    found = [tuple(part.shape) for part in observed]
    if shapes != found:
        raise ConfigError(f"the observed gradient has the shapes {found}, the network's parameters {shapes}")
    if not all(bool(part.isfinite().all()) for part in observed):
        raise ConfigError("the observed gradient is not finite; leave this message out")
    if not any(bool(part.any()) for part in observed):
        raise ConfigError("the observed gradient is zero everywhere; it says nothing")
