"""SuPerFed: a federated and a personal model per client, joined by a segment of good models between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.personal.interpolation import mix, norm_proximity_gradient, random_parameters
from privfl.algorithms.personal.superfed_steps import Pull, Regularisers, descend_both, mixture
from privfl.federation.context import RunContext
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number

LAMBDAS = (0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Where a client's own models lie on the segment, eq. (10); the middle, which no data chose, comes first."""


@dataclass(frozen=True)
class SuPerFed(FedAvg):
    """SuPerFed (Hahn, Jeong and Lee, KDD 2022), Algorithm 1: personalised mixtures of two end points.

    Client k holds the federated end point w^f (the received model) and its own w^l, from an initialisation of its own.
    In phase II every batch sees one point ``W(λ) = (1 − λ)·w^f + λ·w^l`` with λ ~ U(0, 1), and both end points follow
    ``ℓ(W(λ)) + μ·‖w^f − w^g‖² + ν·cos²(w^f, w^l)``, eq. (3). In phase I, the first ⌊L·R⌋ rounds, λ = 0 and w^l rests:
    FedProx with twice the μ. The client sends w^f only, so a round costs what FedAvg's does, and every mixture serves
    as a model of its own (``lambda-0.5`` and ten more). Momentum and weight decay of the training settings act on both
    end points and start anew in every round.

    One gradient G at W(λ) passes the door; the end points get (1 − λ)·G and λ·G of it, eqs. (6) and (7). w^l reaches
    later uploads through W(λ), so it is no private part: under DP-SGD it must be a function of what the door gave.
    That holds here: λ does not depend on data, and w^f and w^l are computed from the clipped and noised G and from
    public values alone, so that by post-processing both cost exactly what the noisy gradients cost, over all rounds.
    Noising w^f's gradient alone would not do: one example could move all others' gradients through w^l. Noise that
    hides clients needs no such care, because an update is clipped whatever shaped it. w^l itself memorises the client's
    data and has no protection of its own without DP-SGD: it must not leave the client.

    Differs from the paper's code: ‖·‖² is squared as in the authors' slides (``prox="norm"``: the code's sum of
    unsquared norms), the cosine has no 1e-6 in every product, biases are averaged too, and one λ per layer counts a
    module with parameters as a layer.

    Args:
        mode: ``"mm"`` draws one λ for a batch, ``"lm"`` one for each layer.
        start_fraction: L in [0, 1]: phase II begins after ⌊L·rounds⌋ rounds; by default 0.4 (mm) or 0.6 (lm). The
            paper tunes it in each setting, from 0.2 to 0.8.
        mu: μ ≥ 0.
        nu: ν ≥ 0; by default 1 (mm) or 2 (lm).
        prox: ``"squared"`` or ``"norm"``; the scales of their μ differ.
        cos_over: the parameters of the cosine: ``"all"``, or ``"random"`` for those drawn at random at the start.
            Scales of normalisation layers start equal at both end points and otherwise take most of ν's effect.
    """

    name: ClassVar[str] = "superfed"
    uses_rounds: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("personal",)
    mode: Literal["mm", "lm"] = "mm"
    start_fraction: float | None = None
    mu: float = 0.01
    nu: float | None = None
    prox: Literal["squared", "norm"] = "squared"
    cos_over: Literal["all", "random"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("superfed's mu", self.mu, 0)
        check_number("superfed's nu", self.orthogonality, 0)
        check_number("superfed's start_fraction", self.begins, 0, 1)

    @property
    def orthogonality(self) -> float:
        """ν: as given, or the paper's for the mode."""
        return {"mm": 1.0, "lm": 2.0}[self.mode] if self.nu is None else self.nu

    @property
    def begins(self) -> float:
        """L: as given, or the paper's usual one for the mode."""
        return {"mm": 0.4, "lm": 0.6}[self.mode] if self.start_fraction is None else self.start_fraction

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        for name in ("layer_sizes", "drawn"):  # anew for this run, and now: inside a stack nothing can be initialised
            bound.__dict__.pop(name, None)
            getattr(bound, name)
        return bound

    def start(self, parameters: Tensor) -> Tensors:
        return self.begin_round(super().start(parameters), 0)

    def begin_round(self, server: Tensors, number: int) -> Tensors:
        """Phase II begins with round ⌊L·R⌋ (from 0); from then on the broadcast says ``mixing``."""
        first = math.floor(self.begins * self.context.rounds + 1e-9)  # 0.29·100 is 28.999…
        return server if number < first else {**server, "mixing": torch.ones((), device=server["parameters"].device)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("parameters", "mixing") if name in server}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {"phase": 2.0 if "mixing" in server else 1.0}

    def warnings(self, server: Tensors) -> list[str]:
        if "mixing" in server:
            return []
        return ["superfed never mixed, so personal end points are untrained; lower start_fraction or add rounds"]

    def random_numbers(self) -> tuple[int, int]:
        return (1 if self.mode == "mm" else len(self.layer_sizes)), 0

    def initial_client_state(self, client: int) -> Tensors:
        return {"personal": self.context.fresh("personal", client)}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        local["personal"] = client_state["personal"]
        if "mixing" in received:
            local["personal"] = client_state["personal"].clone()
            if training.momentum:
                local["personal_momentum"] = torch.zeros_like(client_state["personal"])
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if "mixing" not in received:
            super().step(local, received, batch, client, training)
            return
        share = self.share(batch)
        mixed = mixture(local, share, self.layer_sizes)
        gradient = client.gradient(client.loss, mixed, batch)
        terms = Regularisers(self.orthogonality, self.drawn, self.pull(local, received))
        descend_both(local, gradient, mixed, share, self.layer_sizes, terms, training)

    def share(self, batch: Batch) -> Tensor:
        """λ of this batch: [] for ``mm``, [layers] for ``lm``."""
        return batch.uniform[0] if self.mode == "mm" else batch.uniform

    def pull(self, local: Tensors, received: Tensors) -> Pull | None:
        """The gradient of the proximity to w^g."""
        here, anchor = local["parameters"], received["parameters"]
        if not self.mu:
            return None
        if self.prox == "squared":
            return Pull(2 * self.mu, -2 * self.mu, anchor)
        return Pull(0.0, self.mu, norm_proximity_gradient(here, anchor, self.context.layout.sizes))

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        """Add the gradient of the proximity to w^g in place."""
        pull = self.pull(local, received)
        if pull is not None:
            pull.add_to_(gradient, local["parameters"])

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """The client's models along the segment from w^g to its w^l, one λ for all layers."""
        return {f"lambda-{lam}": mix(server["parameters"], client_state["personal"], lam) for lam in LAMBDAS}

    @cached_property
    def layer_sizes(self) -> list[int]:
        """Number of parameters of each layer, in order."""
        return torch.bincount(self.context.blocks).tolist()

    @cached_property
    def drawn(self) -> Tensor | None:
        """1 where a parameter counts in the cosine, else 0, [size]; ``None`` if all count."""
        if self.cos_over == "all":
            return None
        one, other = (self.context.fresh("cosine", number) for number in (0, 1))
        found = random_parameters(self.context.layout, one, other)
        return None if bool(found.all()) else found.to(one.dtype)
