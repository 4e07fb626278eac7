"""Convolutional networks that generate images of a given class, as functions of one flat vector of parameters.

As :mod:`privfl.models.conditional` has perceptrons: nothing keeps parameters of its own, and every image passes alone.
Normalisation is by groups within an image, since a batch's own statistics would mix samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from privfl.errors import ConfigError
from privfl.models.base import Shape, flat_length, group_norm
from privfl.models.conditional import LEAK, ConditionalAdversaries, ConditionalAutoencoder, Vectored

KERNEL = 4
"""Side of every kernel, with stride 2 and padding 1: a convolution halves a side and rounds it down."""
CHANNELS = (1, 1, 2, 4)
"""Output channels of the four convolutions, in widths."""


@cache
def groups_of(channels: int) -> int:
    """The number of groups of :func:`privfl.models.base.group_norm`."""
    return group_norm(channels).num_groups


@dataclass(frozen=True)
class Piece:
    """One tensor of a network: its shape, and ``bound`` of its uniform start in ±bound; ``None`` starts it at 1."""

    shape: tuple[int, ...]
    bound: float | None

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh values [size]."""
        size = math.prod(self.shape)
        if self.bound is None:
            return torch.ones(size, dtype=dtype)
        return self.bound * (2 * torch.rand(size, generator=generator, dtype=dtype) - 1)


@dataclass(frozen=True)
class Pyramid(ABC):
    """Sides and channels that an image goes through, halved up to four times as long as no side falls below 1.

    Args:
        input_shape: (channels, height, width) of an image.
        width: channels of the first convolution.
    """

    input_shape: Shape
    width: int

    def __post_init__(self) -> None:
        if len(self.input_shape) != 3 or min(self.input_shape[1:]) < 2:
            raise ConfigError(
                f"convolutional generators make images of at least two pixels a side, and an input has the shape "
                f"{tuple(self.input_shape)}; take architecture = 'perceptron'"
            )

    @cached_property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """Height and width of the image and after every convolution."""
        found = [(self.input_shape[1], self.input_shape[2])]
        while len(found) <= len(CHANNELS) and min(found[-1]) >= 2:
            found.append((found[-1][0] // 2, found[-1][1] // 2))
        return tuple(found)

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """Channels of the image and after every convolution."""
        return (self.input_shape[0], *(self.width * times for times in CHANNELS[: len(self.sides) - 1]))

    @property
    def top(self) -> Shape:
        """Shape of the smallest picture."""
        return (self.channels[-1], *self.sides[-1])

    @property
    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """The network's tensors in order."""

    @cached_property
    def sizes(self) -> list[int]:
        """Number of parameters of every tensor, in order."""
        return [math.prod(piece.shape) for piece in self.pieces]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]: PyTorch's defaults for these layers; normalisations start as the identity."""
        return torch.cat([piece.new(generator, dtype) for piece in self.pieces])

    def parts(self, parameters: Tensor) -> list[Tensor]:
        """The tensors in ``parameters`` [size], in order."""
        split = torch.split(parameters, self.sizes)
        return [part.view(piece.shape) for part, piece in zip(split, self.pieces, strict=True)]


def linear(inputs: int, outputs: int) -> tuple[Piece, Piece]:
    """Weight and bias of a linear layer."""
    bound = 1 / math.sqrt(inputs)
    return Piece((outputs, inputs), bound), Piece((outputs,), bound)


def normalisation(channels: int) -> tuple[Piece, Piece]:
    """Scale and shift of a group normalisation."""
    return Piece((channels,), None), Piece((channels,), 0.0)


@dataclass(frozen=True)
class Shrinking(Pyramid):
    """Up to four 4x4 convolutions of stride 2, each with GroupNorm and LeakyReLU, and one linear layer.

    Args:
        outputs: width of the linear layer.
        beside: values that enter the linear layer beside the features.
        leak: slope of the LeakyReLU below zero.
    """

    outputs: int = 1
    beside: int = 0
    leak: float = 0.0

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        found: list[Piece] = []
        for inputs, outputs in pairwise(self.channels):
            bound = 1 / math.sqrt(inputs * KERNEL**2)
            found += [Piece((outputs, inputs, KERNEL, KERNEL), bound), *normalisation(outputs)]
        return (*found, *linear(flat_length(self.top) + self.beside, self.outputs))

    def __call__(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """[..., outputs] for ``inputs`` [..., D + beside]: pixels, then what enters the linear layer alone."""
        *layers, weight, bias = self.parts(parameters)
        pixels, beside = torch.split(inputs, [inputs.shape[-1] - self.beside, self.beside], -1)
        values = pixels.reshape(-1, *self.input_shape)
        for kernel, scale, shift in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            values = F.conv2d(values, kernel, stride=2, padding=1)
            values = F.leaky_relu(F.group_norm(values, groups_of(len(scale)), scale, shift), self.leak)
        values = values.reshape(*pixels.shape[:-1], -1)
        return F.linear(torch.cat([values, beside], -1), weight, bias)


@dataclass(frozen=True)
class Growing(Pyramid):
    """The mirror image: a linear layer, and transposed convolutions with GroupNorm and ReLU between them.

    Args:
        inputs: width of what it starts from.
    """

    inputs: int = 1

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        found = [*linear(self.inputs, flat_length(self.top))]
        up = self.channels[::-1]
        for inputs, outputs in pairwise(up):
            bound = 1 / math.sqrt(outputs * KERNEL**2)
            found += [*normalisation(inputs), Piece((inputs, outputs, KERNEL, KERNEL), bound)]
        return (*found, Piece((up[-1],), bound))

    def __call__(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits of the pixels [..., D] for ``inputs`` [..., inputs]."""
        weight, bias, *layers, last = self.parts(parameters)
        values = F.linear(inputs, weight, bias).reshape(-1, *self.top)
        up = zip(layers[::3], layers[1::3], layers[2::3], self.sides[-2::-1], strict=True)
        for scale, shift, kernel, (height, width) in up:
            values = F.relu(F.group_norm(values, groups_of(len(scale)), scale, shift))
            odd = (height - 2 * values.shape[-2], width - 2 * values.shape[-1])
            values = F.conv_transpose2d(values, kernel, stride=2, padding=1, output_padding=odd)
        return (values + last.view(-1, 1, 1)).reshape(*inputs.shape[:-1], -1)


@dataclass(frozen=True)
class ConvolutionalAutoencoder(ConditionalAutoencoder):
    """A conditional VAE of convolutions, as in S. Hahn's thesis: there ``latent`` is 128 and ``hidden`` 64.

    Differs from the thesis's code: GroupNorm for batch normalisation, the encoder sees the class too (beside the
    features), the decoder ends in logits, and images below 16 pixels have fewer than four convolutions.

    Args:
        hidden: channels of the first convolution; the others are those of
            :class:`privfl.models.conditional.ConditionalAutoencoder`.
    """

    @cached_property
    def encoder(self) -> Vectored:
        """From pixels and class to the mean and the logarithm of the variance of z."""
        return Shrinking(self.input_shape, self.hidden, 2 * self.latent, self.classes)

    @cached_property
    def decoder(self) -> Vectored:
        """From z and class to the logits of the pixels."""
        return Growing(self.input_shape, self.hidden, self.latent + self.classes)


@dataclass(frozen=True)
class ConvolutionalAdversaries(ConditionalAdversaries):
    """An AC-GAN (Odena, Olah and Shlens, ICML 2017), as in S. Hahn's thesis: there ``latent`` is 128, ``hidden`` 64.

    The discriminator does not read the class: it gives one logit for real or made, and one for each class. Differs from
    the thesis's code: GroupNorm for batch normalisation, no dropout, PyTorch's usual initial weights for N(0, 0.02), a
    sigmoid after the generator for its tanh, and made images are to have the class that they were made for (there: a
    random one).

    Args:
        hidden: channels of the first convolution; the others are those of
            :class:`privfl.models.conditional.ConditionalAdversaries`.
    """

    @cached_property
    def generator(self) -> Vectored:
        """From z and class to the logits of the pixels."""
        return Growing(self.input_shape, self.hidden, self.latent + self.classes)

    @cached_property
    def discriminator(self) -> Vectored:
        """From pixels to one logit, large for what looks real, and the logits of the classes."""
        return Shrinking(self.input_shape, self.hidden, 1 + self.classes, leak=LEAK)

    def judge(self, discriminator: Tensor, pixels: Tensor, kinds: Tensor) -> Tensor:
        """The logit [...] for real or made; ``kinds`` have no part in it."""
        return self.discriminator(discriminator, pixels)[..., 0]

    def error(self, discriminator: Tensor, pixels: Tensor, kinds: Tensor, real: bool) -> Tensor:
        """Cross-entropy [...] of telling ``pixels`` [..., D] for ``real`` or made, plus that of their class."""
        logits = self.discriminator(discriminator, pixels)
        told = F.softplus(-logits[..., 0] if real else logits[..., 0])
        return told - (kinds * logits[..., 1:].log_softmax(-1)).sum(-1)
