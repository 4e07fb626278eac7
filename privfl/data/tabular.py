"""Turning table columns into features with fixed public constants.

Standardising with a private table's own mean and deviation would be a release that nobody accounts for, so every
centre and scale is a constant of the loader: a round figure for what the column measures, not a statistic of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.errors import DataError

Columns = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Numeric:
    """A numeric column: ``(value - centre) / scale``; a missing value becomes 0, which is the public centre.

    ``missing`` adds an indicator column, 1 where the value is missing; without it a missing value is an error.
    """

    column: str
    centre: float
    scale: float
    missing: bool = False


@dataclass(frozen=True)
class Category:
    """A column of codes: one 0/1 column per code; a missing value (where allowed) has its own column instead."""

    column: str
    codes: tuple[float, ...]
    missing: bool = False


def feature_names(specs: Sequence[Numeric | Category]) -> tuple[str, ...]:
    """The names of the columns that ``encode`` makes, in their order."""
    names: list[str] = []
    for spec in specs:
        if isinstance(spec, Numeric):
            names.append(spec.column)
        else:
            names.extend(f"{spec.column}={code:g}" for code in spec.codes)
        if spec.missing:
            names.append(f"{spec.column} missing")
    return tuple(names)


def encode(name: str, columns: Columns, specs: Sequence[Numeric | Category]) -> Tensor:
    """Features float32 [N, F] from columns float64 [N], NaN where a value is missing.

    Raises:
        DataError: a value is missing where none may be, or a code is unknown.
    """
    features: list[NDArray[np.float64]] = []
    for spec in specs:
        values = columns[spec.column]
        absent = np.isnan(values)
        if isinstance(spec, Numeric):
            bad = np.zeros_like(absent)
            features.append(np.where(absent, 0.0, (values - spec.centre) / spec.scale))
        else:
            bad = ~absent & ~np.isin(values, spec.codes)
            features.extend((values == code).astype(np.float64) for code in spec.codes)
        if not spec.missing:
            bad = bad | absent
        else:
            features.append(absent.astype(np.float64))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            expected = "a number" if isinstance(spec, Numeric) else f"one of {', '.join(f'{c:g}' for c in spec.codes)}"
            raise DataError(f"{name}: {spec.column} of row {row + 1} is {values[row]:g} where {expected} is expected.")
    return torch.from_numpy(np.stack(features, axis=1).astype(np.float32))
