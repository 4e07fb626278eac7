"""Networks that generate inputs of a given class, as functions of one flat vector of parameters.

They hold no parameters of their own, so that clients on several threads may use one of them side by side, and so that
a federated algorithm can keep, send and average the vector [size] beside the task's own model. Every layer is linear
and sees the samples of a batch one by one; inputs of any shape are flattened, and classes enter as one-hot rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from privfl.models.base import Shape, flat_length

LEAK = 0.2
"""Slope of the discriminator's LeakyReLU below zero, as in DCGAN (Radford et al., ICLR 2016)."""


@dataclass(frozen=True)
class Perceptron:
    """Linear layers of ``widths`` from the first to the last, with LeakyReLU of slope ``leak`` between them.

    The vector holds, layer by layer, the weights [outputs, inputs] row by row and the bias [outputs].
    """

    widths: tuple[int, ...]
    leak: float = 0.0

    @cached_property
    def sizes(self) -> list[int]:
        """Number of parameters of every weight and bias, in order."""
        return [size for inputs, outputs in pairwise(self.widths) for size in (inputs * outputs, outputs)]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]: uniform in ±1/√(inputs of the layer), PyTorch's default for linear layers."""
        bounds = [1 / math.sqrt(inputs) for inputs in self.widths[:-1] for _ in range(2)]
        drawn = [2 * torch.rand(size, generator=generator, dtype=dtype) - 1 for size in self.sizes]
        return torch.cat([bound * part for bound, part in zip(bounds, drawn, strict=True)])

    def __call__(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs [..., last width] for ``inputs`` [..., first width] under ``parameters`` [size]."""
        parts = torch.split(parameters, self.sizes)
        values = inputs
        for layer, (weight, bias) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            if layer:
                values = F.leaky_relu(values, self.leak)
            values = F.linear(values, weight.view(len(bias), -1), bias)
        return values


class Vectored(Protocol):
    """A network whose parameters are one vector."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]."""

    def __call__(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs [..., out] for ``inputs`` [..., in] under ``parameters`` [size]."""


class Generator(Protocol):
    """What can be trained as one vector and then asked for inputs of a class."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]."""

    def generate(self, parameters: Tensor, latent: Tensor, kinds: Tensor) -> Tensor:
        """Logits of the pixels [n, pixels] for ``latent`` [n, latent] and one-hot classes ``kinds`` [n, classes]."""


@dataclass(frozen=True)
class ConditionalAutoencoder:
    """Encoder q(z | x, y) and decoder p(x | z, y) of a conditional VAE (Sohn, Lee and Yan, NeurIPS 2015).

    Both have one hidden layer of ReLU units. The vector holds the encoder's parameters, then the decoder's.

    Args:
        input_shape: shape of one input without the batch.
        classes: number of classes.
        latent: width of z.
        hidden: hidden units of each.
    """

    input_shape: Shape
    classes: int
    latent: int
    hidden: int

    @cached_property
    def encoder(self) -> Vectored:
        """From pixels and class to the mean and the logarithm of the variance of z."""
        return Perceptron((flat_length(self.input_shape) + self.classes, self.hidden, 2 * self.latent))

    @cached_property
    def decoder(self) -> Vectored:
        """From z and class to the logits of the pixels."""
        return Perceptron((self.latent + self.classes, self.hidden, flat_length(self.input_shape)))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.encoder.size + self.decoder.size

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]."""
        return torch.cat([self.encoder.new(generator, dtype), self.decoder.new(generator, dtype)])

    def parts(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's and the decoder's parameters out of ``parameters`` [size]."""
        encoder, decoder = torch.split(parameters, [self.encoder.size, self.decoder.size])
        return encoder, decoder

    def encode(self, encoder: Tensor, pixels: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance [..., latent] of z under the encoder's own parameters.

        Args:
            encoder: the first of :meth:`parts`.
            pixels: [..., D].
            kinds: one-hot classes [..., classes].
        """
        outputs = self.encoder(encoder, torch.cat([pixels, kinds], -1))
        mean, log_variance = torch.split(outputs, self.latent, -1)
        return mean, log_variance

    def decode(self, decoder: Tensor, latent: Tensor, kinds: Tensor) -> Tensor:
        """Logits of the pixels [..., D] under the decoder's own parameters, the second of :meth:`parts`."""
        return self.decoder(decoder, torch.cat([latent, kinds], -1))

    def generate(self, parameters: Tensor, latent: Tensor, kinds: Tensor) -> Tensor:
        """Logits of the pixels [..., D] for ``latent`` [..., latent] and one-hot ``kinds`` [..., classes]."""
        return self.decode(self.parts(parameters)[1], latent, kinds)


@dataclass(frozen=True)
class ConditionalAdversaries:
    """Generator G(z, y) and discriminator D(x | y) of a conditional GAN (Mirza and Osindero, 2014).

    One hidden layer each: ReLU units in the generator, LeakyReLU(0.2) units in the discriminator, which ends in one
    logit. The vector holds the generator's parameters, then the discriminator's.

    Args:
        input_shape: shape of one input without the batch.
        classes: number of classes.
        latent: width of z.
        hidden: hidden units of each.
    """

    input_shape: Shape
    classes: int
    latent: int
    hidden: int

    @cached_property
    def generator(self) -> Vectored:
        """From z and class to the logits of the pixels."""
        return Perceptron((self.latent + self.classes, self.hidden, flat_length(self.input_shape)))

    @cached_property
    def discriminator(self) -> Vectored:
        """From pixels and class to one logit, large for what looks real."""
        return Perceptron((flat_length(self.input_shape) + self.classes, self.hidden, 1), LEAK)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.generator.size + self.discriminator.size

    def new(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Fresh parameters [size]."""
        return torch.cat([self.generator.new(generator, dtype), self.discriminator.new(generator, dtype)])

    def parts(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The generator's and the discriminator's parameters out of ``parameters`` [size]."""
        generator, discriminator = torch.split(parameters, [self.generator.size, self.discriminator.size])
        return generator, discriminator

    def make(self, generator: Tensor, latent: Tensor, kinds: Tensor) -> Tensor:
        """Logits of the pixels [..., D] under the generator's own parameters, the first of :meth:`parts`."""
        return self.generator(generator, torch.cat([latent, kinds], -1))

    def judge(self, discriminator: Tensor, pixels: Tensor, kinds: Tensor) -> Tensor:
        """Logits [...] of ``pixels`` [..., D] under the discriminator's own parameters, the second of :meth:`parts`."""
        return self.discriminator(discriminator, torch.cat([pixels, kinds], -1)).squeeze(-1)

    def error(self, discriminator: Tensor, pixels: Tensor, kinds: Tensor, real: bool) -> Tensor:
        """Cross-entropy [...] of telling ``pixels`` [..., D] for ``real``, or else for made."""
        logit = self.judge(discriminator, pixels, kinds)
        return F.softplus(-logit if real else logit)

    def generate(self, parameters: Tensor, latent: Tensor, kinds: Tensor) -> Tensor:
        """Logits of the pixels [..., D] for ``latent`` [..., latent] and one-hot ``kinds`` [..., classes]."""
        return self.make(self.parts(parameters)[0], latent, kinds)
