"""DLG and iDLG: dummy images whose gradient is the observed one, found by L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacks.gradient_inversion.attempts import Reconstruction, best_of
from attacks.images.pixels import Pixels
from attacks.observations.gradients import Gradient, batch_gradient, check_gradient, squared_distance
from privfl.errors import ConfigError
from privfl.models.base import Shape


def revealed_label(head_weight_gradient: Tensor) -> int:
    """The label of a single sample from its gradient on the head's weights [classes, features]; iDLG.

    Row c is ``(p_c − 1[c = y])·h``: the row of the label alone points against h, so its sum is the only negative one
    if the features are not negative (after a sigmoid or ReLU). Zhao, Mopuri and Bilen, arXiv 2001.02610.

    Raises:
        ConfigError: the gradient is not a matrix.
    """
    if head_weight_gradient.dim() != 2:
        raise ConfigError(f"the head's gradient is {tuple(head_weight_gradient.shape)}; give [classes, features]")
    return int(head_weight_gradient.sum(1).argmin())


def dlg(
    network: nn.Module,
    observed: Gradient,
    image_shape: Shape,
    *,
    generator: torch.Generator,
    classes: int,
    batch: int = 1,
    labels: Tensor | Sequence[int] | None = None,
    pixels: Pixels | None = None,
    iterations: int = 300,
    attempts: int = 5,
    enough: float = 1e-6,
) -> Reconstruction:
    """Minimise ``Σ_l ‖∇_l ℓ(f(x'), softmax(y')) − g_l‖²`` over dummy images x' and label scores y' by L-BFGS.

    Zhu, Liu and Han, "Deep Leakage from Gradients" (NeurIPS 2019): both start from N(0, 1), learning rate 1, 300
    iterations of up to 20 evaluations. With ``labels`` given it is iDLG, which searches for x' alone
    (:func:`revealed_label` reads the label of a single sample off the gradient). Works on twice differentiable
    untrained networks and small batches; an attempt that diverges or gets stuck above ``enough`` is started again.

    Args:
        network: the model whose gradient was observed, at the parameters it was taken at.
        observed: one tensor per parameter, of the mean cross-entropy of the batch.
        image_shape: (C, H, W).
        generator: decides the starts.
        classes: number of classes.
        batch: B ≥ 1, how many images the gradient is of.
        labels: int64 [B] if they are known.
        pixels: how the network's inputs are normalised; [0, 1] as they are by default.
        attempts: fresh starts at most.
        enough: an objective that is taken for exact.

    Raises:
        ConfigError: the gradient does not fit the network, or the labels the batch.
        NoReconstruction: every attempt diverged.
    """
    check_gradient(network, observed)
    space = pixels or Pixels((0.0,) * image_shape[0], (1.0,) * image_shape[0])
    known = None if labels is None else torch.as_tensor(labels, dtype=torch.int64).to(observed[0].device)
    if known is not None and known.shape != (batch,):
        raise ConfigError(f"labels are {tuple(known.shape)} for a batch of {batch}; give one per image")
    like = observed[0]

    def attempt() -> Reconstruction:
        inputs = torch.randn(batch, *image_shape, generator=generator, dtype=like.dtype).to(like.device)
        scores = torch.randn(batch, classes, generator=generator, dtype=like.dtype).to(like.device)
        searched = [inputs] if known is not None else [inputs, scores]
        for tensor in searched:
            tensor.requires_grad_()
        optimiser = torch.optim.LBFGS(searched, lr=1)

        def objective() -> Tensor:
            targets = known if known is not None else scores.softmax(1)
            return squared_distance(batch_gradient(network, inputs, targets, differentiable=True), observed)

        def closure() -> Tensor:
            value = objective()
            for tensor, gradient in zip(searched, torch.autograd.grad(value, searched), strict=True):
                tensor.grad = gradient
            return value.detach()

        value, before, done = math.inf, math.inf, 0
        while done < iterations:
            value, before, done = float(optimiser.step(closure)), value, done + 1  # type: ignore[no-untyped-call]
            if not math.isfinite(value) or value < enough or value == before:  # diverged, found, or stuck
                break
        value = float(objective().detach())
        found = known if known is not None else scores.detach().argmax(1)
        return Reconstruction(space.images(inputs.detach()), found, value, done)

    return best_of(attempt, attempts, enough)
