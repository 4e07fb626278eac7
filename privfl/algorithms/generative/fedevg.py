"""FedEvg: the server refines synthetic images by the energies of the clients' classifiers; no model is exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.generative.energy import (
    Schedule,
    Weighting,
    chain_step,
    from_sums,
    joint_energy,
    langevin,
    mixed,
    real_loss,
    saturation,
    shares,
    step_sizes,
    strengths,
    synthetic_loss,
)
from privfl.algorithms.generative.server_training import train_classifier
from privfl.errors import ConfigError
from privfl.privacy.channel.field import Field
from privfl.privacy.clipping.placement import wherever_it_stands
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.randomness import torch_stream
from privfl.validation import check_count, check_number

BETAS = (0.5, 0.999)
"""Adam's decay rates at the client, as in the authors' code."""
ROWS_OF_AN_UPLOAD = 256
"""Synthetic images whose energies are differentiated at one time."""


@dataclass(frozen=True)
class FedEvg(Algorithm):
    """FedEvg (Hahn, arXiv 2408.00050, chapter IV), equations (4) to (11) of ``docs/reference/equations.md``.

    The server owns N = classes · ``samples_per_class`` labelled images x̃. Every client trains a classifier on its data
    that is an energy model too, against a chain of Langevin steps that starts at x̃, and uploads for every image its
    clipped energy gradient g and strength s; the server steps ``x̃ ← clip(x̃ − β_r·G + σ·ξ)``, G the weighted mean of g.
    The upload is one field [N, D + 1] of s·g and s, of which the server needs the sum alone; ``"exact"`` weights need
    every client's energies. Neither grows with the model. No parameters are exchanged, which is no privacy
    guarantee: strengths tell which classes a client knows, and the images can approach training images.

    ``training`` is the client's Adam: the authors' learning rate is 1e-3 and decays by 0.9 every 50 rounds, weight
    decay 1e-4, batches of 64, 1 epoch; momentum has no meaning. Inputs must lie in [``low``, ``high``].

    Differs from the authors' code: all clients of a round begin with the same fresh parameters (normalisation layers
    included), which need not be sent, as the public seed tells them; ``|I|`` is always min(batch_size, N), so that with
    DP-SGD the size of a private batch does not show; the server's classifier is the task's own network, trained
    for ``classifier_epochs`` passes instead of one. An upload that is not finite is dropped by the engine. DP-SGD
    protects the real terms of the loss; the synthetic ones see data through the parameters alone.

    Args:
        samples_per_class: synthetic images of each class.
        weighting: ``"signed"`` (the paper's), ``"exact"`` or ``"size"``:
            :func:`privfl.algorithms.generative.energy.shares`.
        client_weights: π_k of the participants: ``"size"``, or ``"uniform"``, which reveals no size; by default the
            experiment's ``weighting``, and ``"size"`` where it has none.
        step_size: β_1 of the server.
        last_step_size: β_R.
        schedule: ``"as-coded"`` or ``"cosine"``: :func:`privfl.algorithms.generative.energy.step_sizes`.
        noise: standard deviation of the server's Langevin noise.
        chain_steps: J, Langevin steps of a client's chain for each batch.
        chain_step_size: α.
        chain_noise: standard deviation of the chain's noise.
        clip: τ_g, bound of every element of an input gradient, in the chain and in the upload.
        gamma: weight of the cross-entropy of the synthetic images.
        energy_penalty: weight of E² for real images and chain states, a remedy for drifting energies; not the paper's.
        reinitialise: begin every round with fresh parameters, as the authors' code; else clients keep theirs.
        classifier_epochs: passes over the synthetic set when the server's classifier is trained for a test.
        low: smallest value of a pixel.
        high: largest value of a pixel.
    """

    name: ClassVar[str] = "fedevg"
    needs_classes: ClassVar[bool] = True
    uses_rounds: ClassVar[bool] = True
    counts_by: ClassVar[str] = "client_weights"
    samples_per_class: int = 10
    weighting: Weighting = "signed"
    client_weights: Literal["size", "uniform"] | None = None
    step_size: float = 10.0
    last_step_size: float = 1.0
    schedule: Schedule = "as-coded"
    noise: float = 1e-4
    chain_steps: int = 1
    chain_step_size: float = 1.0
    chain_noise: float = 0.01
    clip: float = 3.0
    gamma: float = 0.1
    energy_penalty: float = 0.0
    reinitialise: bool = True
    classifier_epochs: int = 150
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_count("fedevg's samples_per_class", self.samples_per_class)
        check_count("fedevg's classifier_epochs", self.classifier_epochs)
        check_count("fedevg's chain_steps", self.chain_steps, 0)
        for name in (
            "step_size",
            "last_step_size",
            "noise",
            "chain_step_size",
            "chain_noise",
            "gamma",
            "energy_penalty",
        ):
            check_number(f"fedevg's {name}", getattr(self, name), 0)
        check_number("fedevg's clip", self.clip, 0, above=True)
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(f"fedevg's pixels lie between {self.low!r} and {self.high!r}; give low < high")
        object.__setattr__(self, "keeps", () if self.reinitialise else ("parameters",))

    def fields(self) -> tuple[Field, ...]:
        images, pixels = self._images(), math.prod(self.context.input_shape)
        if self.weighting == "exact":
            return (Field("gradient", "each", shape=(images, pixels)), Field("energy", "each", shape=(images,)))
        return (Field("update", shape=(images, pixels + 1)),)

    def weights(self) -> Literal["uniform", "size"]:
        return "uniform" if self.weighs == "uniform" else "size"

    def start(self, parameters: Tensor) -> Tensors:
        """Equation (7): x̃ ~ N(0, I), unclipped, with as many images of every class, in the order of the classes."""
        shape = (self._images(), *self.context.input_shape)
        generator = torch_stream(self.context.seed, "fedevg-images")
        return {
            "parameters": parameters.clone(),
            "images": torch.randn(shape, generator=generator, dtype=parameters.dtype).to(parameters.device),
            "labels": torch.arange(self.context.classes, device=parameters.device).repeat_interleave(
                self.samples_per_class
            ),
            "pull": torch.zeros((), dtype=torch.float64),
        }

    def begin_round(self, server: Tensors, number: int) -> Tensors:
        return {**server, "parameters": self.context.fresh(self.name, number)} if self.reinitialise else server

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", "images", "labels")}

    def random_numbers(self) -> tuple[int, int]:
        """Uniform numbers that order the images, and normal ones for the chain's noise (for ``|I| = N`` at most)."""
        return self._images(), self.chain_steps * self._images() * math.prod(self.context.input_shape)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        parameters, images = client_state.get("parameters", received["parameters"]), received["images"]
        return {
            "parameters": parameters,
            "first_moment": torch.zeros_like(parameters),
            "second_moment": torch.zeros_like(parameters),
            "steps": parameters.new_zeros(()),
            "chain": images.clone(),
            "gradient": torch.zeros_like(images).flatten(1),
            "energy": parameters.new_zeros(len(images)),
        }

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        chosen = batch.uniform.argsort()[: min(training.batch_size, self._images())]  # I of equation (9)
        labels = received["labels"][chosen]
        negatives = self._advance(local, chosen, labels, batch, client)
        synthetic = partial(synthetic_loss, gamma=self.gamma, penalty=self.energy_penalty)
        given = {"images": received["images"][chosen], "negatives": negatives, "labels": labels}
        free = client.data_free_gradient(synthetic, local["parameters"], given) / len(chosen)
        real = partial(real_loss, penalty=self.energy_penalty)
        adam(local, client.gradient(real, local["parameters"], batch).add_(free), training)

    def _advance(self, local: Tensors, chosen: Tensor, labels: Tensor, batch: Batch, client: Door) -> Tensor:
        """The chain's next states x⁻ of the images ``chosen``, equation (9)."""
        points = local["chain"][chosen]
        noise = batch.normal.view(self.chain_steps, *local["chain"].shape)[:, : len(chosen)]
        for number in range(self.chain_steps):
            given = {"points": points, "labels": labels}
            gradient = client.data_free_gradient(joint_energy, local["parameters"], given, wrt="points")
            points = chain_step(
                points, gradient, noise[number], step=self.chain_step_size, deviation=self.chain_noise, clip=self.clip
            )
        points = points.clamp(self.low, self.high)
        local["chain"] = local["chain"].index_put((chosen,), points)
        return points

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """Equation (11): energies and their gradients at the *downloaded* images."""
        pieces = (torch.split(received[name], ROWS_OF_AN_UPLOAD) for name in ("images", "labels"))
        gradients, energies = [], []
        for points, labels in zip(*pieces, strict=True):
            given = {"points": points, "labels": labels}
            gradient = client.data_free_gradient(joint_energy, local["parameters"], given, wrt="points")
            gradients.append(gradient.flatten(1).clamp(-self.clip, self.clip))
            energies.append(client.data_free_value(joint_energy, local["parameters"], given))
        local["gradient"], local["energy"] = torch.cat(gradients), torch.cat(energies)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        gradient, energy = local["gradient"], local["energy"]
        if self.weighting == "exact":
            return {"gradient": gradient, "energy": energy}
        strength = (strengths(energy) if self.weighting == "signed" else torch.ones_like(energy))[:, None]
        return {"update": torch.cat([strength * gradient, strength], 1)}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if round.weight == 0:  # everybody answered with size 0
            return server
        images = server["images"]
        if self.weighting == "exact":
            pull = mixed(total["gradient"], shares(total["energy"], round.weights.to(images.device), "exact"))
        else:
            pull = from_sums(total["update"], round.weight)
        rounds = max(self.context.rounds, round.number + 1)
        steps = step_sizes(rounds, self.step_size, self.last_step_size, self.schedule)
        noise = torch.randn(images.shape, generator=round.generator, dtype=images.dtype).to(images.device)
        moved = langevin(
            images,
            pull.view_as(images),
            noise,
            step=float(steps[round.number]),
            deviation=self.noise,
            low=self.low,
            high=self.high,
        )
        return {**server, "images": moved, "pull": pull.norm(dim=1).mean().double().cpu()}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        """The part of the pixels that lie on a bound, and the mean norm of the last G_n."""
        saturated = saturation(server["images"], self.low, self.high)
        return {"saturated_pixels": float(saturated), "pull_norm": float(server["pull"])}

    def eval_parameters(self, server: Tensors) -> Tensor:
        """A classifier that is trained on the synthetic set: equation (12) as far as the server can go."""
        context = self.context
        return train_classifier(
            context.network(),
            context.fresh("fedevg-classifier", 0),
            server["images"],
            server["labels"],
            epochs=self.classifier_epochs,
            seed=context.seed,
        )

    def _images(self) -> int:
        return self.context.classes * self.samples_per_class


def adam(local: Tensors, gradient: Tensor, training: LocalTraining) -> None:
    """One step of Adam in place, with weight decay in the gradient; the same as ``torch.optim.Adam``."""
    first, second, steps = local["first_moment"], local["second_moment"], local["steps"].add_(1)
    gradient = gradient.add(local["parameters"], alpha=training.weight_decay)
    first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
    second.mul_(BETAS[1]).add_(gradient.square(), alpha=1 - BETAS[1])
    shares = [1 - wherever_it_stands(partial(torch.pow, beta), steps) for beta in BETAS]
    scale = (second / shares[1]).sqrt_().add_(1e-8)
    local["parameters"].sub_(training.learning_rate * (first / shares[0]) / scale)
