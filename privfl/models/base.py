"""What every network here is made of: a body that computes features and a head that reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.opacus_parts import if_loaded

Shape = tuple[int, ...]
"""Shape of one input without the batch: (D,) values, (C, L) signal, (C, H, W) image, (L,) token ids."""

Size = Annotated[int, Field(ge=1)]
Sizes = tuple[Size, ...]
Padding = Annotated[int, Field(ge=0)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Network(nn.Module):
    """``head(features(x))``: a body from inputs [B, ...] to features [B, ``feature_dim``], and a head on top of them.

    Every model of privfl is one, and so is any pair of modules of your own. Algorithms that personalise or calibrate
    take it apart: the head's parameters are those whose names start with ``head.``. A body must treat the samples of
    a batch one by one (GroupNorm instead of BatchNorm), keep no changing buffers and use no in-place activation;
    then it serves per-sample gradients, stacked clients (``torch.func.vmap``) and empty batches alike.

    Args:
        body: maps inputs [B, ...] to features [B, feature_dim].
        head: maps features to logits [B, classes].
        feature_dim: width of the features; by default what a linear head takes.

    Raises:
        ConfigError: ``feature_dim`` is left out and the head is not an ``nn.Linear``.
    """

    def __init__(self, body: nn.Module, head: nn.Module, feature_dim: int | None = None) -> None:
        super().__init__()
        if feature_dim is None:
            if not isinstance(head, nn.Linear):
                raise ConfigError(f"the head is {type(head).__name__}, not Linear; give its feature_dim")
            feature_dim = head.in_features
        self.body = body
        self.head = head
        self.feature_dim = feature_dim

    def features(self, inputs: Tensor) -> Tensor:
        """Features [B, ``feature_dim``] of ``inputs`` [B, ...]."""
        features: Tensor = self.body(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, classes] of ``inputs`` [B, ...]."""
        logits: Tensor = self.head(self.features(inputs))
        return logits


def group_norm(channels: int, group: int = 8) -> nn.GroupNorm:
    """GroupNorm over groups of at least ``group`` channels (the smallest such groups of equal size, else one group).

    A group is never a single channel (unless there is only one): on features without spatial extent, or pooled down to
    one position, such a group would be normalised to exactly zero. The default of 8 gives the 2 groups that
    Hsieh et al. (2020) use in federated ResNets at 16 channels, and grows the number of groups with the width.
    """
    groups = next(g for g in range(max(1, channels // group), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


def flat_size(input_shape: Shape, channels: int, windows: Sequence[tuple[int, int, int]]) -> int:
    """Values per image after ``windows`` of (kernel, stride, padding), the last with ``channels`` output channels.

    Raises:
        ConfigError: the image [C, H, W] is too small, so that nothing is left of it.
    """

    def left(size: int) -> int:
        for kernel, stride, padding in windows:
            size = max(0, (size + 2 * padding - kernel) // stride + 1)
            if size == 0:
                return 0
        return size

    height, width = input_shape[1:]
    values = channels * left(height) * left(width)
    if values == 0:
        least = next(size for size in count(1) if left(size))
        raise ConfigError(f"images of {height} x {width} are too small; give at least {least} x {least}")
    return values


def flat_length(input_shape: Shape) -> int:
    """Values per input."""
    return math.prod(input_shape)


def initialise(network: nn.Module, weight: Callable[[Tensor], Tensor], *, zero_bias: bool) -> None:
    """Draw the weights of all linear and convolutional layers by ``weight``; with ``zero_bias`` set biases to zero.

    Normalisation, embedding and recurrent layers keep their own initialisation.
    """
    recurrent = if_loaded("RNNLinear")
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and not isinstance(module, recurrent):
            weight(module.weight)
            if zero_bias and module.bias is not None:
                nn.init.zeros_(module.bias)
