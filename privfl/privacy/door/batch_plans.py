"""How a client draws its batches: shuffled epochs, or Poisson batches whose rate and divisor are public."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.noise.source import NoiseStream
from privfl.references import shipped
from privfl.validation import Settings, check_rate


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains in one round: plain SGD over shuffled batches, or Poisson batches under DP-SGD.

    Under DP-SGD ``batch_size`` is the public divisor of every gradient and a round has ``steps``, or ⌈epochs / rate⌉.
    The learning rate of round r (from 0) is ``learning_rate * learning_rate_decay ** (r // decay_every)``.

    Args:
        learning_rate: step size of the first round, > 0.
        batch_size: samples of a batch, ≥ 1; under DP-SGD the public divisor of every gradient.
        epochs: passes over the client's samples in a round, ≥ 1.
        steps: steps in a round instead of ``epochs``, ≥ 1.
        momentum: of SGD, in [0, 1), begun anew in every round.
        weight_decay: L2 penalty, ≥ 0.
        learning_rate_decay: factor on the learning rate every ``decay_every`` rounds, in (0, 1].
        decay_every: rounds between two decays, ≥ 1.
    """

    learning_rate: float = 0.05
    batch_size: int = 20
    epochs: int = 1
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rate_decay: float = 1.0
    decay_every: int = 1

    def __post_init__(self) -> None:
        positive = {"learning_rate": self.learning_rate, "batch_size": self.batch_size, "epochs": self.epochs}
        for name, value in {**positive, **({} if self.steps is None else {"steps": self.steps})}.items():
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"training.{name} is {value!r}; give a positive number")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"training.momentum is {self.momentum!r}; give a number in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"training.weight_decay is {self.weight_decay!r}; give a number ≥ 0")
        if not 0 < self.learning_rate_decay <= 1:
            raise ConfigError(f"training.learning_rate_decay is {self.learning_rate_decay!r}; give a number in (0, 1]")
        if self.decay_every < 1:
            raise ConfigError(f"training.decay_every is {self.decay_every!r}; give an integer ≥ 1")

    def in_round(self, round: int) -> LocalTraining:
        """The training of round ``round`` ≥ 0, whose learning rate has decayed ⌊round / decay_every⌋ times."""
        if self.learning_rate_decay == 1:
            return self
        rate = self.learning_rate * self.learning_rate_decay ** (round // self.decay_every)
        positive = max(rate, sys.float_info.min)  # a rate may decay until it rounds to nothing, which is no error
        return replace(self, learning_rate=positive, learning_rate_decay=1.0)

    def steps_at(self, rate: float) -> int:
        """Steps of one round under Poisson batches of public ``rate``: ``steps``, or as many as ``epochs`` take."""
        return self.steps or math.ceil(self.epochs / rate - 1e-9)


@dataclass(frozen=True)
class Poisson:
    """A plan of ``steps`` batches that hold each sample independently with the public ``rate``.

    ``divisor`` is the public number that a sum of gradients is divided by; ``None`` divides by the rows of the batch,
    which only a run without DP-SGD may do.

    Raises:
        ConfigError: the rate is not between 1e-15 and 1.
    """

    rate: float
    steps: int = 1
    divisor: float | None = None

    def __post_init__(self) -> None:
        check_rate("the rate of Poisson batches", self.rate)

    def length(self, samples: int) -> int:
        """Number of batches of one round; the same whatever the client holds."""
        return self.steps

    def is_last(self, step: int, samples: int) -> bool:
        """Whether batch ``step`` belongs to the last expected pass over the data."""
        return step >= self.steps - math.ceil(1 / self.rate - 1e-9)

    def divide_by(self, rows: int) -> float:
        """What a sum of gradients over ``rows`` rows is divided by without DP-SGD."""
        return self.divisor or max(rows, 1)

    def rows(self, rows: Tensor, shuffle: torch.Generator, noise: NoiseStream | None) -> Iterator[Tensor]:
        """The batches as row numbers out of ``rows`` [n]; the coins come from ``noise`` if there is one.

        The coins of a claimed amplification are as secret as the noise; without a claim they belong to the experiment.
        """
        for _ in range(self.steps):
            if noise is not None:
                chosen = torch.from_numpy(noise.poisson_sample(len(rows), self.rate))
            else:
                coins = torch.rand(len(rows), generator=shuffle, dtype=torch.float64)
                chosen = (coins < self.rate).nonzero().flatten()
            yield rows[chosen]


@dataclass(frozen=True)
class Epochs:
    """A plan of ``epochs`` passes over shuffled data in batches of ``batch_size``; ``steps`` cuts or extends it."""

    batch_size: int
    epochs: int
    steps: int | None = None

    def length(self, samples: int) -> int:
        """Number of batches of one round for a client of ``samples`` samples."""
        return self.epochs * math.ceil(samples / self.batch_size) if self.steps is None else self.steps

    def is_last(self, step: int, samples: int) -> bool:
        """Whether batch ``step`` belongs to the last pass over a client's ``samples`` samples."""
        return step >= self.length(samples) - math.ceil(samples / self.batch_size)

    def divide_by(self, rows: int) -> float:
        """What a sum of gradients over ``rows`` rows is divided by: their number."""
        return max(rows, 1)

    def rows(self, rows: Tensor, shuffle: torch.Generator, noise: NoiseStream | None) -> Iterator[Tensor]:
        """The batches as row numbers out of ``rows`` [n], shuffled anew in every epoch."""
        size = len(rows)
        left = self.length(size)
        while left > 0:
            batches = torch.split(rows[torch.randperm(size, generator=shuffle)], min(self.batch_size, size))
            yield from batches[:left]
            left -= len(batches)


Plan = Epochs | Poisson


def draws_poisson(plan: Plan) -> TypeGuard[Poisson]:
    """Whether ``plan`` draws each sample independently; a class from outside privfl may draw as it likes."""
    return isinstance(plan, Poisson) and shipped(type(plan))


def public_plan(plan: Plan) -> tuple[float, float]:
    """Rate and divisor of a plan that DP-SGD may use.

    Raises:
        ConfigError: the plan is not Poisson, is drawn by a class from outside, or divides by the private size.
    """
    if not draws_poisson(plan) or plan.divisor is None:
        raise ConfigError(
            "DP-SGD needs Poisson batches with a public divisor; let the algorithm keep the plan it is given"
        )
    return plan.rate, plan.divisor


def private_plan(training: LocalTraining, dpsgd: DPSGD | None, client: int) -> Plan:
    """How ``client`` draws its batches: shuffled epochs, or with DP-SGD Poisson batches of the public rate."""
    if dpsgd is None:
        return Epochs(training.batch_size, training.epochs, training.steps)
    rate = dpsgd.rate(client)
    return Poisson(rate, training.steps_at(rate), float(training.batch_size))
