"""A server that magnifies the gradients of one class at a time, so that large batches come back class by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.attack import Attack, Needs, Power
from attacks.auxiliary import Auxiliary
from attacks.crafted_broadcast import crafting_server
from attacks.gradient_inversion.inversion import OTHERS, check_first_layer, local_steps, mean_gradient, one_of_each
from attacks.gradient_inversion.spear import spear
from attacks.images.nulls import image_nulls
from attacks.images.pixels import Pixels, pixels_of, told
from attacks.images.result import ReconstructionResult, reconstruction_result
from attacks.observations.gradients import Gradient, flat_update
from attacks.observations.messages import single_update, training_behind
from privfl.algorithms.base import Algorithm
from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.models.flat_network import FlatNetwork, Layout
from privfl.privacy.accounting.release import Observer
from privfl.randomness import torch_stream
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count

ABSENT = 1e-3
"""A class is there if its bias is pulled at by more than so much of what the others are."""
SURE = 1000.0
"""The bias of all classes but one: their examples are certain to be none of that one."""


def fishing_server(algorithm: Algorithm) -> Algorithm:
    """``algorithm`` run by a server whose broadcast of round t makes every gradient vanish but those of class t mod C.

    Wen, Geiping, Fowl, Goldblum and Goldstein, "Fishing for User Data in Large-Batch Federated Learning via Gradient
    Magnification" (ICML 2022), their class fishing: all rows of the head but one are zero and their biases large, so
    that an example of another class pulls at nothing below the head. Their feature fishing, which goes on to single
    examples, is not here. The server's own model learns nothing meanwhile.

    Raises:
        ConfigError: at the first broadcast: the head is not fully connected with a bias.
    """

    def craft(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        weight, bias = head_parts(network.module, honest)
        rest = torch.arange(len(bias)) != number % len(bias)
        weight[rest], bias[rest], bias[~rest] = 0.0, SURE, 0.0
        return honest

    def nothing(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        return honest.zero_()

    return crafting_server(algorithm, craft, "Fishing", nothing)


def head_parts(network: nn.Module, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [C, h] and bias [C] of the last layer as views into ``flat`` [size].

    Raises:
        ConfigError: the network does not end with a fully connected layer with a bias.
    """
    views = Layout.of(network).views(flat)
    if len(views) < 2 or (views[-2].dim(), views[-1].dim()) != (2, 1) or len(views[-2]) != len(views[-1]):
        raise ConfigError(
            f"{type(network).__name__} does not end with a fully connected layer with a bias; attack another network, "
            "such as privfl.models.Network(body, nn.Linear(width, classes))"
        )
    return views[-2], views[-1]


@dataclass(frozen=True)
class FishedImages:
    """Images [at least B, C, H, W], how many were read, and what the nulls show in their place."""

    images: Tensor
    found: int
    nulls: Mapping[str, Tensor]


@dataclass(frozen=True)
class Fishing(Attack):
    """The images behind one client's messages, or behind sums, of C rounds in which each class was fished for.

    A round's gradient is that of a batch of the examples of one class, which SPEAR
    (:mod:`attacks.gradient_inversion.spear`) reads although the whole batch would be too large for it; the gradient's
    rank tells how many there are, and the gradient of the head's bias whether there are any. Clients take one step a
    round on all of their images. Nulls: the mean image, class means and random images of the public, and the same
    reading of updates of public images.

    The judge needs ``truth["images"]`` [B, C, H, W] in [0, 1].

    Args:
        client: whose images; ``None`` for everybody's, from sums.
        batch: B, how many images there are.
        largest: images of one class that are searched for at most; of a class with more, none comes back.
        seed: of the attacker's own draws.
        pixels: how inputs come from images, for data of one's own (:func:`attacks.images.pixels.pixels_of`).
    """

    name: ClassVar[str] = "fishing"
    observer: ClassVar[Observer] = "server"
    power: ClassVar[Power] = "active"
    staged_rounds: ClassVar[int | None] = 10
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("images",))
    client: int | None = 0
    batch: int = 1
    largest: int = 24
    seed: int = 0
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s batch", self.batch)
        check_count(f"{self.name}'s largest", self.largest)

    def staged(self, task: Task, algorithm: Algorithm, auxiliary: Auxiliary) -> tuple[Task, Algorithm]:
        """The same run before a server that fishes."""
        return task, fishing_server(algorithm)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> FishedImages:
        """What the rounds' messages hold, and what those of public images would hold.

        Raises:
            ConfigError: there is no message, its broadcast fishes for nothing, or SPEAR cannot read the first layer.
        """
        public = auxiliary.need_public()
        pixels = pixels_of(seen.facts.dataset, public.inputs, self.pixels)
        generator = torch_stream(self.seed, "fishing")
        known = pixels.images(public.inputs)
        shape = tuple(public.inputs.shape[1:])
        counts, shown, blind = [], [], []
        for moment in list(seen)[: seen.facts.classes]:
            sent = single_update(moment, self.client)
            network = seen.network(moment.broadcast["parameters"])
            label = fished_class(network, moment.broadcast["parameters"])
            training = training_behind(seen.facts, moment.number, None, self.batch)  # one step on all images
            steps = local_steps(training, self.batch)
            gradient = mean_gradient(network, sent, training, steps)
            pull = -gradient[-1]
            if float(pull[label]) <= ABSENT * float(pull.abs().max()):
                continue
            check_first_layer(network, gradient, shape)
            inputs = self._read(network, gradient, generator).to(known)
            shown.append(pixels.images(inputs.view(-1, *shape)))
            counts.append((label, len(inputs)))
            chosen = one_of_each(public, torch.full((len(inputs),), label), generator)
            others = flat_update(network, chosen.inputs, chosen.targets, training)
            theirs = mean_gradient(network, others, training, steps)
            blind.append(pixels.images(self._read(network, theirs, generator).to(known).view(-1, *shape)))
        labels = torch.tensor([label for label, count in counts for _ in range(count)])[: self.batch]
        missing = torch.randint(seen.facts.classes, (self.batch - len(labels),), generator=generator)
        nulls = image_nulls(known, public.targets, torch.cat([labels, missing]), generator)
        nulls[OTHERS] = self._padded(blind, known)
        images = self._padded(shown, known)
        return FishedImages(images, sum(map(len, shown)), nulls)

    def _read(self, network: nn.Module, gradient: Gradient, generator: torch.Generator) -> Tensor:
        """The first layer's inputs [k, n] behind a ``gradient``, whose rank tells how many there are."""
        weight, bias, *_ = network.parameters()
        most = min(self.largest, min(weight.shape) - 1)
        found = spear(gradient[0], gradient[1], weight.detach(), bias.detach(), most, generator=generator)
        return found.inputs.nan_to_num(0.0, 0.0, 0.0)

    def _padded(self, parts: list[Tensor], known: Tensor) -> Tensor:
        """All images of ``parts``, and the mean of ``known`` for those that are missing."""
        rest = known.mean(0, keepdim=True).expand(max(0, self.batch - sum(map(len, parts))), *known.shape[1:])
        return torch.cat([*parts, rest])

    def judge(self, guess: FishedImages, auxiliary: Auxiliary, seconds: float) -> ReconstructionResult:
        """PSNR, SSIM and their kin, with images and nulls matched to the truth."""
        settings = {"client": self.client, "batch": self.batch, "read": guess.found, **told(self.pixels)}
        return reconstruction_result(
            self.name, guess.images, auxiliary.answer("images"), guess.nulls, seconds=seconds, settings=settings
        )


def fished_class(network: nn.Module, flat: Tensor) -> int:
    """The class whose head row alone is not zero.

    Raises:
        ConfigError: another number of rows is.
    """
    weight, _ = head_parts(network, flat)
    rows = (weight.abs().sum(1) > 0).nonzero().flatten()
    if len(rows) != 1:
        raise ConfigError(f"{len(rows)} rows of the broadcast's head are not zero; record the run with fishing_server")
    return int(rows[0])
