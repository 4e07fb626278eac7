"""Averages whose weights grow with clients' losses, from two sums over the cohort: q-FedAvg and TERM.

A client measures its loss F_k at the received model, scales its own update, and sends it with the number that
normalises it; the server divides the two sums. Nobody's loss or weight is seen where sums are aggregated securely.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.loss_survey import LOSS, mean_loss, with_count
from privfl.errors import ConfigError
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number

NORMALISER, LEVEL, LOST = "normaliser", "level", "lost"
LARGEST_REACH = 60.0
"""Shares beyond e to this would leave float32 no room for their sum times updates."""


def check_loss_bound(name: str, bound: float) -> None:
    """Raise :class:`ConfigError` unless ``bound`` is a positive number or infinite."""
    if not (isinstance(bound, int | float) and bound > 0):
        raise ConfigError(f"{name}'s loss_bound is {bound!r}; give a positive number, or inf for no bound")


@dataclass(frozen=True)
class LossShares(Algorithm):
    """Base of both: ``w ← w + η_g·Σ n_k a_k Δ_k / Σ n_k b_k`` with shares ``a_k = exp(log_share(F_k) − ℓ)``.

    The level ℓ keeps shares near 1 and cancels. It is public: the loss of a model that knows nothing in place of F_k at
    first, then the last round's ℓ plus the log of the mean normaliser b_k. Shares are cut off at e^reach, and where the
    mean b_k is below e^(−2·reach) the model stays for a round and ℓ falls by 2·reach: so ℓ finds the losses from
    wherever they start.

    A secure sum is of fixed point: it drops a client with a number beyond its ``largest`` (2²⁰), which would be those
    with the largest losses, and rounds what is tiny to noise. Shares of at most e^10 leave room for n_k up to 47 under
    it; larger clients that are weighed by size need a smaller reach, or a larger ``largest``.

    The loss is a release of its own: a function of all of a client's examples. Under DP-SGD it needs a noisy total for
    ``loss`` (:class:`privfl.privacy.door.noisy_total.NoisyTotal`), else the statement is ∞. With both, all that a
    client sends is computed from the noisy loss and the noisy gradients.

    Args:
        weighting: ``"uniform"``: all n_k are 1; ``"size"``: n_k is the client's (reported) size; by default as the
            experiment says, and where it says nothing as the method does.
        server_learning_rate: η_g > 0.
        loss_bound: at which each example's loss is cut off before it is averaged; if finite, the summed
            (loss/bound, 1)/√2 has a norm of at most 1 per example: ``NoisyTotal("loss", 1.0, z)`` then clips nothing.
        reach: in (0, 60]: how far the log of a share may rise above the level. Without a secure sum 60 does no harm.
    """

    statistics: ClassVar[tuple[str, ...]] = (LOSS,)
    counts_by: ClassVar[str] = "weighting"
    weighting: Literal["size", "uniform"] | None = None
    server_learning_rate: float = 1.0
    loss_bound: float = math.inf
    reach: float = 10.0

    def __post_init__(self) -> None:
        check_number(f"{self.name}'s server_learning_rate", self.server_learning_rate, 0, above=True)
        check_loss_bound(self.name, self.loss_bound)
        check_number(f"{self.name}'s reach", self.reach, 0, LARGEST_REACH, above=True)

    @abstractmethod
    def log_share(self, loss: Tensor) -> Tensor:
        """The log of the unscaled share of a client with this ``loss``, float64 []."""

    def normaliser(self, share: Tensor, loss: Tensor, update: Tensor, training: LocalTraining) -> Tensor:
        """b_k [] of a client, from its ``share`` [] and ``loss`` [], both float64, and its ``update`` [size]."""
        return share

    def weights(self) -> Literal["uniform", "size", "server"]:
        return "uniform" if self.weighs == "uniform" else "size"

    def fields(self) -> tuple[Field, ...]:
        return Field("update"), Field(NORMALISER, shape=())

    def start(self, parameters: Tensor) -> Tensors:
        usual = torch.tensor(self.context.usual_loss, dtype=torch.float64, device=parameters.device)
        return {**super().start(parameters), LEVEL: self.log_share(usual), LOST: torch.zeros_like(usual)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", LEVEL)}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {**super().begin(received, client_state, training), LOSS: received[LEVEL].new_zeros(())}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """F_k: the mean loss over all of the client's rows at the received model, in evaluation mode."""
        total = client.total(with_count(client.loss, self.loss_bound), local["parameters"], everything, name=LOSS)
        local[LOSS] = mean_loss(total, self.loss_bound).to(local[LOSS].dtype)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        update = local["parameters"] - received["parameters"]
        share = (self.log_share(local[LOSS]) - received[LEVEL]).clamp(max=self.reach).exp()
        normaliser = self.normaliser(share, local[LOSS], update, training)
        return {"update": share.to(update.dtype) * update, NORMALISER: normaliser.to(update.dtype)}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if round.weight == 0:  # everybody answered with size 0
            return server
        whole = total[NORMALISER].double()
        if not bool(whole / round.weight >= math.exp(-2 * self.reach)):  # a secure sum might hold nothing but rounding
            return {**server, LEVEL: server[LEVEL] - 2 * self.reach, LOST: server[LOST] + 1}
        step = total["update"] * (self.server_learning_rate / float(whole))
        level = server[LEVEL] + torch.log(whole / round.weight)
        return {**server, "parameters": server["parameters"] + step, LEVEL: level}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {LEVEL: float(server[LEVEL])}

    def warnings(self, server: Tensors) -> list[str]:
        if not float(server[LOST]):
            return []
        return [
            f"in {int(server[LOST])} rounds the shares of {self.name} were out of reach and the model stayed; lower "
            "its power, or raise its reach"
        ]
