"""The networks of the comparison with peers: two so small that overhead decides, one in which arithmetic does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


def small_network() -> nn.Module:
    """Two strided convolutions and one linear layer: [B, 1, 28, 28] → [B, 10]."""
    features = [nn.Conv2d(1, 8, kernel_size=5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, kernel_size=3, stride=2)]
    return nn.Sequential(*features, nn.ReLU(), nn.Flatten(), nn.Linear(400, 10))


def mlp_network() -> nn.Module:
    """One hidden layer of six units: [B, 1, 28, 28] → [B, 10]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.ReLU(), nn.Linear(6, 10))


def cnn_network() -> nn.Module:
    """Two convolutions, pooling, drop-out and two linear layers: [B, 1, 28, 28] → [B, 10]; weights by Glorot."""
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, kernel_size=3), nn.ReLU(), nn.Conv2d(32, 64, kernel_size=3), nn.ReLU()),
        *(nn.MaxPool2d(kernel_size=2), nn.Dropout(p=0.25), nn.Flatten()),
        *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(p=0.5), nn.Linear(128, 10)),
    )
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return network


@dataclass(frozen=True)
class Work:
    """What is compared: ``rounds`` rounds of a network of ``parameters`` parameters at ``cohort`` clients.

    ``peers_name`` is what the peers' scripts call the network; a network ``of_our_own`` is put in its place (see
    ``mlp_common.py``). The small models run for more rounds, because privfl
    does not measure which engine is fastest where a run is over in seconds.
    """

    network: Callable[[], nn.Module]
    parameters: int
    cohort: int
    rounds: int
    peers_name: str
    of_our_own: bool = False

    def check(self) -> None:
        """Stop if the network is not the peers' one."""
        found = sum(parameter.numel() for parameter in self.network().parameters())
        if found != self.parameters:
            raise SystemExit(f"{self.network.__name__} has {found:,} parameters, the peers' {self.parameters:,}")


WORKS = {
    "small": Work(small_network, 5_386, 20, 100, "tiny"),
    "mlp": Work(mlp_network, 4_780, 20, 100, "tiny", of_our_own=True),
    "cnn": Work(cnn_network, 1_199_882, 10, 10, "cnn"),
}
