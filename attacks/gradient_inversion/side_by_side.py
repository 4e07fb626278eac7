"""Inverting Gradients for the single images of many clients at once, in one vectorised search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.optim.lr_scheduler import MultiStepLR

from attacks.images.pixels import Pixels
from attacks.images.priors import total_variation
from privfl.errors import ConfigError
from privfl.validation import check_count


def single_gradients(network: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """The gradient of every example alone: ``[n, *shape]`` for each parameter of ``network``.

    Args:
        inputs: [n, C, H, W], as the network takes them.
        labels: int64 [n].
    """
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    found = vmap(lambda one, label: grad(_loss, argnums=1)(network, weights, one, label))(inputs, labels)
    return [found[name] for name in weights]


def inverting_each(
    network: nn.Module,
    observed: Sequence[Tensor],
    labels: Tensor,
    start: Tensor,
    pixels: Pixels,
    *,
    iterations: int = 4800,
    step: float = 0.1,
    variation: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """Images [n, C, H, W] in [0, 1] and objectives [n], one for each of n gradients of single images.

    Every image is searched for as :func:`~attacks.gradient_inversion.inverting_gradients.inverting_gradients` does with
    one restart: neither its objective nor its Adam depends on the others. Side by side they take a sixth of the time.

    Args:
        network: the model whose gradients were observed, without state between examples.
        observed: ``[n, *shape]`` for each parameter.
        labels: int64 [n].
        start: [n, C, H, W], where the search begins, in the network's inputs.
        variation: τ of the mean absolute differences.

    Raises:
        ConfigError: the tensors do not fit each other or the network, or a number is impossible.
    """
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    expected = [(len(labels), *part.shape) for part in weights.values()]
    if [tuple(part.shape) for part in observed] != expected or len(start) != len(labels):
        raise ConfigError(
            f"there are {len(labels)} labels, {len(start)} starts, and gradients of the shapes "
            f"{[tuple(part.shape) for part in observed]}; give one of each for every image, as {expected}"
        )
    check_count("iterations", iterations, 8)

    def objective(one: Tensor, label: Tensor, seen: list[Tensor]) -> Tensor:
        own = list(grad(_loss, argnums=1)(network, weights, one, label).values())
        along = torch.stack([(a * b).sum() for a, b in zip(own, seen, strict=True)]).sum()
        lengths = [torch.stack([part.square().sum() for part in parts]).sum().sqrt() for parts in (own, seen)]
        value: Tensor = 1 - along / (lengths[0] * lengths[1]) + variation * total_variation(one[None])[0]
        return value

    both = vmap(grad_and_value(objective))
    inputs = start.clone()
    optimiser = torch.optim.Adam([inputs], lr=step)
    schedule = MultiStepLR(optimiser, [iterations * eighths // 8 for eighths in (3, 5, 7)], gamma=0.1)
    best, lowest = inputs.clone(), torch.full((len(labels),), torch.inf, dtype=inputs.dtype)
    for _ in range(iterations):
        slopes, values = both(inputs, labels, list(observed))
        better = values < lowest
        best[better], lowest[better] = inputs[better], values[better]
        inputs.grad = slopes.sign()
        optimiser.step()
        schedule.step()
        inputs.copy_(pixels.box(inputs))
    return pixels.images(best), lowest


def _loss(network: nn.Module, weights: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(functional_call(network, weights, (one[None],)), label[None])
