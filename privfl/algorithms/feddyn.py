"""FedDyn: dynamic regularisation makes the clients' optima and the federation's agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors, descend
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn (Acar et al., ICLR 2021), Algorithm 1, in the displacements of the authors' code.

    The paper's client takes SGD steps on ``F_k(v) − ⟨h_k, v⟩ + (α/2)·‖v − w‖²`` from v = w and then sets
    ``h_k ← h_k − α(v − w)``; the server sets ``h ← h − α·(1/N)·Σ_S (v_k − w)`` and ``w ← (1/m)·Σ_S v_k − h/α``. Here
    the scaled duals u_k = −h_k/α and u = −h/α are kept, all 0 at the start, because then the server needs no α:
    ``u_k ← u_k + (v − w)``, ``u ← u + (1/N)·Σ_S (v_k − w)``, ``w ← (1/m)·Σ_S v_k + u``. The local gradient is
    ``g_k(v) + α·(v − w + u_k)``; all but g_k is added after clipping and noise. Hence u is the mean of all N clients'
    u_k after every round, up to rounding, also that of a secure sum. A client whose upload does not arrive keeps its
    old u_k; one that a cohort draws twice counts once, in the mean and in u. The upload is v − w alone, as large as
    FedAvg's.

    It minimises Σ_k F_k, every client's objective alike, whichever cohorts are drawn. With unequal sizes ``mean_size``
    minimises Σ_k n_k·F_k by the adaptive α_k = α·(n/N)/n_k of the authors' code. Momentum and weight decay of the
    training settings act on the whole local gradient; momentum starts anew in every round.

    Differs from the authors' code: it scales the local gradient, before weight decay and momentum, to norm 10 where it
    is longer, here only with ``max_gradient_norm=10``, and its α is adapted to unequal sizes, here only with
    ``mean_size``.

    Under DP-SGD v and u_k are functions of the noisy gradients and of public values alone: by post-processing a round
    costs exactly what FedAvg's noisy gradients cost. u_k is fed by data and reaches later uploads, so it is no private
    part. Noise on updates covers what is sent, whatever shaped it, but costs accuracy: see the table.

    ==========================================  ========================================================
    edge case                                   what happens
    ==========================================  ========================================================
    an upload is NaN, or its secure sum fails   its client's u_k stays as it was, and so does its part of u, also
                                                where noise lets the upload count as zeros
    explicit steps with η·(α + curvature) > 2   the local steps diverge; lower the learning rate or α
    updates clipped or noised on their way      u parts from the mean of u_k for good, and the optimum that is
                                                found shifts; prefer DP-SGD, or a bound that rarely bites
    ``mean_size`` with DP-SGD                   refused: α_k would tell the exact size
    ==========================================  ========================================================

    Args:
        alpha: α > 0; the paper uses 0.1, 0.01 and 0.001, its experiments on CIFAR 0.01.
        evaluate: which model is tested: ``"average"``, the mean of the cohort's v_k that the paper's code reports, or
            ``"server"``, the corrected w that clients receive.
        mean_size: n/N, the public mean number of samples of a client, for α_k; ``None`` is the same α for all.
        max_gradient_norm: > 0; how long the local gradient of a step may be, all terms but weight decay together. It
            acts after DP-SGD's own clipping and noise, so no claim rests on it. ``None`` is no bound, as in the paper.
    """

    name: ClassVar[str] = "feddyn"
    keeps: ClassVar[tuple[str, ...]] = ("dual",)
    alpha: float = 0.01
    evaluate: Literal["average", "server"] = "average"
    mean_size: float | None = None
    max_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        check_number("feddyn's alpha", self.alpha, 0, above=True)
        if self.mean_size is not None:
            check_number("feddyn's mean_size", self.mean_size, 0, above=True)
        if self.max_gradient_norm is not None:
            check_number("feddyn's max_gradient_norm", self.max_gradient_norm, 0, above=True)

    def fields(self) -> tuple[Field, ...]:
        return (Field("update", weighted=False),)

    def dpsgd_refusal(self) -> str:
        if self.mean_size is None:
            return ""
        return "feddyn with mean_size scales by the exact size of every client; leave mean_size out"

    def start(self, parameters: Tensor) -> Tensors:
        return {**super().start(parameters), "average": parameters.clone(), "dual": torch.zeros_like(parameters)}

    def eval_parameters(self, server: Tensors) -> Tensor:
        return server["average" if self.evaluate == "average" else "parameters"]

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        local["dual"] = client_state["dual"] if "dual" in client_state else torch.zeros_like(received["parameters"])
        local["alpha"] = torch.full_like(received["parameters"][0], self.alpha)
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if self.mean_size is not None:
            local["alpha"].copy_(self.alpha * self.mean_size / client.size())
        gradient = client.gradient(client.loss, local["parameters"], batch)
        self.add_data_independent_gradient(gradient, local, received)
        if self.max_gradient_norm is not None:
            gradient.mul_(self.max_gradient_norm / gradient.norm().clamp(min=self.max_gradient_norm))
        descend(local, gradient, training)

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        pull = (local["parameters"] - received["parameters"]).add_(local["dual"])
        gradient.add_(pull.mul_(local["alpha"]))

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        moved = local["parameters"] - received["parameters"]
        # Where noise must hide who failed, a broken upload counts as zeros: then u_k must not move, or break, either.
        local["dual"].add_(torch.where(moved.isfinite().all(), moved, 0.0))
        return {"update": moved}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        # m: clients, not draws, so that u and the mean see the same sum; where noise hides them, the public number.
        present = round.weight - (float(round.weights.sum()) - len(round.members))
        if present == 0:
            return server
        average = server["parameters"] + total["update"] / present
        dual = server["dual"] + total["update"] / round.clients
        return {**server, "parameters": average + dual, "average": average, "dual": dual}
