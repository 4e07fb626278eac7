"""Networks that draw an image from a vector, for attackers who train one on auxiliary data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.base import Shape


def doublings(image_shape: Shape, most: int) -> int:
    """How often, at most ``most`` times, a side of an image [C, H, W] can be halved with 4 pixels or more left.

    Raises:
        ConfigError: the shape is not (C, H, W).
    """
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ConfigError(f"the image shape is {tuple(image_shape)}; give (channels, height, width)")
    sides = image_shape[1:]
    return max(k for k in range(most + 1) if k == 0 or all(s % 2**k == 0 and s >> k >= 4 for s in sides))


class Standardised(nn.Module):
    """Features [B, d] minus the mean of ``features`` [N, d], divided by their standard deviations.

    A decoder sees numbers of order one whatever the extractor's scale; a feature that never varies passes as 0.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", features.mean(0))
        deviation = features.std(0)
        self.register_buffer("deviation", deviation.where(deviation > 0, 1))

    def forward(self, features: Tensor) -> Tensor:
        """[B, d] -> [B, d]."""
        return (features - self.mean) / self.deviation


def up_decoder(
    width: int, image_shape: Shape, *, hidden: int = 512, channels: tuple[int, ...] = (128, 64, 32)
) -> nn.Sequential:
    """From vectors [B, ``width``] to images [B, C, H, W] in (0, 1).

    A fully-connected layer to ``hidden`` units and one to ``channels[0]`` maps, LeakyReLU(0.2) after each, then blocks
    of nearest-neighbour doubling, 3x3 convolution, BatchNorm and LeakyReLU(0.2), and a 3x3 convolution with a sigmoid.
    32 x 32 starts at 4 x 4 with three blocks, 28 x 28 at 7 x 7 with two, which use the last entries of ``channels``.

    Raises:
        ConfigError: the shape is not (C, H, W), or ``channels`` is empty.
    """
    if not channels:
        raise ConfigError("the decoder's channels are empty; give at least one number")
    blocks = doublings(image_shape, len(channels))
    colours, height, width_out = image_shape
    first, start = channels[0], (height >> blocks, width_out >> blocks)
    layers: list[nn.Module] = [
        nn.Linear(width, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, first * start[0] * start[1]),
        nn.LeakyReLU(0.2),
        nn.Unflatten(1, (first, *start)),
    ]
    inner = first
    for outer in channels[len(channels) - blocks :]:
        layers += [
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(inner, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.LeakyReLU(0.2),
        ]
        inner = outer
    return channels_innermost(nn.Sequential(*layers, nn.Conv2d(inner, colours, 3, padding=1), nn.Sigmoid()))


def channels_innermost(network: nn.Sequential) -> nn.Sequential:
    """``network`` with the weights of its convolutions laid out with channels innermost, in place.

    On a CPU a training step of these decoders takes half to two thirds of the time; the numbers are the same up to
    rounding.
    """
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network
