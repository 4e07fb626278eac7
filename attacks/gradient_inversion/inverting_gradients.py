"""Inverting Gradients: images whose gradient points where the observed one does, by signed Adam and total variation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from attacks.gradient_inversion.attempts import Reconstruction, best_of
from attacks.images.pixels import Pixels
from attacks.images.priors import total_variation
from attacks.observations.gradients import Gradient, batch_gradient, check_gradient, cosine_distance, local_update
from privfl.errors import ConfigError
from privfl.models.base import Shape
from privfl.privacy.door.batch_plans import LocalTraining


def inverting_gradients(
    network: nn.Module,
    observed: Gradient,
    labels: Tensor,
    image_shape: Shape,
    *,
    generator: torch.Generator,
    pixels: Pixels | None = None,
    training: LocalTraining | None = None,
    iterations: int = 4800,
    step: float = 0.1,
    variation: float = 1e-4,
    signed: bool = True,
    restarts: int = 1,
) -> Reconstruction:
    """Minimise ``1 − cos(∇ℓ(x, y), g) + τ·TV(x)`` over images in [0, 1], or the same for several local steps.

    Geiping et al., "Inverting Gradients – How easy is it to break privacy in federated learning?" (NeurIPS 2020): Adam
    on the sign of the gradient, its step ten times smaller after 3/8, 5/8 and 7/8 of the run, pixels projected to what
    [0, 1] allows after every step, and the restart with the lowest objective. Their published code runs 4,800
    iterations with τ = 1e-4 from its command line (1e-1 and no sign from its library).

    Args:
        network: the model whose gradient was observed, at the parameters it was taken at.
        observed: one tensor per parameter: a gradient, or with ``training`` the update w_after − w_before.
        labels: int64 [B], known or inferred from the gradient before.
        image_shape: (C, H, W).
        generator: decides the starts, N(0, 1) in the network's inputs.
        pixels: how the network's inputs are normalised; [0, 1] as they are by default.
        training: the client's local training, if ``observed`` is an update: its steps are unrolled and differentiated
            (:func:`attacks.observations.gradients.local_update`), the FedAvg version of the attack.
        variation: τ of the mean absolute differences.
        restarts: how many starts are tried.

    Raises:
        ConfigError: the observed tensors do not fit the network, there is no label, or a number is impossible.
        NoReconstruction: every restart diverged.
    """
    check_gradient(network, observed)
    if labels.dim() != 1 or not len(labels) or labels.dtype != torch.int64:
        raise ConfigError(f"labels are {labels.dtype} {tuple(labels.shape)}; give int64 [B], one per image")
    if iterations < 8 or restarts < 1:
        raise ConfigError(f"iterations is {iterations} and restarts {restarts}; give at least 8 and 1")
    space = pixels or Pixels((0.0,) * image_shape[0], (1.0,) * image_shape[0])
    like = observed[0]

    def simulated(inputs: Tensor) -> list[Tensor]:
        if training is None:
            return batch_gradient(network, inputs, labels, differentiable=True)
        return local_update(network, inputs, labels, training, differentiable=True)

    def attempt() -> Reconstruction:
        start = torch.randn(len(labels), *image_shape, generator=generator, dtype=like.dtype).to(like.device)
        return _search(simulated, observed, labels, start, space, iterations, step, variation, signed)

    return best_of(attempt, restarts)


def _search(
    simulated: Callable[[Tensor], list[Tensor]],
    observed: Gradient,
    labels: Tensor,
    start: Tensor,
    space: Pixels,
    iterations: int,
    step: float,
    variation: float,
    signed: bool,
) -> Reconstruction:
    inputs = start.requires_grad_()
    optimiser = torch.optim.Adam([inputs], lr=step)
    decays = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = MultiStepLR(optimiser, decays, gamma=0.1)
    best, lowest = inputs.detach().clone(), float("inf")
    for _ in range(iterations):
        value = cosine_distance(simulated(inputs), observed) + variation * total_variation(inputs).mean()
        (gradient,) = torch.autograd.grad(value, inputs)
        if float(value.detach()) < lowest:
            best, lowest = inputs.detach().clone(), float(value.detach())
        inputs.grad = gradient.sign() if signed else gradient
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            inputs.copy_(space.box(inputs))
    return Reconstruction(space.images(best), labels, lowest, iterations)
