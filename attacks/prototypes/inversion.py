"""Reconstruction of images from the prototypes of a run, by five methods, judged against prototypes of other people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from attacks.attack import Attack, Choice, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.images.nulls import image_nulls
from attacks.images.pixels import Pixels, pixels_of, told
from attacks.images.result import ReconstructionResult, image_measures
from attacks.metrics.images import pairwise_mse
from attacks.prototypes.direct_inversion import direct_inversion
from attacks.prototypes.grnn import grnn_inversion
from attacks.prototypes.messages import PrototypeMessage, message_of
from attacks.prototypes.upcnn import decoded, train_upcnn
from attacks.prototypes.vae_inversion import search_latents, train_feature_vae, train_image_vae
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.randomness import torch_stream
from privfl.simulation.transcript import Transcript
from privfl.validation import check_choice, check_count

Method = Literal["upcnn", "vae", "vae-search", "grnn", "direct"]
OTHERS = "others' prototype"
"""The null that reconstructs from a message in which the victims are not."""


@dataclass(frozen=True)
class PrototypeGuess:
    """Images [K, C, H, W] of the classes ``labels`` [K], and what the nulls show in their place."""

    images: Tensor
    labels: Tensor
    nulls: Mapping[str, Tensor]


@dataclass(frozen=True)
class PrototypeInversion(Attack):
    """One image from each prototype that a client sent; ReBaFL, arXiv 2303.06314, §5.6.

    The attacker knows the extractor w + Δw of the client and has public images. Nulls: the mean image, the class mean
    and a random image of the public, and the same inversion of a prototype of equally many *public* images
    ("others' prototype"): what is as good as that shows the class, not the client's people.

    A prototype of n images has no single true image. The judge holds a reconstruction, and every null, to the nearest
    of the victims' images of its class (least MSE), so that all of them profit alike. It needs ``truth["images"]``
    [N, C, H, W] in [0, 1] and ``truth["labels"]`` [N]: what is in the attacked prototypes.

    Args:
        client: whose prototypes are attacked; ``None`` for those of a secure sum.
        method: ``upcnn`` (:mod:`attacks.prototypes.upcnn`), ``vae`` and ``vae-search``
            (:mod:`attacks.prototypes.vae_inversion`: decoder on features, and search through the latents of a VAE on
            images), ``grnn`` (:mod:`attacks.prototypes.grnn`) or ``direct``
            (:mod:`attacks.prototypes.direct_inversion`).
        round: which round, −1 for the last.
        epochs: of the decoder's or VAE's training on the public images.
        iterations: of a search; ``None`` is the method's own default.
        channels: widths of the decoder's blocks.
        seed: of the attacker's own draws.
        pixels: how inputs come from images, for data of one's own (:func:`attacks.images.pixels.pixels_of`).
    """

    name: ClassVar[str] = "prototype-inversion"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(
        ("update", "prototype_sums", "prototype_counts"), public=True, truth=("images", "labels")
    )
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("method", "upcnn", "UpCNN, up-convolutional decoder", "Dosovitskiy and Brox, CVPR 2016"),
        Choice("method", "vae", "VAE on features", "Kingma and Welling, ICLR 2014"),
        Choice("method", "vae-search", "VAE on images, search through its latents", "Kingma and Welling, ICLR 2014"),
        Choice("method", "grnn", "GRNN", "Ren, Deng and Xie, ACM TIST 2022"),
        Choice("method", "direct", "direct inversion", "Mahendran and Vedaldi, CVPR 2015"),
    )
    client: int | None = None
    method: Method = "upcnn"
    round: int = -1
    epochs: int = 50
    iterations: int | None = None
    channels: tuple[int, ...] = (128, 64, 32)
    seed: int = 0
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        check_choice(f"{self.name}'s method", self.method, get_args(Method))
        check_count(f"{self.name}'s epochs", self.epochs)
        if self.iterations is not None:
            check_count(f"{self.name}'s iterations", self.iterations)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> PrototypeGuess:
        """Images from the client's prototypes, from public ones, and the nulls that need no message.

        Raises:
            ConfigError: no prototypes were seen, the public data are no images, or a class that is attacked has
                no public image.
        """
        message, public = message_of(seen, self.client, self.round), auxiliary.need_public()
        pixels = pixels_of(seen.facts.dataset, public.inputs, self.pixels)
        labels = torch.tensor(message.classes, dtype=torch.int64)
        if not len(labels):
            raise ConfigError(f"client {self.client} sent no prototype of any class; attack another client")
        generator = torch_stream(self.seed, "prototype-inversion")
        known = pixels.images(public.inputs)
        nulls = image_nulls(known, public.targets, labels, generator)
        targets = torch.cat([message.prototypes[labels], public_prototypes(message, public, labels, generator)])
        found = self.inverted(message, targets, public, pixels, generator)
        return PrototypeGuess(found[: len(labels)], labels, {**nulls, OTHERS: found[len(labels) :]})

    def inverted(
        self, message: PrototypeMessage, targets: Tensor, public: Records, pixels: Pixels, generator: torch.Generator
    ) -> Tensor:
        """Images [K, C, H, W] in [0, 1] behind prototypes ``targets`` [K, d] of the extractor of ``message``."""
        images, shape = pixels.images(public.inputs), tuple(public.inputs.shape[1:])

        def extract(batch: Tensor) -> Tensor:
            return message.network.features(pixels.inputs(batch))

        steps: dict[str, Any] = {} if self.iterations is None else {"iterations": self.iterations}
        training: dict[str, Any] = {"generator": generator, "epochs": self.epochs, "channels": self.channels}
        if self.method == "upcnn":
            return decoded(train_upcnn(message.features(public.inputs), images, **training), targets)
        if self.method == "vae":
            return decoded(train_feature_vae(message.features(public.inputs), images, **training), targets)
        if self.method == "vae-search":
            return search_latents(extract, train_image_vae(images, **training), targets, **steps)
        if self.method == "grnn":
            return torch.cat([grnn_inversion(extract, t, shape, generator=generator, **steps)[0] for t in targets])
        return direct_inversion(extract, targets, shape, generator=generator, **steps)[0]

    def judge(self, guess: PrototypeGuess, auxiliary: Auxiliary, seconds: float) -> ReconstructionResult:
        """PSNR, SSIM and their kin of every image against the nearest of the victims' images of its class."""
        images, labels = auxiliary.answer("images"), auxiliary.answer("labels")
        shown = {self.name: guess.images, **guess.nulls}
        truths = {name: nearest_of_class(found, guess.labels, images, labels) for name, found in shown.items()}
        measures = {name: image_measures(found, truths[name]) for name, found in shown.items()}
        return ReconstructionResult(
            attack=f"{self.name}, {self.method}",
            primary="psnr",
            metrics=measures[self.name][0],
            nulls={name: measures[name][0] for name in guess.nulls},
            seconds=seconds,
            units=2 * len(guess.images),  # the null that inverts others' prototypes costs as much
            unit="image",
            settings={
                "client": self.client,
                "round": self.round,
                "method": self.method,
                "epochs": self.epochs,
                **told(self.pixels),
            },
            images=guess.images,
            truth=truths[self.name],
            null_images=guess.nulls,
            per_image=measures[self.name][1],
        )


def public_prototypes(message: PrototypeMessage, public: Records, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Prototypes [K, d] of the classes ``labels`` from public samples, as many as the message says (or all there are).

    Raises:
        ConfigError: a class has no public sample.
    """
    found = []
    for label in labels.tolist():
        rows = (public.targets == label).nonzero().flatten()
        if not len(rows):
            raise ConfigError(f"class {label} has no public sample; give public data of all classes that are attacked")
        count = min(len(rows), max(1, round(float(message.counts[label]))))
        chosen = rows[torch.randperm(len(rows), generator=generator)[:count]]
        found.append(message.features(public.inputs[chosen]).mean(0))
    return torch.stack(found)


def nearest_of_class(found: Tensor, classes: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """For each of ``found`` [K, C, H, W] the image of its class with the least MSE, [K, C, H, W].

    Raises:
        ConfigError: a class has no image.
    """
    nearest = []
    for image, label in zip(found, classes.tolist(), strict=True):
        own = images[labels == label]
        if not len(own):
            raise ConfigError(f"the truth has no image of class {label}; give all images behind the prototypes")
        nearest.append(own[int(pairwise_mse(image[None], own).argmin())])
    return torch.stack(nearest)
