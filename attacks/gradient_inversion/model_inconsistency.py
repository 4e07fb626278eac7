"""A server that sends one client the model and all others a dead one, so that a secure sum is that client's alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from attacks.attack import Attack, Needs, Power
from attacks.auxiliary import Auxiliary
from attacks.crafted_broadcast import crafting_server
from attacks.gradient_inversion.imprint import perceptron_parts
from attacks.gradient_inversion.inversion import GradientGuess, GradientInversion
from attacks.images.pixels import Pixels, told
from attacks.images.result import ReconstructionResult
from attacks.observations.messages import recorded_round
from privfl.algorithms.base import Algorithm
from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.models.flat_network import FlatNetwork, flatten
from privfl.privacy.accounting.release import Observer
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count


def inconsistent_server(algorithm: Algorithm, target: int) -> Algorithm:
    """``algorithm`` run by a server that sends its honest model to ``target`` and a dead one to everybody else.

    Pasquini, Francati and Ateniese, "Eluding Secure Aggregation in Federated Learning via Model Inconsistency" (ACM CCS
    2022): no unit of the dead model's first layer fires for any input, so these clients' gradients of that layer are
    zero, and the sum over all clients holds the target's. The server's own model learns nothing meanwhile.

    Raises:
        ConfigError: at the first broadcast: the network is no perceptron.
    """

    def honestly(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        return honest

    def dead(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        weight, bias, _ = perceptron_parts(network.module, honest)
        weight.zero_()
        bias.fill_(-1.0)
        return honest

    def nothing(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        return honest.zero_()

    return crafting_server(
        algorithm, honestly, "Inconsistent", nothing, others=(dead,), version=lambda client: int(client != target)
    )


@dataclass(frozen=True)
class ModelInconsistency(Attack):
    """The images of one client from the sum over all, where the others were sent a dead model (an active server).

    What is left of the sum is read by SPEAR (:mod:`attacks.gradient_inversion.spear`), with its nulls. It works through
    any secure sum and any clipping, and not through noise.

    The judge needs ``truth["images"]`` [B, C, H, W] in [0, 1] of the client.

    Args:
        client: the target.
        batch: B, how many images it holds; it takes one step on all of them.
        round: which round, from 0.
        seed: of the attacker's own draws.
        pixels: how inputs come from images, for data of one's own (:func:`attacks.images.pixels.pixels_of`).
    """

    name: ClassVar[str] = "model-inconsistency"
    observer: ClassVar[Observer] = "server"
    power: ClassVar[Power] = "active"
    staged_rounds: ClassVar[int | None] = 1
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("images",))
    client: int = 0
    batch: int = 1
    round: int = 0
    seed: int = 0
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s batch", self.batch)

    def staged(self, task: Task, algorithm: Algorithm, auxiliary: Auxiliary) -> tuple[Task, Algorithm]:
        """The same run before a server that sends all but the target a dead model.

        Raises:
            ConfigError: the network is no perceptron.
        """
        network = task.model(0)
        perceptron_parts(network, flatten(network))
        return task, inconsistent_server(algorithm, self.client)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> GradientGuess:
        """What the sum, or the client's own message where it was seen, holds of the client's images.

        Raises:
            ConfigError: there is no such message, or everybody was sent the same.
        """
        moment = recorded_round(seen, self.round).training
        if len([name for name in moment.broadcast if name.startswith("parameters")]) < 2:
            raise ConfigError("every client was sent the same; record the run with inconsistent_server")
        client = None if moment.uploads is None else self.client
        reader = GradientInversion(
            client=client, method="spear", batch=self.batch, round=self.round, seed=self.seed, pixels=self.pixels
        )
        return reader.guess(seen, auxiliary)

    def judge(self, guess: GradientGuess, auxiliary: Auxiliary, seconds: float) -> ReconstructionResult:
        """PSNR, SSIM and their kin, with images and nulls matched to the truth."""
        found = GradientInversion(method="spear", batch=self.batch).judge(guess, auxiliary, seconds)
        settings = {"client": self.client, "batch": self.batch, "round": self.round, **told(self.pixels)}
        return replace(found, attack=self.name, settings=settings)
