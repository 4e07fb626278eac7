"""GRNN adapted to prototypes: a generator, trained on nothing but the observed prototype, whose images explain it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.images.decoders import doublings
from attacks.images.fitting import drawn_from
from attacks.images.priors import squared_variation
from privfl.errors import ConfigError
from privfl.models.base import Shape

NOISE = 128
"""Width of the generator's fixed input v ~ N(0, I)."""


class _UpBlock(nn.Module):
    """Nearest-neighbour doubling, 3x3 convolution, BatchNorm, gated linear unit."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inner, 2 * outer, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2 * outer)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inner, H, W] -> [B, outer, 2H, 2W]."""
        return F.glu(self.norm(self.convolution(F.interpolate(x, scale_factor=2.0, mode="nearest"))), dim=1)


def generator_network(image_shape: Shape, base: int = 64) -> nn.Sequential:
    """GRNN's image branch: v [B, 128] -> images [B, C, H, W] in (0, 1).

    A transposed convolution to ``base``·2^k maps of the smallest size (4 x 4 for 32 pixels, 7 x 7 for 28), a gated
    linear unit, k up-blocks that halve the channels, and a last doubling with a 3x3 convolution and a sigmoid.

    Raises:
        ConfigError: the image is not (C, H, W) or cannot be halved once with 4 pixels left.
    """
    total = doublings(image_shape, 8)
    if not total:
        raise ConfigError(
            f"images of {image_shape[1]} x {image_shape[2]} cannot be halved; pad them to even sides of 8"
        )
    blocks = total - 1
    start = (image_shape[1] >> total, image_shape[2] >> total)
    channels = base << blocks
    layers: list[nn.Module] = [
        nn.Unflatten(1, (NOISE, 1, 1)),
        nn.ConvTranspose2d(NOISE, channels, start, bias=False),
        nn.GLU(1),
    ]
    inner = channels // 2
    for _ in range(blocks):
        layers.append(_UpBlock(inner, inner // 2))
        inner //= 2
    return nn.Sequential(
        *layers,
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(inner, image_shape[0], 3, padding=1),
        nn.Sigmoid(),
    )


def grnn_inversion(
    extract: Callable[[Tensor], Tensor],
    target: Tensor,
    image_shape: Shape,
    *,
    generator: torch.Generator,
    images: int = 1,
    iterations: int = 1000,
    learning_rate: float = 1e-4,
    momentum: float = 0.99,
    variation: float = 1e-3,
    base: int = 64,
) -> tuple[Tensor, float]:
    """Images whose mean feature explains one prototype, drawn by a generator that is trained on that prototype alone.

    Minimises ``‖δ‖² + ‖δ‖₂ + λ·TV`` with ``δ = (1/b)·Σ_k f(G(v_k)) − P̂`` by RMSprop. Ren, Deng and Xie, "GRNN:
    Generative Regression Neural Network" (ACM TIST 2022), match gradients and generate labels too; here the class is
    known and δ is a difference of features. What their paper calls a Wasserstein distance is the norm ‖δ‖₂ in their
    code, and here. Both terms are divided by ‖P̂‖² and ‖P̂‖, so that λ means the same under every extractor.

    Args:
        extract: the attacked extractor, from images in [0, 1] to features [b, d]; differentiable.
        target: one feature or prototype P̂ [d].
        generator: decides the initial weights and v.
        images: b ≥ 1, how many images share the prototype; 1 seeks a mode.
        variation: λ of :func:`attacks.images.priors.squared_variation`; 1e-3 for LeNet and 1e-6 for ResNet-18 in the
            paper.

    Returns:
        Images [b, C, H, W] in [0, 1] with the lowest objective, and ‖δ‖/‖P̂‖ there.

    Raises:
        ConfigError: the target is not [d], is zero or not finite, or a number is impossible.
    """
    norm = float(target.norm()) if target.dim() == 1 else float("nan")
    if not 0 < norm < float("inf"):
        raise ConfigError(
            f"the target is {tuple(target.shape)} with norm {norm:g}; give one finite vector that is not 0"
        )
    if images < 1 or iterations < 1:
        raise ConfigError(f"images is {images} and iterations {iterations}; give at least 1 of each")
    with drawn_from(generator):
        network = generator_network(image_shape, base).to(target.device, target.dtype)
    noise = torch.randn(images, NOISE, generator=generator, dtype=target.dtype).to(target.device)
    parameters = list(network.parameters())
    optimiser = torch.optim.RMSprop(parameters, lr=learning_rate, momentum=momentum)
    best, lowest, distance = None, float("inf"), float("inf")
    for _ in range(iterations):
        drawn = network(noise)
        apart = (extract(drawn).mean(0) - target).norm() / norm
        value = apart.square() + apart + variation * squared_variation(drawn).mean()
        if float(value.detach()) < lowest:
            best, lowest, distance = drawn.detach(), float(value.detach()), float(apart.detach())
        for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
            parameter.grad = gradient
        optimiser.step()
    if best is None:
        raise ConfigError("the generator's objective was never finite; lower the learning rate")
    return best.clone(), distance
