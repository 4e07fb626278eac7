"""Reconstruction of a client's images from the updates that it sent, by seven methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from attacks.attack import Attack, Choice, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.gradient_inversion.dlg import dlg, revealed_label
from attacks.gradient_inversion.fully_connected_leakage import leaked_input
from attacks.gradient_inversion.gradinversion import gradinversion
from attacks.gradient_inversion.inverting_gradients import inverting_gradients
from attacks.gradient_inversion.spear import spear
from attacks.gradient_inversion.wiener import attacker
from attacks.images.nulls import image_nulls
from attacks.images.pixels import Pixels, pixels_of, told
from attacks.images.result import ReconstructionResult, reconstruction_result
from attacks.observations.gradients import Gradient, as_gradient, flat_update
from attacks.observations.head_gradients import ClassGradients, HeadGradient, checked_head, class_gradients
from attacks.observations.label_counts import counts_by_regression, integer_counts
from attacks.observations.messages import recorded_round, single_update, training_behind, updates
from attacks.observations.update_labels import effective_steps
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout, trained_parameters
from privfl.privacy.accounting.release import Observer
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.randomness import torch_stream
from privfl.simulation.transcript import PublicFacts, Transcript
from privfl.validation import check_choice, check_count, check_number

Method = Literal["analytic", "dlg", "idlg", "inverting-gradients", "gradinversion", "spear", "wiener"]
OTHERS = "others' update"
"""The null that reconstructs from a message in which the victims are not."""


@dataclass(frozen=True)
class GradientGuess:
    """Images [B, C, H, W] with their labels [B], and what the nulls show in their place."""

    images: Tensor
    labels: Tensor
    nulls: Mapping[str, Tensor]


@dataclass(frozen=True)
class SentUpdate:
    """An ``update`` [size], the ``network`` from which it began, and the ``training`` behind it."""

    network: nn.Module
    update: Tensor
    training: LocalTraining

    def gradient(self, images: int) -> list[Tensor]:
        """The mean gradient of so many images, as :func:`mean_gradient` reads it."""
        return mean_gradient(self.network, self.update, self.training, local_steps(self.training, images))


@dataclass(frozen=True)
class GradientInversion(Attack):
    """The images behind one update, or behind those of several rounds.

    The attacker knows the model, the training settings and how many images there are; labels are read off the head's
    gradient: that of one image by its sign (iDLG), those of several by regression on the class gradients of the public
    records, which counts repeated labels too. A single local step is turned into the gradient that it was; the update
    of several steps is attacked by ``inverting-gradients``, which unrolls them in the rows' order, or by the others as
    if it had been one step. Nulls: the mean image, the class mean and a random image of the public, and the same attack
    on the update of as many public images of the inferred labels; where several rounds are read, on those of the same
    public images at the same networks, one for each round.

    The judge needs ``truth["images"]`` [B, C, H, W] in [0, 1].

    Args:
        client: whose update is attacked; ``None`` for the mean update of a secure sum.
        method: ``analytic`` (:mod:`attacks.gradient_inversion.fully_connected_leakage`; one image, a first layer that
            is fully connected), ``dlg`` or ``idlg`` (:mod:`attacks.gradient_inversion.dlg`), ``inverting-gradients``
            (:mod:`attacks.gradient_inversion.inverting_gradients`), ``gradinversion``
            (:mod:`attacks.gradient_inversion.gradinversion`), ``spear`` (:mod:`attacks.gradient_inversion.spear`;
            whole batches to rounding, one local step, a first layer that is fully connected with ReLUs behind it), or
            ``wiener`` (:mod:`attacks.gradient_inversion.wiener`; one image, for gradients with noise).
        batch: B, how many images the update is of.
        round: which round, from 0; −1 for the last.
        rounds: how many rounds are read, that one and those before it; those in which nothing of the client was seen
            are left out. More than one by ``wiener`` alone, of a client whose every update is of one same image.
        iterations: of a search; ``None`` is the method's own default.
        attempts: fresh starts at most; ``None`` is the method's own default.
        variation: weight of the total variation in ``inverting-gradients``; ``None`` is its default.
        seed: of the attacker's own draws.
        pixels: how inputs come from images, for data of one's own (:func:`attacks.images.pixels.pixels_of`).
    """

    name: ClassVar[str] = "gradient-inversion"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("images",))
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("method", "inverting-gradients", "Inverting Gradients", "Geiping et al., NeurIPS 2020"),
        Choice("method", "dlg", "DLG, Deep Leakage from Gradients", "Zhu, Liu and Han, NeurIPS 2019"),
        Choice("method", "idlg", "iDLG", "Zhao, Mopuri and Bilen, arXiv 2001.02610"),
        Choice("method", "gradinversion", "GradInversion", "Yin et al., CVPR 2021"),
        Choice("method", "analytic", "analytic leakage of a fully connected layer", "Phong et al., IEEE TIFS 2018"),
        Choice("method", "spear", "SPEAR, whole batches from a fully connected layer", "Dimitrov et al., NeurIPS 2024"),
        Choice("method", "wiener", "an estimate that knows the noise and a prior of the classes", "linear estimation"),
    )
    client: int | None = None
    method: Method = "inverting-gradients"
    batch: int = 1
    round: int = 0
    rounds: int = 1
    iterations: int | None = None
    attempts: int | None = None
    variation: float | None = None
    seed: int = 0
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        check_choice(f"{self.name}'s method", self.method, get_args(Method))
        check_count(f"{self.name}'s batch", self.batch)
        check_count(f"{self.name}'s rounds", self.rounds)
        if self.iterations is not None:
            check_count(f"{self.name}'s iterations", self.iterations, 8)
        if self.attempts is not None:
            check_count(f"{self.name}'s attempts", self.attempts)
        if self.variation is not None:
            check_number(f"{self.name}'s variation", self.variation, 0)
            if self.method != "inverting-gradients":
                raise ConfigError(f"{self.method} takes no weight of total variation; leave variation out")
        if self.batch > 1 and self.method in ("analytic", "idlg", "wiener"):
            raise ConfigError(
                f"{self.method} reads a single image, not {self.batch}; choose another method or batch = 1"
            )
        if self.rounds > 1 and self.method != "wiener":
            raise ConfigError(f"{self.method} reads one round, not {self.rounds}; choose 'wiener' or rounds = 1")

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> GradientGuess:
        """Images from the client's update, from an update of public images, and the nulls that need no message.

        Raises:
            ConfigError: the client sent no update, the loss is not the cross-entropy, the public data lack a label, or
                are no images.
        """
        if seen.facts.loss != "cross_entropy":
            raise ConfigError(f"the loss is {seen.facts.loss}; gradient inversion matches the soft-max cross-entropy")
        public = auxiliary.need_public()
        pixels = pixels_of(seen.facts.dataset, public.inputs, self.pixels)
        sent = self.sent(seen)
        generator = torch_stream(self.seed, "gradient-inversion")
        noise = public_noise(seen.facts)
        images, labels = self.inverted(sent, public, pixels, generator, *noise)
        known = pixels.images(public.inputs)
        nulls = image_nulls(known, public.targets, labels, generator)
        chosen = one_of_each(public, labels, generator)
        others = [
            replace(one, update=flat_update(one.network, chosen.inputs, chosen.targets, one.training)) for one in sent
        ]
        nulls[OTHERS] = self.inverted(others, public, pixels, generator)[0]
        return GradientGuess(images, labels, nulls)

    def sent(self, seen: Transcript) -> list[SentUpdate]:
        """What the client sent in the attacked rounds, the last of them last.

        Of secure sums, those of the same clients as in the last round: others are of other images.

        Raises:
            ConfigError: the last of these rounds was not recorded, or has no update of the client.
        """
        moment = recorded_round(seen, self.round)
        single_update(moment, self.client)  # says what is missing, if it is
        who = updates(moment)[0][0] if self.client is None else (self.client,)
        last, found = self.round % len(seen), []
        for place in range(max(0, last + 1 - self.rounds), last + 1):
            one = seen[place]
            for members, update in updates(one):
                if members == who:
                    network = seen.network(one.broadcast["parameters"])
                    training = training_behind(seen.facts, one.number, self.client, self.batch)
                    found.append(SentUpdate(network, update, training))
        return found

    def inverted(
        self,
        sent: Sequence[SentUpdate],
        public: Records,
        pixels: Pixels,
        generator: torch.Generator,
        multiplier: float | None = None,
        rate: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Images [B, C, H, W] in [0, 1] and labels [B] behind the updates that were ``sent``.

        ``multiplier`` is that of the noise, where there is a public one, and ``rate`` that of batches.
        """
        network, update, training = sent[-1].network, sent[-1].update, sent[-1].training
        steps, shape = local_steps(training, self.batch), tuple(public.inputs.shape[1:])
        gradient = sent[-1].gradient(self.batch)
        flat = torch.cat([part.reshape(-1) for part in gradient])
        observed = HeadGradient.of(flat, Layout.of(network), checked_head(network, public.inputs[:1]))
        head = observed.weight
        if self.batch == 1:
            labels = torch.tensor([revealed_label(head)])
        else:
            labels = counted_labels(network, observed, self.batch, public)
        if self.method == "analytic":
            return pixels.images(leaked_image(network, gradient, shape)[None]), labels
        if self.method == "wiener":
            check_first_layer(network, gradient, shape)
            messages = [(one.network, one.gradient(self.batch)) for one in sent]
            image, label = attacker(public, len(head)).image(messages, shape, multiplier, rate)
            return pixels.images(image[None]), torch.tensor([label])
        if self.method == "spear":
            return pixels.images(spear_images(network, gradient, shape, self.batch, generator)), labels
        given: dict[str, Any] = {"generator": generator, "pixels": pixels}
        if self.iterations is not None:
            given["iterations"] = self.iterations
        if self.attempts is not None:
            given["restarts" if self.method == "inverting-gradients" else "attempts"] = self.attempts
        if self.variation is not None:
            given["variation"] = self.variation
        if self.method in ("dlg", "idlg"):
            read = labels if self.method == "idlg" else None
            found = dlg(network, gradient, shape, classes=len(head), batch=self.batch, labels=read, **given)
        elif self.method == "gradinversion":
            found = gradinversion(network, gradient, labels, shape, **given)
        elif steps == 1:
            found = inverting_gradients(network, gradient, labels, shape, **given)
        else:
            parts = Layout.of(network).views(update)
            found = inverting_gradients(network, parts, labels, shape, training=training, **given)
        return found.images, found.labels

    def judge(self, guess: GradientGuess, auxiliary: Auxiliary, seconds: float) -> ReconstructionResult:
        """PSNR, SSIM and their kin, with images and nulls matched to the truth."""
        return reconstruction_result(
            f"{self.name}, {self.method}",
            guess.images,
            auxiliary.answer("images"),
            guess.nulls,
            seconds=seconds,
            settings={
                "client": self.client,
                "method": self.method,
                "batch": self.batch,
                "round": self.round,
                "rounds": self.rounds,
                "labels": guess.labels.tolist(),
                **told(self.pixels),
            },
        )


def public_noise(facts: PublicFacts) -> tuple[float | None, float]:
    """The public noise multiplier of DP-SGD, ``None`` without one or with several, and the public rate of batches."""
    told = facts.privacy.get("training") or {}
    multiplier, rate = told.get("noise_multiplier"), told.get("sample_rate")
    return (
        float(multiplier) if isinstance(multiplier, int | float) and multiplier > 0 else None,
        float(rate) if isinstance(rate, int | float) else 1.0,
    )


def local_steps(training: LocalTraining, images: int) -> int:
    """Local steps of a client of so many images."""
    return training.steps if training.steps is not None else training.epochs * -(-images // training.batch_size)


def mean_gradient(network: nn.Module, update: Tensor, training: LocalTraining, steps: int) -> list[Tensor]:
    """The gradient of the data behind an ``update`` [size] of so many steps; exact for one, weight decay included."""
    gradient = as_gradient(network, update, training.learning_rate * effective_steps(steps, training.momentum))
    if not training.weight_decay:
        return gradient
    decay = [training.weight_decay * parameter.detach() for parameter in trained_parameters(network).values()]
    return [part - decayed for part, decayed in zip(gradient, decay, strict=True)]


def leaked_image(network: nn.Module, gradient: Gradient, shape: tuple[int, ...]) -> Tensor:
    """The network's input [C, H, W] from the gradient of its first layer, if that is fully connected with a bias.

    Raises:
        ConfigError: the first parameters are not such a layer on the whole input.
    """
    check_first_layer(network, gradient, shape)
    return leaked_input(gradient[0], gradient[1]).view(shape)


def check_first_layer(network: nn.Module, gradient: Gradient, shape: tuple[int, ...]) -> None:
    """Refuse a ``gradient`` that does not begin with a fully connected layer with a bias on the whole input.

    Raises:
        ConfigError: as said.
    """
    pixels = math.prod(shape)
    if len(gradient) < 2 or gradient[0].dim() != 2 or gradient[0].shape[1] != pixels or gradient[1].dim() != 1:
        raise ConfigError(
            f"{type(network).__name__}'s first layer is not fully connected on {pixels} pixels with a bias; choose "
            "another method"
        )


def spear_images(
    network: nn.Module, gradient: Gradient, shape: tuple[int, ...], batch: int, generator: torch.Generator
) -> Tensor:
    """The network's inputs [batch, C, H, W] by :func:`attacks.gradient_inversion.spear.spear`, float32.

    Where the gradient has a smaller rank than ``batch`` (inputs that repeat, or that reach no unit), the mean of what
    was recovered stands for the rest.

    Raises:
        ConfigError: the first parameters are not a fully connected layer with a bias on the whole input.
    """
    check_first_layer(network, gradient, shape)
    weight, bias, *_ = network.parameters()
    found = spear(gradient[0], gradient[1], weight.detach(), bias.detach(), batch, generator=generator).inputs
    inputs = found.nan_to_num(0.0, 0.0, 0.0).to(weight.dtype)
    rest = inputs.mean(0, keepdim=True).expand(batch - len(inputs), -1)
    return torch.cat([inputs, rest]).view(batch, *shape)


def counted_labels(network: nn.Module, head: HeadGradient, batch: int, public: Records) -> Tensor:
    """The labels of ``batch`` examples behind the gradient of the ``head``, int64 [batch], ascending.

    Counts by :func:`attacks.observations.label_counts.counts_by_regression` on the public class gradients, so that a
    label may occur any number of times; classes without public records count as absent.
    """
    classes = len(head.weight)
    known: ClassGradients = class_gradients(network, public.inputs, public.targets, classes, bias=head.bias is not None)
    counts = counts_by_regression(head.vector() * batch, known)
    return torch.repeat_interleave(torch.arange(classes), integer_counts(counts, batch))


def one_of_each(public: Records, labels: Tensor, generator: torch.Generator) -> Records:
    """A public record for each of ``labels`` [B].

    Raises:
        ConfigError: a label has no public record.
    """
    chosen = []
    for label in labels.tolist():
        rows = (public.targets == label).nonzero().flatten()
        if not len(rows):
            raise ConfigError(f"class {label} has no public image; give public data of all classes that are attacked")
        chosen.append(rows[torch.randint(len(rows), (), generator=generator)])
    return public[torch.stack(chosen)]
