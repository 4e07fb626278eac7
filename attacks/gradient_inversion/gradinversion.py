"""GradInversion without batch statistics: several noisy searches that are pulled towards each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attacks.gradient_inversion.attempts import Reconstruction, best_of
from attacks.images.pixels import Pixels
from attacks.images.priors import total_variation
from attacks.observations.gradients import Gradient, batch_gradient, check_gradient, squared_distance
from privfl.errors import ConfigError
from privfl.models.base import Shape


def revealed_labels(head_weight_gradient: Tensor, batch: int) -> Tensor:
    """The ``batch`` classes with the smallest entry ``min_k ∂ℓ/∂W_ck`` of the head's gradient, int64, ascending.

    Right for images of different classes and features that are not negative; a class that occurs twice is counted once.

    Raises:
        ConfigError: the gradient is not a matrix, or there are fewer classes than images.
    """
    if head_weight_gradient.dim() != 2 or not 1 <= batch <= len(head_weight_gradient):
        raise ConfigError(
            f"the head's gradient is {tuple(head_weight_gradient.shape)} for a batch of {batch}; give "
            "[classes, features] and at most as many images as classes"
        )
    return head_weight_gradient.amin(1).topk(batch, largest=False).indices.sort().values


def gradinversion(
    network: nn.Module,
    observed: Gradient,
    labels: Tensor,
    image_shape: Shape,
    *,
    generator: torch.Generator,
    pixels: Pixels | None = None,
    seeds: int = 1,
    iterations: int = 20_000,
    step: float = 0.1,
    warm_up: int = 50,
    gradient_weight: float = 1e-4,
    variation: float = 1e-4,
    norm_weight: float = 1e-6,
    group_weight: float = 0.0,
    noise: float = 0.01,
    attempts: int = 1,
) -> Reconstruction:
    """Minimise ``α·Σ_l ‖∇_l − g_l‖² + α_TV·TV(x) + α_2·‖x‖² + α_grp·‖x − x̄‖²`` by Adam with noise after each step.

    Yin et al., "See through Gradients: Image Batch Recovery via GradInversion" (CVPR 2021), without their term on the
    BatchNorm statistics of the victim's batch: the models here have none, and nobody should be given them. x̄ is the
    mean over ``seeds`` searches that run side by side (their registration of images before averaging is left out). The
    step rises linearly over ``warm_up`` iterations and falls by a cosine to 0; Gaussian noise of ``noise`` times the
    current step is added (0.2 in the paper, 0.01 in later code), pixels are projected to [0, 1]. The weights are those
    of later code, the 20,000 iterations the paper's.

    Args:
        network: the model whose gradient was observed, at the parameters it was taken at.
        observed: one tensor per parameter, of the mean cross-entropy of the batch.
        labels: int64 [B], known or from :func:`revealed_labels`.
        image_shape: (C, H, W).
        generator: decides starts and noise.
        pixels: how the network's inputs are normalised; [0, 1] as they are by default.
        group_weight: α_grp ≥ 0; needs at least two ``seeds``.
        attempts: fresh starts at most; the one with the lowest distance of gradients is returned.

    Returns:
        The images of the seed whose gradient is nearest; the objective is that distance ``Σ_l ‖∇_l − g_l‖²``.

    Raises:
        ConfigError: the gradient does not fit the network, there is no label, or a number is impossible.
        NoReconstruction: every attempt diverged.
    """
    check_gradient(network, observed)
    if labels.dim() != 1 or not len(labels) or labels.dtype != torch.int64:
        raise ConfigError(f"labels are {labels.dtype} {tuple(labels.shape)}; give int64 [B], one per image")
    if seeds < 1 or iterations < 1 or (group_weight > 0 and seeds < 2):
        raise ConfigError(
            f"iterations is {iterations}, seeds {seeds} with group_weight {group_weight:g}; give at least 1 of each, "
            "and 2 seeds if they are pulled together"
        )
    space = pixels or Pixels((0.0,) * image_shape[0], (1.0,) * image_shape[0])
    like = observed[0]

    def distance(inputs: Tensor) -> Tensor:
        return squared_distance(batch_gradient(network, inputs, labels, differentiable=True), observed)

    def attempt() -> Reconstruction:
        shape = (seeds, len(labels), *image_shape)
        inputs = torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device).requires_grad_()
        optimiser = torch.optim.Adam([inputs], lr=step)
        for number in range(iterations):
            rate = step * scheduled(number, iterations, warm_up)
            optimiser.param_groups[0]["lr"] = rate
            mean = inputs.detach().mean(0)
            gradients = []
            for one in inputs.detach():  # one graph at a time: memory does not grow with the seeds
                searched = one.clone().requires_grad_()
                value = gradient_weight * distance(searched) + variation * total_variation(searched).mean()
                value = value + norm_weight * searched.square().sum()
                if group_weight:
                    value = value + group_weight * (searched - mean).square().sum()
                gradients.append(torch.autograd.grad(value, searched)[0])
            inputs.grad = torch.stack(gradients)
            optimiser.step()
            with torch.no_grad():
                drawn = torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)
                inputs.copy_(space.box(inputs + noise * rate * drawn))
        distances = [float(distance(one).detach()) for one in inputs.detach()]
        finite = [value if math.isfinite(value) else math.inf for value in distances]
        chosen = min(range(seeds), key=finite.__getitem__)
        return Reconstruction(space.images(inputs.detach()[chosen]), labels, distances[chosen], iterations)

    return best_of(attempt, attempts)


def scheduled(number: int, iterations: int, warm_up: int) -> float:
    """The factor of the step in iteration ``number`` from 0: a linear rise over ``warm_up``, then half a cosine."""
    if number < warm_up:
        return (number + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (number - warm_up) / max(iterations - warm_up, 1)))
