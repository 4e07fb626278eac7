"""How well label counts were inferred."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attacks.metrics.measure import Measure, mean_of, proportion
from privfl.errors import ConfigError


def exact_match(estimated: ArrayLike, true: ArrayLike) -> Measure:
    """Share of the rows [n, C] whose counts are all right."""
    found, wanted = _checked(estimated, true)
    return proportion(int((found == wanted).all(1).sum()), len(wanted))


def multiset_accuracy(estimated: ArrayLike, true: ArrayLike) -> Measure:
    """Mean over rows [n, C] of Σ_c min(n_c, n̂_c) / Σ_c n_c: the share of the labels that were found."""
    found, wanted = _checked(estimated, true)
    return mean_of(np.minimum(np.maximum(found, 0), wanted).sum(1) / wanted.sum(1), least=0, most=1)


def l1_error(estimated: ArrayLike, true: ArrayLike) -> Measure:
    """Mean over rows [n, C] of ``Σ_c |n_c − n̂_c|``."""
    found, wanted = _checked(estimated, true)
    return mean_of(np.abs(found - wanted).sum(1), least=0)


def _checked(estimated: ArrayLike, true: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    found, wanted = (np.atleast_2d(np.asarray(counts, dtype=np.float64)) for counts in (estimated, true))
    if found.shape != wanted.shape or not wanted.size or (wanted.sum(1) <= 0).any() or (wanted < 0).any():
        raise ConfigError(
            f"counts are {found.shape} and the true ones {wanted.shape}; give equally many, each row with a label"
        )
    return found, wanted
