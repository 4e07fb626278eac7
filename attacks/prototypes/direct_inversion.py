"""Direct optimisation: pixels whose feature comes near what was observed, under a weak prior on images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attacks.images.priors import sixth_power, total_variation
from privfl.errors import ConfigError
from privfl.models.base import Shape


def direct_inversion(
    extract: Callable[[Tensor], Tensor],
    targets: Tensor,
    image_shape: Shape,
    *,
    generator: torch.Generator,
    iterations: int = 2000,
    learning_rate: float = 0.05,
    extremes: float = 1e-2,
    variation: float = 1e-2,
) -> tuple[Tensor, Tensor]:
    """Images that minimise ‖f(x) − P̂‖²/‖P̂‖² + λ_α·mean (x − ½)⁶ + λ_TV·TV(x), by Adam on pixels in [0, 1].

    Mahendran and Vedaldi, "Understanding Deep Image Representations by Inverting Them" (CVPR 2015), with
    :func:`attacks.images.priors.sixth_power` and the anisotropic :func:`attacks.images.priors.total_variation` where
    they have a power β of the isotropic one, and pixels clamped after every step.

    Args:
        extract: the attacked extractor, from images in [0, 1] to features [P, d]; differentiable.
        targets: features or prototypes P̂ [P, d]; each has its own image, all are searched for at once.
        image_shape: (C, H, W).
        generator: decides the start, mid-grey with noise of standard deviation 0.1.

    Returns:
        Images [P, C, H, W] in [0, 1], and ‖f(x) − P̂‖/‖P̂‖ of each, [P].

    Raises:
        ConfigError: targets are not [P, d], or one of them is zero or not finite.
    """
    if targets.dim() != 2:
        raise ConfigError(f"targets are {tuple(targets.shape)}; give prototypes [P, d]")
    norms = targets.norm(dim=1)
    if not bool(((norms > 0) & norms.isfinite()).all()):
        raise ConfigError("a target is zero or not finite; leave absent prototypes out")
    start = torch.randn(len(targets), *image_shape, generator=generator, dtype=targets.dtype)
    pixels = (0.5 + 0.1 * start).clamp(0, 1).to(targets.device).requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=learning_rate)
    for _ in range(iterations):
        apart = (extract(pixels) - targets).square().sum(1) / norms.square()
        value = (apart + extremes * sixth_power(pixels) + variation * total_variation(pixels)).sum()
        (pixels.grad,) = torch.autograd.grad(value, pixels)
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
    images = pixels.detach()
    with torch.no_grad():
        distances = (extract(images) - targets).norm(dim=1) / norms
    return images, distances
