"""FedNova in one file: clients that take more steps do not pull the average their way."""

from dataclasses import dataclass
from typing import ClassVar

import privfl as pf


@dataclass(frozen=True)
class FedNova(pf.FedAvg):
    """FedNova (Wang et al., NeurIPS 2020) for plain SGD: ``w ← w + τ_eff·Σ a_k Δ_k/τ_k``, ``τ_eff = Σ a_k τ_k``.

    τ_k is the number of the client's steps. Under DP-SGD it follows from public settings.
    """

    name: ClassVar[str] = "fednova"

    def fields(self):
        return pf.Field("update"), pf.Field("steps", shape=())

    def begin(self, received, client_state, training):
        local = super().begin(received, client_state, training)
        return {**local, "steps": received["parameters"].new_zeros(())}

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["steps"] += 1

    def finish(self, local, received, training):
        update = super().finish(local, received, training)["update"]
        return {"update": update / local["steps"].clamp_min(1), "steps": local["steps"]}

    def aggregate(self, server, total, round, training):
        effective_steps = total["steps"] / max(round.weight, 1e-12)
        return super().aggregate(server, {"update": total["update"] * effective_steps}, round, training)


if __name__ == "__main__":
    task = pf.load("digits", partition=pf.Dirichlet(clients=10, alpha=0.5), model="logistic")
    print(pf.simulate(task, FedNova(), rounds=5, training=pf.LocalTraining(epochs=2)).summary)
