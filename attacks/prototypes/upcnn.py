"""UpCNN: a decoder, trained on public images, that draws the image behind a feature or a prototype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.auxiliary import checked_images
from attacks.images.decoders import Standardised, up_decoder
from attacks.images.fitting import drawn_from, fit
from privfl.errors import ConfigError


def train_upcnn(
    features: Tensor,
    images: Tensor,
    *,
    generator: torch.Generator,
    epochs: int = 50,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    hidden: int = 512,
    channels: tuple[int, ...] = (128, 64, 32),
    start: nn.Module | None = None,
) -> nn.Module:
    """A decoder g from features [B, d] to images, minimising E‖x − g(f(x))‖²; its optimum is the mean E[x | f(x)].

    Dosovitskiy and Brox, "Inverting Visual Representations with Convolutional Networks" (CVPR 2016). There AlexNet's
    features go through three layers of 4096 units and five 5x5 up-convolutions; here
    :func:`attacks.images.decoders.up_decoder` behind standardised features, for images of 28 or 32 pixels. Attack a
    prototype P̂ by ``decoded(decoder, P̂[None])``.

    Args:
        features: f(x) [N, d] of public images under the extractor that made what is attacked.
        images: those images [N, C, H, W], in [0, 1].
        generator: decides the initial weights and the batches.
        start: a decoder from an earlier call, which is trained further in place instead of a new one (for instance
            when only the extractor has changed a little).

    Raises:
        ConfigError: features are not [N, d], images are not in [0, 1], or their numbers differ.
    """
    checked_images(images, "auxiliary images")
    if features.dim() != 2 or len(features) != len(images):
        raise ConfigError(f"features are {tuple(features.shape)} for {len(images)} images; give [N, d], one row each")
    decoder = start
    if decoder is None:
        with drawn_from(generator):
            body = up_decoder(features.shape[1], tuple(images.shape[1:]), hidden=hidden, channels=channels)
        decoder = nn.Sequential(Standardised(features), body).to(features.device)

    def loss(given: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(decoder(given), wanted)

    fit(
        decoder,
        loss,
        (features, images),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generator=generator,
    )
    return decoder


def decoded(decoder: nn.Module, features: Tensor) -> Tensor:
    """Images [B, C, H, W] in [0, 1] that ``decoder`` draws from features or prototypes [B, d], without a gradient."""
    decoder.eval()
    with torch.no_grad():
        images: Tensor = decoder(features)
    return images
