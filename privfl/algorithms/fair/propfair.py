"""PropFair: proportional fairness of clients, each of whom trains for the logarithm of what its loss leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fair.loss_shares import check_loss_bound
from privfl.algorithms.fair.loss_survey import LOSS, mean_loss, with_count
from privfl.algorithms.fedavg import FedAvg
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.loss import Loss, coupled
from privfl.validation import check_number

Tail = Literal["linear", "huber", "continuous"]


@dataclass(frozen=True)
class PropFair(FedAvg):
    """PropFair (Zhang et al., "Proportional Fairness in Federated Learning", TMLR 2023): maximise Σ p_k·log(M − F_k).

    FedAvg whose clients descend on a surrogate of their batch's mean loss (:func:`surrogate`), whose slope grows from
    1/M as the loss nears M: who fares badly moves further. With M → ∞ and the learning rate times M it is FedAvg.

    Differs from the paper in nothing but ``per_sample``, off by default: the surrogate couples the samples of a
    batch, and DP-SGD refuses it. ``per_sample`` is the form for it, which the paper lacks: the slope is taken at
    F_k, the client's loss on all of its data at the received model, and multiplies the ordinary (clipped and
    noised) gradient of every step of the round. F_k is then a release of its own: DP-SGD needs a noisy total for
    ``loss`` beside it (:class:`privfl.privacy.door.noisy_total.NoisyTotal`), or the statement is ∞.

    Args:
        base: M > 0; the paper tries 2, 3, 4 and 5. Should exceed the loss of a model that knows nothing, log(classes).
        margin: ε in (0, M]: from a loss of M − ε on the surrogate is linear.
        tail: how it goes on there; see :func:`surrogate`. ``"huber"`` and ``"continuous"`` train alike.
        per_sample: one slope a round instead of one a batch.
        loss_bound: for ``per_sample``: at which each example's loss is cut off before it is averaged; if finite, the
            summed (loss/bound, 1)/√2 has a norm of at most 1 per example.

    Other arguments: :class:`privfl.algorithms.fedavg.FedAvg`.
    """

    name: ClassVar[str] = "propfair"
    base: float = 5.0
    margin: float = 0.2
    tail: Tail = "linear"
    per_sample: bool = False
    loss_bound: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("propfair's base", self.base, 0, above=True)
        check_number("propfair's margin", self.margin, 0, self.base, above=True)
        check_loss_bound(self.name, self.loss_bound)
        if not self.per_sample and self.loss_bound < math.inf:
            raise ConfigError(
                f"propfair's loss_bound is {self.loss_bound!r}, but no loss is reported; set per_sample = true, or "
                "leave it out"
            )
        if self.per_sample:  # a total that is not taken must cost nothing
            object.__setattr__(self, "statistics", (LOSS,))

    def dpsgd_refusal(self) -> str:
        if self.per_sample:
            return ""
        return "propfair's surrogate couples the samples of a batch; set per_sample = true"

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {**super().begin(received, client_state, training), "slope": received["parameters"].new_ones(())}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        if self.per_sample:
            total = client.total(with_count(client.loss, self.loss_bound), local["parameters"], everything, name=LOSS)
            loss = mean_loss(total, self.loss_bound).to(local["slope"].dtype)
            local["slope"] = slope(loss, self.base, self.margin, self.tail)

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if self.per_sample:
            gradient = client.gradient(client.loss, local["parameters"], batch) * local["slope"]
        else:
            gradient = client.gradient(coupled(partial(self.batch_loss, client.loss)), local["parameters"], batch)
        descend(local, gradient, training)

    def batch_loss(
        self, loss: Loss, network: nn.Module, inputs: Tensor, targets: Tensor, *, present: Tensor, **given: Any
    ) -> Tensor:
        """The surrogate of the mean ``loss`` of the rows that are ``present``, once for every row [B]."""
        terms = torch.where(present, loss(network, inputs, targets, **given), 0)
        mean = terms.sum() / present.sum().clamp_min(1)
        return surrogate(mean, self.base, self.margin, self.tail).expand_as(terms)


def surrogate(loss: Tensor, base: float, margin: float, tail: Tail) -> Tensor:
    """What PropFair minimises in place of a mean ``loss``, of its shape.

    ``−log(1 − loss/M)`` for ``loss ≤ M − ε``; beyond, ``linear``: loss/M, the authors' default, which drops in value
    and slope there; ``huber``: loss/ε, their other choice, which jumps in value; ``continuous``:
    ``log(M/ε) + (loss − M + ε)/ε``, which neither drops nor jumps and has the slope of ``huber``.

    Args:
        loss: ≥ 0.
        base: M > 0.
        margin: ε in (0, M].
        tail: what follows the logarithm.
    """
    inside = loss <= base - margin
    # Cut off, so that autograd meets no infinity; not by clamp, whose slope at its end depends on PyTorch's version.
    near = -torch.log1p(-torch.where(inside, loss, 0) / base)
    far = {
        "linear": loss / base,
        "huber": loss / margin,
        "continuous": math.log(base / margin) + (loss - base + margin) / margin,
    }[tail]
    return torch.where(inside, near, far)


def slope(loss: Tensor, base: float, margin: float, tail: Tail) -> Tensor:
    """The derivative of :func:`surrogate` at ``loss``, of its shape: 1/(M − loss), then 1/M or 1/ε."""
    far = torch.full_like(loss, 1 / (base if tail == "linear" else margin))
    return torch.where(loss <= base - margin, 1 / (base - loss.clamp(max=base - margin)), far)
