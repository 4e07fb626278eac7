"""Images from what clients, or a secure sum of them, answered to an imprinting server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.attack import Attack, Needs, Power
from attacks.auxiliary import Auxiliary
from attacks.gradient_inversion.imprint import imprinted_inputs, imprinting_server, perceptron_parts
from attacks.gradient_inversion.inversion import OTHERS
from attacks.images.pixels import Pixels, pixels_of, told
from attacks.images.result import ReconstructionResult, reconstruction_result
from attacks.observations.gradients import criterion_of, flat_update
from attacks.observations.messages import recorded_round, single_update, training_behind
from privfl.algorithms.base import Algorithm
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import Observer
from privfl.randomness import torch_stream
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count


@dataclass(frozen=True)
class ImprintGuess:
    """Images [at least B, C, H, W], and what the nulls show in their place."""

    images: Tensor
    nulls: Mapping[str, Tensor]


@dataclass(frozen=True)
class Imprint(Attack):
    """The images behind one message of a run whose server imprinted the first layer (an active server).

    Record the run with :func:`attacks.gradient_inversion.imprint.imprinting_server` around its algorithm, which is what
    :meth:`staged` does with all units. Clients take one step, or few. Nulls, all matched to the truth as the attack is:
    the mean image, the class means of the public records where they have classes, random public images, and the same
    reading of an update of ``batch`` public images at the same broadcast.

    The judge needs ``truth["images"]`` [B, C, H, W] in [0, 1].

    Args:
        client: whose update is read; ``None`` for the sum over all.
        batch: B, how many images the message is of.
        round: which round, from 0.
        seed: decides the nulls' public images.
        pixels: how inputs come from images, for data of one's own (:func:`attacks.images.pixels.pixels_of`).
    """

    name: ClassVar[str] = "imprint"
    observer: ClassVar[Observer] = "server"
    power: ClassVar[Power] = "active"
    staged_rounds: ClassVar[int | None] = 1
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("images",))
    needs_classes: ClassVar[bool] = False
    client: int | None = None
    batch: int = 1
    round: int = 0
    seed: int = 0
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s batch", self.batch)

    def staged(self, task: Task, algorithm: Algorithm, auxiliary: Auxiliary) -> tuple[Task, Algorithm]:
        """The same run before a server that imprints all units of the first layer, or as many as it has public records.

        Raises:
            ConfigError: the network is no perceptron.
        """
        network, public = task.model(0), auxiliary.need_public()
        width = len(perceptron_parts(network, flatten(network))[1])
        return task, imprinting_server(algorithm, public.inputs, units=min(width, len(public)))

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> ImprintGuess:
        """What the message holds, and what it would hold of public images.

        Raises:
            ConfigError: there is no such message, its broadcast was not imprinted, or the loss is one of one's own.
        """
        moment, public = recorded_round(seen, self.round), auxiliary.need_public()
        pixels = pixels_of(seen.facts.dataset, public.inputs, self.pixels)
        sent = single_update(moment, self.client)
        network = seen.network(moment.broadcast["parameters"])
        generator = torch_stream(self.seed, "imprint")
        known = pixels.images(public.inputs)
        shown = self.images(network, sent, public.inputs, pixels)
        drawn = torch.randint(len(public), (2, self.batch), generator=generator)
        training = training_behind(seen.facts, moment.number, self.client, self.batch)
        criterion = criterion_of(seen.facts.loss)
        others = flat_update(network, public.inputs[drawn[0]], public.targets[drawn[0]], training, criterion=criterion)
        nulls = {"mean image": known.mean(0).expand(self.batch, *known.shape[1:]).clone()}
        if seen.facts.kind == "classification":
            parts = [known[public.targets == label].mean(0) for label in sorted(set(public.targets.tolist()))]
            nulls["class means"] = torch.stack(parts).repeat(-(-self.batch // len(parts)), 1, 1, 1)
        nulls["random images"] = known[drawn[1]]
        nulls[OTHERS] = self.images(network, others, public.inputs, pixels)
        return ImprintGuess(shown, nulls)

    def images(self, network: nn.Module, update: Tensor, like: Tensor, pixels: Pixels) -> Tensor:
        """At least ``batch`` images of what an ``update`` [size] holds; the mean of ``like`` where it holds too few."""
        weight, bias, _ = perceptron_parts(network, flatten(network))
        weight_gradient, bias_gradient, _ = perceptron_parts(network, -update)
        found = imprinted_inputs(weight, bias, weight_gradient, bias_gradient).to(like)
        found = found.nan_to_num(0.0, 0.0, 0.0).view(-1, *like.shape[1:])
        rest = like.mean(0, keepdim=True).expand(max(0, self.batch - len(found)), *like.shape[1:])
        return pixels.images(torch.cat([found, rest]))

    def judge(self, guess: ImprintGuess, auxiliary: Auxiliary, seconds: float) -> ReconstructionResult:
        """PSNR, SSIM and their kin, with images and nulls matched to the truth."""
        settings = {"client": self.client, "batch": self.batch, "round": self.round, **told(self.pixels)}
        return reconstruction_result(
            self.name, guess.images, auxiliary.answer("images"), guess.nulls, seconds=seconds, settings=settings
        )
