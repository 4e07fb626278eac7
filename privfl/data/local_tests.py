"""Rows that every client holds back of its own data: for testing personal models, and for choosing among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privfl.data.holdout import stratified_holdout
from privfl.validation import Settings, check_number

Rows = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class LocalTests(Settings):
    """How much every client holds back, stratified by class; a client with one row keeps it for training.

    Args:
        fraction: share of each client's rows for its local test, in (0, 1).
        validation: share of the rest for choosing among personal models, in [0, 1).
        global_test: ``"official"`` tests the server's model on the dataset's own test data, ``"union"`` on the union of
            the local tests.
    """

    fraction: float = 0.2
    validation: float = 0.0
    global_test: Literal["official", "union"] = "official"

    def __post_init__(self) -> None:
        check_number("local_tests.fraction", self.fraction, 0, 1, above=True, below=True)
        check_number("local_tests.validation", self.validation, 0, 1, below=True)

    def split(self, parts: Rows, targets: NDArray[np.int64], seed: int) -> tuple[Rows, Rows, Rows]:
        """Every client's rows for training, for testing and for validation, from its rows ``parts``."""
        train, test = _divide(parts, targets, self.fraction, seed)
        if not self.validation:
            return train, test, [part[:0] for part in parts]
        train, validation = _divide(train, targets, self.validation, seed + 1)
        return train, test, validation


def _divide(parts: Rows, targets: NDArray[np.int64], fraction: float, seed: int) -> tuple[Rows, Rows]:
    sizes = [len(part) for part in parts]
    rows, owners = np.concatenate(parts), np.repeat(np.arange(len(parts)), sizes)
    held = stratified_holdout(targets[rows], fraction=fraction, clients=owners, seed=seed)
    cuts = np.cumsum(sizes)[:-1]
    pairs = list(zip(np.split(rows, cuts), np.split(held, cuts), strict=True))
    return [part[~out] for part, out in pairs], [part[out] for part, out in pairs]
