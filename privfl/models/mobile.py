"""Networks of depthwise-separable convolutions for images [C, H, W], with GroupNorm in place of BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from privfl.models.base import Dropout, Network, Shape, Size, flat_size, group_norm
from privfl.models.residual import GlobalAverage


def convolved(inputs: int, outputs: int, kernel: int, *, stride: int = 1, apart: bool = False) -> nn.Sequential:
    """A convolution that keeps the resolution but for its ``stride``, GroupNorm and SiLU; ``apart``: by channel."""
    groups = inputs if apart else 1
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, group_norm(outputs), nn.SiLU())


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): every channel times a number in 0..1 that all channels' means decide."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.Conv2d(channels, narrow, 1), nn.SiLU(), nn.Conv2d(narrow, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        scaled: Tensor = x * self.scale(x.mean((2, 3), keepdim=True))
        return scaled


class InvertedBlock(nn.Module):
    """MBConv of EfficientNet: widen, convolve by channel, squeeze, narrow; plus the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, widen: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * widen
        self.body = nn.Sequential(
            *([convolved(inputs, wide, 1)] if widen > 1 else []),
            convolved(wide, wide, kernel, stride=stride, apart=True),
            Squeeze(wide, max(1, inputs // 4)),
            nn.Conv2d(wide, outputs, 1, bias=False),
            group_norm(outputs),
        )
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, outputs, H/stride, W/stride]."""
        moved: Tensor = self.body(x)
        return x + moved if self.skips else moved


_STAGES = (
    # widen, channels, blocks, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_b0(input_shape: Shape, classes: int, *, width: Size = 32, dropout: Dropout = 0.1) -> Network:
    """EfficientNet-B0 (Tan and Le 2019, Table 1): 5,288,548 parameters at three channels and 1,000 classes.

    ``width`` is that of the first convolution; all others grow and shrink with it. Without stochastic depth. Drop-out
    before the head is 0.2 in its paper, and 0.1 in AAggFF's experiments on ISIC 2019, which fine-tune published
    weights; here it is trained from the start.
    """
    layers: list[nn.Module] = [convolved(input_shape[0], width, 3, stride=2)]
    inputs = width
    for widen, channels, blocks, stride, kernel in _STAGES:
        for block in range(blocks):
            step = 1 if block else stride
            outputs = max(1, channels * width // 32)
            layers.append(InvertedBlock(inputs, outputs, widen=widen, kernel=kernel, stride=step))
            inputs = outputs
    layers += [convolved(inputs, 40 * width, 1), GlobalAverage(), nn.Dropout(dropout)]
    return Network(nn.Sequential(*layers), nn.Linear(40 * width, classes))


def mobilenet(input_shape: Shape, classes: int, *, width: Size = 32, hidden: Size = 256) -> Network:
    """SuPerFed's MobileNet, as in its code: four depthwise-separable convolutions, all without biases.

    A 3x3 convolution of stride 2 to ``width`` channels; 3x3 by channel (no padding, strides 1, 2, 2, 1) and 1x1 to two,
    four, eight and sixteen times as many channels, each followed by GroupNorm (BatchNorm there) and ReLU; the mean over
    positions; ``hidden`` ReLU units.
    """
    flat_size(input_shape, 1, [(3, 2, 1), (3, 1, 0), (3, 2, 0), (3, 2, 0), (3, 1, 0)])
    layers: list[nn.Module] = [nn.Conv2d(input_shape[0], width, 3, 2, 1, bias=False), group_norm(width), nn.ReLU()]
    for stage, stride in enumerate((1, 2, 2, 1)):
        inputs, outputs = width << stage, width << stage + 1
        layers += [nn.Conv2d(inputs, inputs, 3, stride, groups=inputs, bias=False), group_norm(inputs), nn.ReLU()]
        layers += [nn.Conv2d(inputs, outputs, 1, bias=False), group_norm(outputs), nn.ReLU()]
    layers += [GlobalAverage(), nn.Linear(16 * width, hidden, bias=False), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(hidden, classes, bias=False))
