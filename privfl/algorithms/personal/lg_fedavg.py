"""LG-FedAvg: representations of their own for each client, and one set of top layers for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.personal.partial_sharing import Split, check_layers, last_layers


@dataclass(frozen=True)
class LGFedAvg(Split):
    """LG-FedAvg (Liang et al., arXiv 2001.01523): lower layers stay local, the top layers are averaged.

    The mirror image of FedPer. Clients train all layers jointly and upload the top ones, of which the server takes the
    plain mean, as the authors' code does. For a new device, and in the global test, the soft-max outputs of all
    clients' models are averaged. With nothing private it is FedAvg with uniform weights, with nothing shared training
    alone. For what is claimed see :class:`~privfl.algorithms.personal.partial_sharing.Split`.

    Differs from the authors' code, which starts all clients from a model that FedAvg has trained: a task whose
    ``model`` builds that network does the same here. It also reports each client's best accuracy on test data over all
    rounds, which is not done here.

    Args:
        weighting, server_learning_rate: as for :class:`~privfl.algorithms.fedavg.FedAvg`.
        shared_layers: number of last layers that are averaged, from 1 to all but one; ``None``: the network's head. A
            normalisation layer counts as a layer. The paper shares two of its CIFAR network and three of its dense one.
    """

    name: ClassVar[str] = "lg-fedavg"
    shared_layers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(f"{self.name}'s shared_layers", self.shared_layers)

    def part(self) -> Tensor:
        return last_layers(self.context, self.shared_layers, f"{self.name}'s shared_layers")
