"""SCAFFOLD: control variates take the drift of each client's objective out of its local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors, Weighting, descend
from privfl.federation.context import RunContext
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1.

    Client k keeps a control variate c_k and the server c, all 0 at the start. A local step is
    ``v ← v − η·(g_k(v) − c_k + c)``, eq. (3). Afterwards the client sends Δ_k = v − w and Δc_k = c_k⁺ − c_k, and the
    server steps ``w ← w + η_g·(1/m)·Σ_S Δ_k`` and ``c ← c + (1/N)·Σ_S Δc_k``, eq. (5). Hence c is the mean of all N
    clients' c_k after every round (up to rounding, also that of a secure sum), which several libraries miss by a factor
    N/m. A client whose upload does not arrive keeps its old c_k; one that a cohort draws twice moves c once. A round
    costs twice the download and upload of FedAvg.

    Option II of eq. (4), ``c_k⁺ = c_k − c + (w − v)/(K_k·η)`` with the K_k steps that the client took, is the mean of
    the gradients g_k(v) of its steps as long as these are plain SGD. That mean is what is computed here: momentum,
    weight decay and a decaying η do not disturb it, and in float32 it does not cancel. Momentum starts anew in every
    round and weight decay, the same term for everybody, needs no control.

    It minimises Σ_k F_k, every client's objective alike, whichever cohorts are drawn. ``weighting="size"`` minimises
    Σ_k n_k·F_k instead, by the form of the FedDyn authors' code with weights ω_k = n_k·N/n: the step adds c/ω_k for c,
    and ``c ← c + (1/N)·Σ_S ω_k·Δc_k``. The constant N/n cancels, so clients use n_k, and c is the mean of n_k·c_k.

    Under DP-SGD v, c_k and with them both fields are functions of the noisy gradients, of the public number of steps
    and of public values alone: by post-processing a round costs exactly what FedAvg's noisy gradients cost. c_k is fed
    by data and reaches later uploads, so it is no private part. Mechanisms on updates need an algorithm that sends one
    field, so :class:`FedDyn` takes them and this does not.

    ==========================================  ========================================================
    edge case                                   what happens
    ==========================================  ========================================================
    an upload is NaN, or its secure sum fails   its client's c_k stays as it was, and so does its part of c
    an empty batch                              a gradient of zero (pure noise under DP-SGD), counted as a step
    option I or sizes with DP-SGD               refused: another gradient of all rows; an exact size
    ==========================================  ========================================================

    Args:
        option: ``"II"``, or ``"I"``: c_k⁺ = ∇F_k(w), one more pass over the client's rows in every round. With many
            local steps it can diverge where II does not: the gradient shrinks on the way, its correction does not.
        weighting: ``"uniform"`` (the paper's) or ``"size"``; by default the experiment's, and ``"uniform"`` where it
            has none.
        server_learning_rate: η_g > 0.
    """

    name: ClassVar[str] = "scaffold"
    usual_weighting: ClassVar[Weighting] = "uniform"  # DP-SGD refuses clients that scale by their exact sizes
    keeps: ClassVar[tuple[str, ...]] = ("control",)
    option: Literal["I", "II"] = "II"
    counts_by: ClassVar[str] = "weighting"
    weighting: Literal["size", "uniform"] | None = None
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_number("scaffold's server_learning_rate", self.server_learning_rate, 0, above=True)

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        if self.option == "I":  # a class of its own: option II must not pay for a batch of all rows
            kind = type(self)
            object.__setattr__(bound, "__class__", type(kind.__name__, (kind, _FullGradientFirst), {}))
        return bound

    def fields(self) -> tuple[Field, ...]:
        return Field("update"), Field("control", weighted=False)

    def dpsgd_refusal(self) -> str:
        if self.option == "I":
            return (
                "scaffold's option I takes one more gradient, of all of a client's rows at once; use option = 'II', "
                "whose control variate is a mean of noisy gradients"
            )
        if self.weighs == "size":
            return "scaffold's clients scale by their exact sizes; use weighting = 'uniform'"
        return ""

    def start(self, parameters: Tensor) -> Tensors:
        return {**super().start(parameters), "control": torch.zeros_like(parameters)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", "control")}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        parameters, ours = received["parameters"], super().begin(received, client_state, training)
        ours["control"] = client_state["control"] if "control" in client_state else torch.zeros_like(parameters)
        ours["gathered"], ours["taken"] = torch.zeros_like(parameters), parameters.new_zeros(())
        ours["scale"] = parameters.new_ones(())
        return ours

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if self.weighs == "size":
            local["scale"].copy_(client.size())
        gradient = client.gradient(client.loss, local["parameters"], batch)
        if self.option == "II":
            gather(local, gradient)
        self.add_data_independent_gradient(gradient, local, received)
        descend(local, gradient, training)

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        common = received["control"] if self.weighs == "uniform" else received["control"] / local["scale"]
        gradient.sub_(local["control"]).add_(common)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        control = local["gathered"] / local["taken"]
        change = (control - local["control"]) * local["scale"]
        local["control"].copy_(control)
        return {"update": local["parameters"] - received["parameters"], "control": change}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if round.weight == 0:
            return server
        parameters = server["parameters"] + total["update"] * (self.server_learning_rate / round.weight)
        return {**server, "parameters": parameters, "control": server["control"] + total["control"] / round.clients}


class _FullGradientFirst(Algorithm):
    """Option I of eq. (4): the control variate is the gradient of all rows at the received model."""

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        gather(local, client.gradient(client.loss, received["parameters"], everything))


def gather(local: Tensors, gradient: Tensor) -> None:
    """Count one more ``gradient`` [size] in what the client's next control variate is the mean of."""
    local["gathered"].add_(gradient)
    local["taken"].add_(1)
