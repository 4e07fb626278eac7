"""FedPer: one base for all clients, and a head of its own for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.personal.partial_sharing import Split, check_layers, last_layers


@dataclass(frozen=True)
class FedPer(Split):
    """FedPer (Arivazhagan et al., arXiv 1912.00818): clients train base and head jointly and upload the base.

    ``w_k = (base, head_k)``: the server averages the bases (FedAvg's weights), the heads stay where they are. With
    nothing private it is FedAvg, with nothing shared training alone. An upload holds the base and nothing else, and
    heads start at the common initial model. For what is claimed, and how models are tested, see
    :class:`~privfl.algorithms.personal.partial_sharing.Split`.

    Args:
        weighting, server_learning_rate: as for :class:`~privfl.algorithms.fedavg.FedAvg`.
        personal_layers: number of last layers that are private, from 1 to all but one; ``None``: the network's head.
            A normalisation layer counts as a layer. The paper keeps the last block and the classifier.
    """

    name: ClassVar[str] = "fedper"
    personal_layers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(f"{self.name}'s personal_layers", self.personal_layers)

    def part(self) -> Tensor:
        return ~last_layers(self.context, self.personal_layers, f"{self.name}'s personal_layers")
