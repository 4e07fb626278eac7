"""Parts of one's own, as a user would write them in a module: what experiment files name ``tests.own_parts:…``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import privfl as pf
from privfl.data.partitions import Partition
from privfl.federation.availability import Availability
from privfl.federation.cohorts import Cohort, Selection


@dataclass(frozen=True)
class Halved(pf.FedAvg):
    """The server goes a part of FedAvg's way."""

    name: ClassVar[str] = "halved"
    factor: float = 0.5

    def aggregate(self, server, total, round, training):
        return super().aggregate(server, {"update": total["update"] * self.factor}, round, training)


class Small(nn.Module):
    """A model for digits."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def focal(network: nn.Module, inputs: Tensor, targets: Tensor, gamma: float = 0.0) -> Tensor:
    """Focal loss of every sample [B]."""
    entropy = F.cross_entropy(network(inputs), targets, reduction="none")
    return (1 - torch.exp(-entropy)) ** gamma * entropy


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy with smoothed labels, as an object with settings."""

    smoothing: float = 0.1

    def __call__(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(network(inputs), targets, reduction="none", label_smoothing=self.smoothing)


class Undescribed:
    """The same without a dataclass: nobody can tell its settings."""

    def __call__(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(network(inputs), targets, reduction="none")


@dataclass(frozen=True)
class Striped(Partition):
    """Row i goes to client i mod ``clients``."""

    clients: int = 4

    def assign(self, targets, classes, rng):
        raise AssertionError("split is overridden")

    def split(self, targets, classes, rng, owners=None):
        return [np.arange(len(targets))[start :: self.clients] for start in range(self.clients)]


@dataclass(frozen=True)
class FirstHalf(Cohort):
    """The first ``share`` of those who can be reached."""

    share: float = 0.5

    def expected(self, available):
        return float(int(available * self.share))

    def draw(self, available, round, seed, source, sizes):
        chosen = available[: int(len(available) * self.share)]
        return Selection(chosen, np.ones(len(chosen), dtype=np.int64))


@dataclass(frozen=True)
class Alternating(Availability):
    """Every other client, in turns."""

    start: int = 0

    def _mask(self, round, clients, seed):
        return np.arange(clients) % 2 == (round + self.start) % 2


@dataclass(frozen=True)
class OwnGaussian(pf.GaussianNoise):
    """A mechanism of an upload's chain."""


@dataclass(frozen=True)
class OwnLaplace(pf.LaplaceSize):
    """A size mechanism."""


@dataclass(frozen=True)
class Gentle(pf.LocalTraining):
    """Local training of one's own, where privfl has one class only."""

    patience: int = 3


@dataclass(frozen=True)
class Odd(pf.FedAvg):
    """An algorithm with settings of every kind."""

    name: ClassVar[str] = "odd"
    prior: Tensor = field(default_factory=lambda: torch.tensor([0.5, 0.5]))
    schedule: Callable[[int], float] = np.sqrt
    steps: tuple[int, ...] = (1, 2)
    table: dict[str, float] = field(default_factory=dict)


class NoDataclass(pf.FedAvg):
    """An algorithm whose constructor takes what its fields do not have."""

    def __init__(self) -> None:
        super().__init__("uniform")


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [120, 1, 8, 8], classes and owners."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(120, 1, 8, 8)).astype(np.float32), np.arange(120) % 10, np.arange(120) % 3


def hospitals() -> pf.Task:
    """A task on arrays, always the same."""
    inputs, targets, owners = arrays(0)
    return pf.Task.from_arrays(inputs, targets, clients=owners, model=Small)


def other_hospitals() -> pf.Task:
    """The same clients and classes with other inputs."""
    inputs, targets, owners = arrays(1)
    return pf.Task.from_arrays(inputs, targets, clients=owners, model=Small)


def hospitals_of(seed: int) -> pf.Task:
    """A task on arrays that depend on the seed."""
    inputs, targets, owners = arrays(seed)
    return pf.Task.from_arrays(inputs, targets, clients=owners, model="logistic", seed=seed)


def no_task() -> int:
    """What a function that makes a task must not return."""
    return 3
