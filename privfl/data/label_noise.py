"""Label noise: training labels flipped at random with a known transition matrix (SuperFed's two laws)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfl.errors import ConfigError, DataError
from privfl.validation import Settings, check_count, check_number


@dataclass(frozen=True)
class LabelNoise(Settings, ABC):
    """Flips a label with probability ``rate`` in [0, 1], independently per sample. Meant for training labels only.

    Args:
        rate: probability that a training label is flipped, in [0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        check_number("rate", self.rate, 0, 1)

    def apply(self, targets: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
        """A noisy copy, int64, of the integer ``targets`` (any shape, values 0 … ``classes`` − 1).

        Raises :class:`ConfigError` for a single class and :class:`DataError` for targets outside the range.
        """
        self._check_classes(classes)
        targets = np.asarray(targets)
        if not np.issubdtype(targets.dtype, np.integer):
            raise DataError(f"targets have type {targets.dtype}: label noise needs whole-number classes.")
        if targets.size and (targets.min() < 0 or targets.max() >= classes):
            raise DataError(
                f"targets range from {targets.min()} to {targets.max()}; number them from 0 to {classes - 1}"
            )
        flipped = rng.random(targets.shape) < self.rate
        step = self._step(targets.shape, classes, rng)
        return np.where(flipped, (targets.astype(np.int64) + step) % classes, targets)

    @abstractmethod
    def transition(self, classes: int) -> np.ndarray:
        """T[i, j] = P(noisy label j | true label i), float64 (classes, classes); rows sum to 1."""

    @abstractmethod
    def _step(self, shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> np.ndarray:
        """How far a flipped label moves on, 1 … ``classes`` − 1, cyclically."""

    def _check_classes(self, classes: int) -> None:
        check_count("the number of classes", classes)
        if classes < 2:
            raise ConfigError("there is one class only, so no label can be flipped; leave label noise out")


@dataclass(frozen=True)
class PairFlip(LabelNoise):
    """A flipped label becomes the next class, cyclically: T[i, i] = 1 − rate, T[i, (i + 1) mod C] = rate."""

    def transition(self, classes: int) -> np.ndarray:
        self._check_classes(classes)
        same = np.eye(classes)
        return (1 - self.rate) * same + self.rate * np.roll(same, 1, axis=1)

    def _step(self, shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> np.ndarray:
        return np.ones(shape, dtype=np.int64)


@dataclass(frozen=True)
class SymmetricFlip(LabelNoise):
    """A flipped label becomes any other class, uniformly: T[i, i] = 1 − rate, T[i, j] = rate/(C − 1)."""

    def transition(self, classes: int) -> np.ndarray:
        self._check_classes(classes)
        same = np.eye(classes)
        return (1 - self.rate) * same + self.rate / (classes - 1) * (1 - same)

    def _step(self, shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(1, classes, shape)


@dataclass(frozen=True)
class Flipped:
    """Targets [N] as label noise left them, ``noisy``, and as they were, ``truth``."""

    noisy: Tensor
    truth: Tensor

    def undone(self, targets: Tensor, judged: Tensor, used: Sequence[Tensor]) -> Tensor:
        """``targets`` with the truth in the rows ``judged`` that are not in ``used`` too.

        Targets that somebody has changed since the noise are nobody's mistake, and stay.
        """
        if not torch.equal(targets.cpu(), self.noisy):
            return targets
        clean = torch.zeros_like(targets, dtype=torch.bool)
        clean[judged] = True
        for rows in used:
            clean[rows] = False
        return torch.where(clean, self.truth.to(targets.device), targets)


LABEL_NOISE: dict[str, type[LabelNoise]] = {"pair": PairFlip, "symmetric": SymmetricFlip}
