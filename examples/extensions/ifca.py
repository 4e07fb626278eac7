"""IFCA in one file: of several models, every client trains the one that suits its data best."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import privfl as pf


@dataclass(frozen=True)
class IFCA(pf.FedAvg):
    """IFCA (Ghosh et al., NeurIPS 2020), option II: k models, averaged over the clients that chose them."""

    name: ClassVar[str] = "ifca"
    ensemble: ClassVar[bool] = True  # tested is the mean over the clients' own models: no single one is the answer
    keeps: ClassVar[tuple[str, ...]] = ("choice",)
    statistics: ClassVar[tuple[str, ...]] = ("losses_0", "losses_1")  # one total for each model
    k: ClassVar[int] = 2

    def fields(self):
        return pf.Field("update", shape=(self.k * self.context.layout.size,)), pf.Field("members", shape=(self.k,))

    def start(self, parameters):
        return {"parameters": parameters, "models": torch.stack([self.context.fresh("ifca", j) for j in range(self.k)])}

    def broadcast(self, server):
        return {"parameters": server["models"][0], "models": server["models"]}

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "choice": received["models"].new_zeros(self.k)}

    def prepare(self, local, received, everything, client, training):
        losses = [
            client.total(client.loss, received["models"][j], everything, name=s) for j, s in enumerate(self.statistics)
        ]
        local["choice"].copy_(torch.arange(self.k) == torch.stack(losses).argmin())
        local["parameters"].copy_(local["choice"] @ received["models"])

    def finish(self, local, received, training):
        choice = local["choice"]
        return {
            "update": torch.outer(choice, local["parameters"] - choice @ received["models"]).flatten(),
            "members": choice,
        }

    def aggregate(self, server, total, round, training):
        mean = total["update"].view(self.k, -1) / total["members"].clamp_min(1)[:, None]
        return {**server, "models": server["models"] + mean}

    def personal(self, server, client_state):
        return {"personal": client_state["choice"] @ server["models"]} if "choice" in client_state else {}
