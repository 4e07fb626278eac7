"""Residual networks with GroupNorm, for images [C, H, W] and for signals [C, L].

* ``resnet8``, ``resnet20``, ``resnet32``: the CIFAR family of He et al. (2016, §4.2), 6n+2 layers, three stages of
  n blocks with 16, 32 and 64 channels and parameter-free shortcuts (their option A).
* ``resnet10``: the ImageNet family (18 layers and up) with one basic block per stage, 64 to 512 channels, projection
  shortcuts (option B) and the 3x3 stem without pooling that is usual for small images.
* ``resnet9``: the same with a pooled stem and two dense layers, as in SuPerFed's code.
* ``fedevg-resnet10``: the variant in FedEvg's code.
* ``resnet1d``: a stem and two blocks over time, five convolutions in all.

BatchNorm is GroupNorm everywhere (see :func:`privfl.models.base.group_norm`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from privfl.models.base import Network, Shape, Size, flat_size, group_norm

Convolution = type[nn.Conv1d] | type[nn.Conv2d]


class BasicBlock(nn.Module):
    """conv, norm, activation, conv, norm, plus shortcut, and (unless ``linear_sum``) the activation after the sum.

    Args:
        channels: input and output channels; when they or the resolution differ, the shortcut is a strided 1x1
            convolution with norm (``project``) or, without parameters, a subsampling padded with zero channels.
        group: channels per group of the GroupNorm, at least.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        stride: int = 1,
        kernel: int = 3,
        convolution: Convolution = nn.Conv2d,
        project: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
        linear_sum: bool = False,
        group: int = 8,
    ) -> None:
        super().__init__()
        inner, outer = channels
        self.conv1 = convolution(inner, outer, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm1 = group_norm(outer, group)
        self.conv2 = convolution(outer, outer, kernel, padding=kernel // 2, bias=False)
        self.norm2 = group_norm(outer, group)
        self.activation, self.linear_sum = activation, linear_sum
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            if project:
                self.shortcut = nn.Sequential(
                    convolution(inner, outer, 1, stride=stride, bias=False), group_norm(outer, group)
                )
            else:
                self.shortcut = Subsample(stride, outer - inner)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> [B, C', .../stride]."""
        residual = self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x)))))
        total: Tensor = residual + self.shortcut(x)
        return total if self.linear_sum else self.activation(total)


class Subsample(nn.Module):
    """Every ``stride``-th position of each spatial dimension, followed by ``channels`` zero channels."""

    def __init__(self, stride: int, channels: int) -> None:
        super().__init__()
        self.stride, self.channels = stride, channels

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> [B, C + channels, .../stride]."""
        space = x.dim() - 2
        x = x[(slice(None), slice(None), *[slice(None, None, self.stride)] * space)]
        return F.pad(x, (*[0, 0] * space, 0, self.channels))


class GlobalAverage(nn.Module):
    """The mean over all positions: [B, C, ...] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> [B, C]."""
        return x.flatten(2).mean(2)


def resnet_cifar(input_shape: Shape, classes: int, *, blocks: int, width: Size = 16) -> Network:
    """The CIFAR family of He et al. (2016): 6·``blocks``+2 layers, ``width``, 2·``width`` and 4·``width`` channels.

    0.27 million parameters for ``blocks=3`` (ResNet-20) and 0.46 million for 5 (ResNet-32), as in their Table 6.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        group_norm(width),
        nn.ReLU(),
    ]
    inner = width
    for stage in range(3):
        outer = width << stage
        for block in range(blocks):
            layers.append(BasicBlock((inner, outer), stride=2 if stage and not block else 1))
            inner = outer
    return Network(nn.Sequential(*layers, GlobalAverage()), nn.Linear(inner, classes))


def resnet8(input_shape: Shape, classes: int, *, width: Size = 16) -> Network:
    """:func:`resnet_cifar` with one block per stage."""
    return resnet_cifar(input_shape, classes, blocks=1, width=width)


def resnet20(input_shape: Shape, classes: int, *, width: Size = 16) -> Network:
    """:func:`resnet_cifar` with three blocks per stage."""
    return resnet_cifar(input_shape, classes, blocks=3, width=width)


def resnet32(input_shape: Shape, classes: int, *, width: Size = 16) -> Network:
    """:func:`resnet_cifar` with five blocks per stage, in place of GRP-FED's "ResNet-30" (30 is not 6n+2)."""
    return resnet_cifar(input_shape, classes, blocks=5, width=width)


def resnet10(input_shape: Shape, classes: int, *, width: Size = 64) -> Network:
    """Stem and four basic blocks with ``width`` to 8·``width`` channels, strides 1, 2, 2, 2, global average pooling."""
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        group_norm(width),
        nn.ReLU(),
    ]
    layers += [BasicBlock(pair, stride=stride, project=True) for pair, stride in _stages(width)]
    return Network(nn.Sequential(*layers, GlobalAverage()), nn.Linear(8 * width, classes))


def resnet9(input_shape: Shape, classes: int, *, width: Size = 64, hidden: Size = 256) -> Network:
    """SuPerFed's ResNet-9, as in its code but for BatchNorm, and with a shortcut in every block.

    A 3x3 convolution of stride 2 to ``width`` channels with 3x3 max pooling, four basic blocks with ``width`` to
    8·``width`` channels and strides 1, 1, 2, 2 (there the first has no shortcut), the mean over positions, ``hidden``
    ReLU units; no biases.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, stride=2, padding=1, bias=False),
        group_norm(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for (pair, _), stride in zip(_stages(width), (1, 1, 2, 2), strict=True):
        layers.append(BasicBlock(pair, stride=stride, project=True))
    layers += [GlobalAverage(), nn.Linear(8 * width, hidden, bias=False), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(hidden, classes, bias=False))


def fedevg_resnet10(input_shape: Shape, classes: int, *, width: Size = 64) -> Network:
    """FedEvg's ResNet-10, as in its code: SiLU, nothing after the sums, no pooling before the head.

    The stem is normalised in groups of 4 channels, the blocks in groups of 2, their output once more in groups of 8.
    Spectral normalisation of the head is the algorithm's business, not the network's. 4,979,914 parameters on MNIST.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        group_norm(width, 4),
        nn.SiLU(),
    ]
    layers += [
        BasicBlock(pair, stride=stride, project=True, activation=F.silu, linear_sum=True, group=2)
        for pair, stride in _stages(width)
    ]
    layers += [group_norm(8 * width), nn.SiLU(), nn.Flatten()]
    values = flat_size(input_shape, 8 * width, [(3, stride, 1) for _, stride in _stages(width)])
    return Network(nn.Sequential(*layers), nn.Linear(values, classes))


def _stages(width: int) -> list[tuple[tuple[int, int], int]]:
    """(input and output channels, stride) of the four stages of a ResNet-10."""
    return [((width, width), 1), *[((width << stage, width << stage + 1), 2) for stage in range(3)]]


def resnet1d(input_shape: Shape, classes: int, *, width: Size = 32) -> Network:
    """GRP-FED's "5-layer 1-D ResNet" for heartbeats [C, L], global average pooling over time.

    The paper fixes the number of convolutions only; ours are a stem of kernel 7 and two blocks of kernel 5, the second
    with stride 2 and 2·``width`` channels, with parameter-free shortcuts so that five is the whole count. Standardise
    the signals: on raw millivolts it learns far more slowly.
    """
    body = nn.Sequential(
        nn.Conv1d(input_shape[0], width, 7, padding=3, bias=False),
        group_norm(width),
        nn.ReLU(),
        BasicBlock((width, width), kernel=5, convolution=nn.Conv1d),
        BasicBlock((width, 2 * width), kernel=5, stride=2, convolution=nn.Conv1d),
        GlobalAverage(),
    )
    return Network(body, nn.Linear(2 * width, classes))
