"""FedSampling: every sample of the federation has the same chance to be used, and nobody reveals a size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors, server_step
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining, Plan, Poisson
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.sizes.estimate import sampling_rate
from privfl.validation import check_count, check_rate


@dataclass(frozen=True)
class FedSampling(Algorithm):
    """FedSampling (Qi et al., IJCAI 2023), equations (8) to (12) of ``docs/reference/equations.md``.

    Clients report their sizes, the server estimates the total N̂, every client keeps each sample with probability
    p = min(1, K/N̂) and sends ``Δ_u = (1/K)·Σ_{j∈S_u} ∇ℓ_j``; the server steps ``θ ← θ − η·Σ_u Δ_u``.

    Differs from the paper and its code: the truth is clipped to the range that fakes are drawn from (without that a
    client beyond the range has no privacy), p is capped at 1, and an empty selection sends zeros. As in the paper,
    one round is one gradient step, so momentum and weight decay act in the server's step and ``batch_size``, ``epochs``
    and ``steps`` have no meaning; ``local_steps`` > 1 trains on the selection by plain SGD and sends
    ``(|S_u|/K)·(θ_t − θ_u)/η``, which DP-SGD refuses because ``|S_u|`` is not protected then.

    Args:
        samples_per_round: K ≥ 1, the public number of samples wanted in a round.
        local_steps: SGD steps on the selection.
    """

    name: ClassVar[str] = "fedsampling"
    samples_per_round: int = 2048
    local_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("samples_per_round", "local_steps"):
            check_count(f"fedsampling's {name}", getattr(self, name))

    def fields(self) -> tuple[Field, ...]:
        scale = 1 / self.samples_per_round if self.local_steps == 1 else None
        return (Field("update", per_sample_scale=scale),)

    def asks_sizes(self) -> bool:
        return True

    def dpsgd_refusal(self) -> str:
        if self.local_steps == 1:
            return ""
        return f"fedsampling with local_steps = {self.local_steps} reveals how many samples it chose; use 1"

    def start(self, parameters: Tensor) -> Tensors:
        return {**super().start(parameters), "rate": torch.ones((), dtype=torch.float64)}

    def with_size_estimate(self, server: Tensors, samples: float, contacted: float) -> Tensors:
        rate = sampling_rate(self.samples_per_round, samples, contacted).value
        return {**server, "rate": torch.tensor(rate, dtype=torch.float64)}

    def warnings(self, server: Tensors) -> list[str]:
        if float(server["rate"]) < 1:
            return []
        return [
            f"samples_per_round = {self.samples_per_round} is not below the estimated number of samples: the sampling "
            "rate is capped at 1 and nothing is amplified; lower it"
        ]

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {"sampling_rate": float(server["rate"])}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"parameters": server["parameters"], "rate": server["rate"]}

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        divisor = float(self.samples_per_round) if self.local_steps == 1 else None
        return Poisson(float(received["rate"]), steps=1, divisor=divisor)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {"parameters": received["parameters"], "update": torch.zeros_like(received["parameters"])}

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if self.local_steps == 1:
            local["update"].add_(client.gradient(client.loss, local["parameters"], batch))
            return
        for _ in range(self.local_steps):
            local["parameters"].sub_(
                client.gradient(client.loss, local["parameters"], batch), alpha=training.learning_rate
            )
        moved = received["parameters"] - local["parameters"]
        local["update"].add_(moved * (batch.count / (self.samples_per_round * training.learning_rate)))

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": local["update"]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return server_step(server, total["update"], training)


@dataclass(frozen=True)
class NaiveFedSampling(Algorithm):
    """The paper's ablation: a fixed public rate p₀, and the mean of the clients' mean gradients.

    ``θ ← θ − η·mean_u(ḡ_u)`` over the clients with a selection. Biased towards small clients unless all are equal.

    Args:
        rate: p₀ in (0, 1].
    """

    name: ClassVar[str] = "fedsampling-naive"
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_rate("fedsampling-naive's rate", self.rate)

    def fields(self) -> tuple[Field, ...]:
        return (Field("update"), Field("answered", shape=()))

    def dpsgd_refusal(self) -> str:
        return "fedsampling-naive divides by the private number of chosen samples; use fedsampling"

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        return Poisson(self.rate)

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        parameters = received["parameters"]
        return {
            "parameters": parameters,
            "update": torch.zeros_like(parameters),
            "answered": parameters.new_zeros(()),
        }

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        local["update"].add_(client.gradient(client.loss, local["parameters"], batch))
        local["answered"].add_(batch.count > 0)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": local["update"], "answered": local["answered"]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return server_step(server, total["update"] / total["answered"].clamp_min(1), training)
