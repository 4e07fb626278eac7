"""The door: the one handle through which training sees a client's data, and the log of everything that passed it.

With nothing on, a value passes and the door notes why the upload that follows is unprotected. With DP-SGD on,
``gradient`` clips, adds noise, divides by a public number and notes the event. One client's door and a cohort's
(:mod:`privfl.privacy.door.client_door`, :mod:`privfl.privacy.door.cohort_door`) share this contract, and what they
note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dp_accounting import DpEvent
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import Plan, Poisson
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.loss import Loss

ROWS_AT_ONCE = 512
"""Rows of one forward pass; larger batches are summed in pieces, so memory does not grow with a client's size."""
BARE_GRADIENT = "gradients are computed without a mechanism (no DP-SGD)"
BARE_TRAINING = "what training computes on the data is sent without a mechanism (no DP-SGD)"
BARE_TOTAL = "sums over samples are sent without a mechanism"
BARE_SIZE = "the exact number of the client's samples is sent"
SECOND_GRADIENT = (
    "DP-SGD refuses a second gradient on one batch, because both share the draw that amplifies; take one gradient of "
    "each batch"
)
NO_NOISE_ON_TOTAL = "sums over samples are clipped but the noise multiplier is 0"
NO_NOISE = "gradients are clipped but the noise multiplier is 0"


@dataclass(frozen=True)
class Batch:
    """One batch, as a step gets it: the plan that drew it, its number of rows, and the numbers of its step.

    All are tensors, so that an algorithm may compute with them for one client and for a stacked cohort alike.

    Args:
        counted: number of rows; read it as :attr:`count`.
        last: 1 if the batch belongs to the client's last pass over its data, else 0; [].
        uniform: numbers in [0, 1) from the client's own stream, as many as the algorithm draws; [u].
        normal: standard normal numbers, likewise; [n].
        note_count: notes that the number of rows was read.
    """

    plan: Plan
    counted: Tensor
    last: Tensor
    uniform: Tensor
    normal: Tensor
    note_count: Callable[[], None]

    @property
    def count(self) -> Tensor:
        """Number of rows [], private under DP-SGD as the client's size is: reading it is noted as unprotected."""
        self.note_count()
        return self.counted


@dataclass(frozen=True)
class DrawnBatch(Batch):
    """A batch as the doors know it: ``inputs`` [B, ...] and ``targets`` [B] of rows ``rows`` [B].

    Stacked batches hold [clients, B, ...], and ``mask`` [clients, B] tells rows from padding.
    """

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None


class Door(Protocol):
    """What an algorithm's step may do with the data."""

    loss: Loss

    def gradient(self, loss: Loss, parameters: Tensor, batch: Batch, given: dict[str, Tensor] | None = None) -> Tensor:
        """Gradient [size] of the mean (or, by the plan's divisor, scaled sum) of ``loss`` over ``batch``.

        ``given`` holds tensors of ``local`` that the loss takes by name besides the network, the inputs and the
        targets. The result may be changed in place. Without DP-SGD an empty batch gives zero; with DP-SGD the batch
        must come from a Poisson plan with a divisor, and an empty one gives pure noise.

        Raises:
            ConfigError: DP-SGD is on, but the batch does not come from a Poisson plan with a public divisor.
        """

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Sum over ``batch`` of ``statistic(network, inputs, targets, **given) -> [B, ...]``; no gradient is taken.

        For losses, label counts, prototypes. The network is in evaluation mode. If the run has a noisy total
        (:class:`privfl.privacy.door.noisy_total.NoisyTotal`) for ``name``, one of the algorithm's ``statistics``, the
        sum leaves clipped and with noise; otherwise it is noted as unprotected.
        """

    def kept_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the mean of ``loss`` over ``batch`` that stays with the client, whatever it is used for.

        For personal models and local discriminators. It is neither protected nor noted: it must never influence an
        upload, and an algorithm that takes one tests that. ``wrt`` may name a tensor of ``given`` instead.
        """

    def free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the sum of ``function(network, **given)``, in evaluation mode; no data passes.

        For what depends on data only through the parameters: synthetic inputs, regularisers of the network's outputs.
        ``wrt`` may name a tensor of ``given``, such as the synthetic inputs.
        """

    def free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """``function(network, **given)`` in evaluation mode, without a gradient; no data passes."""

    def size(self) -> Tensor:
        """The client's exact number of samples [], noted as unprotected."""


@dataclass
class DoorLog:
    """What passed one client's door in one round."""

    noisy: Counter[DpEvent] = field(default_factory=Counter)
    """Gradients that left with noise: event → count."""
    clipped: Counter[float] = field(default_factory=Counter)
    """Gradients that left clipped, to be noised on the sum: sampling rate → count."""
    bare: dict[str, None] = field(default_factory=dict)
    """Why a value left as it is, in one sentence each."""

    def note_private(self, dpsgd: DPSGD, client: int, rate: float) -> None:
        """Note one clipped gradient of a Poisson batch of ``rate``, with the noise that ``dpsgd`` gives ``client``."""
        multiplier = dpsgd.noise(client)
        if dpsgd.noise_at == "server":
            self.clipped[rate] += 1
        elif multiplier > 0:
            self.noisy[dpsgd.event(multiplier, rate)] += 1
        else:
            self.bare[NO_NOISE] = None


def public_plan(plan: Plan) -> tuple[float, float]:
    """Rate and divisor of a plan that DP-SGD may use.

    Raises:
        ConfigError: the plan is not Poisson, or its divisor is the private number of rows.
    """
    if not isinstance(plan, Poisson) or plan.divisor is None:
        raise ConfigError(
            "DP-SGD needs Poisson batches with a public divisor; let the algorithm keep the plan it is given"
        )
    return plan.rate, plan.divisor
