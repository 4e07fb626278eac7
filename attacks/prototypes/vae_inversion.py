"""Inversion by variational auto-encoders: an encoder-decoder on features, and a prior on images that a search obeys."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.auxiliary import checked_images
from attacks.images.decoders import Standardised, channels_innermost, doublings, up_decoder
from attacks.images.fitting import drawn_from, fit
from privfl.algorithms.generative.fedcvae import divergence
from privfl.errors import ConfigError


class VariationalDecoder(nn.Module):
    """q(z | h) = N(μ(h), σ²(h)) and a decoder D(z); Kingma and Welling, "Auto-Encoding Variational Bayes" (ICLR 2014).

    Args:
        encoder: maps what is observed [B, ...] to vectors [B, ``width``].
        decoder: maps latents [B, ``latent``] to images in [0, 1].
    """

    def __init__(self, encoder: nn.Module, width: int, latent: int, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder, self.latent = encoder, decoder, latent
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)

    def forward(self, observed: Tensor) -> Tensor:
        """The image at the latent mean, D(μ(h)) [B, C, H, W]."""
        images: Tensor = self.decoder(self.mean(self.encoder(observed)))
        return images

    def sample(self, observed: Tensor, generator: torch.Generator) -> Tensor:
        """Images D(z) [B, C, H, W] with z drawn from q(z | h)."""
        images: Tensor = self.decoder(self._latents(*self._moments(observed), generator))
        return images

    def loss(self, observed: Tensor, images: Tensor, beta: float, generator: torch.Generator) -> Tensor:
        """‖x − D(z)‖² + β·KL(N(μ, σ²) ‖ N(0, I)), each summed over an image, averaged over the batch."""
        mean, log_variance = self._moments(observed)
        drawn = self.decoder(self._latents(mean, log_variance, generator))
        error = (drawn - images).square().flatten(1).sum(1)
        value: Tensor = (error + beta * divergence(mean, log_variance)).mean()
        return value

    def _moments(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.encoder(observed)
        return self.mean(encoded), self.log_variance(encoded)

    def _latents(self, mean: Tensor, log_variance: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + (0.5 * log_variance).exp() * noise


def train_feature_vae(
    features: Tensor,
    images: Tensor,
    *,
    generator: torch.Generator,
    latent: int = 64,
    beta: float = 1.0,
    epochs: int = 50,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    channels: tuple[int, ...] = (128, 64, 32),
    start: VariationalDecoder | None = None,
) -> VariationalDecoder:
    """A VAE from features f(x) [N, d] to their images [N, C, H, W]; attack a prototype by ``vae(P̂[None])``.

    The encoder is the attacked extractor with two linear heads behind its (standardised) features. ``start`` is trained
    further in place, as in :func:`attacks.prototypes.upcnn.train_upcnn`.

    Raises:
        ConfigError: features are not [N, d], images are not in [0, 1], or their numbers differ.
    """
    checked_images(images, "auxiliary images")
    if features.dim() != 2 or len(features) != len(images):
        raise ConfigError(f"features are {tuple(features.shape)} for {len(images)} images; give [N, d], one row each")
    vae = start
    if vae is None:
        width, shape = features.shape[1], tuple(images.shape[1:])
        with drawn_from(generator):
            decoder = up_decoder(latent, shape, channels=channels)
            vae = VariationalDecoder(Standardised(features), width, latent, decoder).to(features.device)
    _fit(vae, features, images, beta, epochs, batch_size, learning_rate, generator)
    return vae


def train_image_vae(
    images: Tensor,
    *,
    generator: torch.Generator,
    latent: int = 64,
    beta: float = 1.0,
    epochs: int = 50,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    channels: tuple[int, ...] = (128, 64, 32),
) -> VariationalDecoder:
    """A VAE on public images [N, C, H, W] in [0, 1], whose decoder is the prior of :func:`search_latents`.

    The encoder halves the image by 3x3 convolutions of stride 2, with the decoder's channels in reverse.

    Raises:
        ConfigError: images are not in [0, 1].
    """
    checked_images(images, "auxiliary images")
    shape = tuple(images.shape[1:])
    halvings = doublings(shape, len(channels))
    layers: list[nn.Module] = []
    inner = shape[0]
    with drawn_from(generator):
        for outer in channels[len(channels) - halvings :][::-1]:
            layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
            inner = outer
        width = inner * (shape[1] >> halvings) * (shape[2] >> halvings)
        encoder = channels_innermost(nn.Sequential(*layers, nn.Flatten()))
        vae = VariationalDecoder(encoder, width, latent, up_decoder(latent, shape, channels=channels))
    vae.to(images.device)
    _fit(vae, images, images, beta, epochs, batch_size, learning_rate, generator)
    return vae


def search_latents(
    extract: Callable[[Tensor], Tensor],
    vae: VariationalDecoder,
    targets: Tensor,
    *,
    iterations: int = 500,
    learning_rate: float = 0.05,
    shrinkage: float = 1e-3,
) -> Tensor:
    """Images [P, C, H, W] of the latents that minimise ‖f(D(z)) − P̂‖² + κ‖z‖², by Adam from z = 0.

    Args:
        extract: the attacked extractor, from images in [0, 1] to features [P, d]; differentiable.
        vae: trained by :func:`train_image_vae`.
        targets: features or prototypes P̂ [P, d]; each is searched for on its own, all at once.
        shrinkage: κ ≥ 0.

    Raises:
        ConfigError: targets are not [P, d], or the extractor's features have another width.
    """
    vae.eval()
    latents = targets.new_zeros(len(targets), vae.latent).requires_grad_()
    width = tuple(extract(vae.decoder(latents)).shape)
    if targets.dim() != 2 or width != tuple(targets.shape):
        raise ConfigError(
            f"targets are {tuple(targets.shape)} but the extractor gives {width}; give one row per target"
        )
    optimiser = torch.optim.Adam([latents], lr=learning_rate)
    for _ in range(iterations):
        features = extract(vae.decoder(latents))
        value = ((features - targets).square().sum(1) + shrinkage * latents.square().sum(1)).sum()
        (latents.grad,) = torch.autograd.grad(value, latents)
        optimiser.step()
    with torch.no_grad():
        images: Tensor = vae.decoder(latents)
    return images


def _fit(
    vae: VariationalDecoder,
    observed: Tensor,
    images: Tensor,
    beta: float,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
) -> None:
    fit(
        vae,
        lambda given, wanted: vae.loss(given, wanted, beta, generator),
        (observed, images),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generator=generator,
    )
