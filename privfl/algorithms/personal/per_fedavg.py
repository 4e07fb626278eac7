"""per-FedAvg: a federated model that is good after one gradient step on a client's own data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.errors import ConfigError
from privfl.federation.context import RunContext
from privfl.privacy.door.batch_plans import LocalTraining, Plan, Poisson
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_count, check_number


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """per-FedAvg (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020): ``min_w Σ_k F_k(w − α·∇F_k(w))`` over clients k.

    A local step takes batches D, D' and D'' of its own: with ``w̃ = v − α·g(v; D)``,

        v ← v − β·(I − α·H(v; D''))·g(w̃; D'),

    where β, momentum and weight decay are those of the training settings. The first-order form drops H and D''. The
    Hessian-free one takes ``H·d ≈ (g(v + δd; D'') − g(v − δd; D'')) / 2δ`` with d = g(w̃; D'). α = 0 is FedAvg.

    Differs from the paper: the exact form is left out, because a client's data gives gradients here, no second
    derivatives; and the client's own model takes its steps on all of the client's data at once.

    One step of the training settings (its ``steps``, or a batch of its ``epochs``) is one local step of the paper, so a
    round draws two or three times as many batches, one after the other from the same plan: disjoint rows within an
    epoch, independent Poisson batches with DP-SGD. Every batch gives the first-order form one gradient, so DP-SGD
    protects it and charges all of them: v and w̃ are functions of noisy gradients and public values.

    The client's own model is the model it last *received* after ``adaptation_steps`` steps ``w ← w − α·∇F_k(w)`` over
    all of its data, taken after training with gradients that stay: it enters no upload, costs a pass over the data, is
    one round older than the server's model, and has no protection of its own.

    The engine runs clients stacked and may not ask which batch of the three it has, so the Hessian-free form takes two
    gradients of each (six where four would do).

    Args:
        weighting: see FedAvg; the paper has ``"uniform"``.
        form: ``"first-order"`` or ``"hessian-free"``; the latter is not for DP-SGD, nor for models with drop-out, whose
            masks would differ between the two gradients. It divides a small difference by δ, so it needs gradients in
            float32 (``precision``) or wider.
        inner_learning_rate: α ≥ 0; the paper uses 0.01, with a β of 0.001.
        difference: δ > 0 of the Hessian-free form.
        adaptation_steps: steps ≥ 1 from the received model to the client's own.
    """

    name: ClassVar[str] = "per-fedavg"
    keeps: ClassVar[tuple[str, ...]] = ("personal",)
    local_only: ClassVar[bool] = True
    form: Literal["first-order", "hessian-free"] = "first-order"
    inner_learning_rate: float = 0.01
    difference: float = 1e-3
    adaptation_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("per-fedavg's inner_learning_rate", self.inner_learning_rate, 0)
        check_number("per-fedavg's difference", self.difference, 0, above=True)
        check_count("per-fedavg's adaptation_steps", self.adaptation_steps)

    @property
    def batches(self) -> int:
        """Batches of one local step."""
        return 2 if self.form == "first-order" else 3

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        if self.form == "hessian-free" and any(map(_drops, context.network().modules())):
            raise ConfigError(
                "per-fedavg's hessian-free form subtracts two gradients whose drop-out masks would differ; use form = "
                "'first-order', or a model without drop-out"
            )
        return bound

    def dpsgd_refusal(self) -> str:
        if self.form == "first-order":
            return ""
        return (
            "per-fedavg's hessian-free form takes two gradients of every batch, which share the draw that amplifies; "
            "use form = 'first-order'"
        )

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        if isinstance(usual, Poisson):
            return replace(usual, steps=self.batches * usual.steps)
        steps = None if usual.steps is None else self.batches * usual.steps
        return replace(usual, epochs=self.batches * usual.epochs, steps=steps)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        start = received["parameters"]
        local |= {"turn": start.new_zeros(()), "adapted": start.clone(), "personal": start.clone()}
        if self.form == "hessian-free":
            local["direction"] = torch.zeros_like(start)
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        here, turn = local["parameters"], local["turn"]
        point = torch.where(turn == 0, here, local["adapted"])
        if self.form == "first-order":
            outer = client.gradient(client.loss, point, batch)
            self._adapt(local, outer)
        else:
            shift = self.difference * local["direction"]
            point = torch.where(turn == 2, here + shift, point)
            gradient = client.gradient(client.loss, point, batch).clone()  # the next one may use the same memory
            behind = client.gradient(client.loss, here - shift, batch)
            self._adapt(local, gradient)
            curvature = (gradient - behind) / (2 * self.difference)
            outer = local["direction"] - self.inner_learning_rate * curvature
            local["direction"] = torch.where(turn == 1, gradient, local["direction"])
        after: Tensors = {name: local[name].clone() for name in ("parameters", "momentum") if name in local}
        descend(after, outer, training)
        for name, value in after.items():
            local[name].copy_(torch.where(turn == self.batches - 1, value, local[name]))
        local["turn"] = torch.remainder(turn + 1, self.batches)

    def _adapt(self, local: Tensors, gradient: Tensor) -> None:
        """w̃, on the first of the batches of a local step."""
        adapted = local["parameters"] - self.inner_learning_rate * gradient
        local["adapted"] = torch.where(local["turn"] == 0, adapted, local["adapted"])

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        own = received["parameters"]
        for _ in range(self.adaptation_steps):
            own = own - self.inner_learning_rate * client.local_only_gradient(client.loss, own, everything)
        local["personal"] = own

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """The received model after its steps; the server's model for a client that never took part."""
        return {"personal": client_state.get("personal", server["parameters"])}


def _drops(module: nn.Module) -> bool:
    """Whether ``module`` draws drop-out masks in training."""
    chance = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(chance, int | float) and chance > 0
