"""How far a set of synthetic images is from real ones: FID and KID in the features of some network, nearest neighbours.

FID and KID compare features [n, d], whatever network they come from, and mean nothing without its name. Compare values
at equal numbers of images only: FID is biased upwards by a small n (its covariances have rank below n), KID is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privfl.errors import DataError

ROWS_AT_ONCE = 1000
"""Rows of the kernel matrix that exist at one time."""


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½) of features [n₁, d] and [n₂, d]: the FID (Heusel et al., NeurIPS 2017).

    Tr(Σ₁Σ₂)^½ is the nuclear norm of X̃₁X̃₂ᵀ/√((n₁−1)(n₂−1)) for the centred features X̃ (FedEvg (13) in
    ``docs/reference/equations.md``), which is exact for covariances of any rank: no matrix square root that fails,
    nothing imaginary to drop. Computed in float64 on triangular factors of at most d rows. At least −1e-13·Tr Σ, and
    zero for equal sets up to that.

    Raises:
        DataError: a set has fewer than two rows, the widths differ, or a feature is not finite.
    """
    first, second = _checked(first, second)
    means = (first.mean(0) - second.mean(0)).square().sum()
    factors = [_covariance_factor(features) for features in (first, second)]
    traces = factors[0].square().sum() + factors[1].square().sum()
    shared = torch.linalg.svdvals(factors[0] @ factors[1].mT).sum()
    return float(means + traces - 2 * shared)


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """Unbiased squared maximum mean discrepancy of features [n₁, d] and [n₂, d]: the KID (Bińkowski et al., ICLR 2018).

    With the polynomial kernel (x·y/d + 1)³ over all rows, in float64. Its expectation does not depend on n, so it may
    be negative where the sets come from one distribution. The original averages over subsets of the rows; this is the
    same estimator on all of them.

    Raises:
        DataError: a set has fewer than two rows, the widths differ, or a feature is not finite.
    """
    first, second = _checked(first, second)
    within = [_kernel_sum(x, x) - _kernel_diagonal(x) for x in (first, second)]
    n, m = len(first), len(second)
    return within[0] / (n * (n - 1)) + within[1] / (m * (m - 1)) - 2 * _kernel_sum(first, second) / (n * m)


def nearest_distances(images: Tensor, real: Tensor) -> Tensor:
    """Euclidean distance [n] of each of ``images`` [n, ...] to the nearest of ``real`` [m, ...], in float64.

    If distances to the images that clients hold are shorter than to as many others of the same kind, images copy what
    clients hold. With different m the sets are not comparable: the nearest of more is nearer.

    Raises:
        DataError: there is no real image.
    """
    if not len(real):
        raise DataError("there is no real image to be near to; give at least one")
    flat = real.flatten(1).double()
    return torch.cat(
        [torch.cdist(p, flat).min(1).values for p in torch.split(images.flatten(1).double(), ROWS_AT_ONCE)]
    )


def _checked(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    for features in (first, second):
        if features.dim() != 2 or len(features) < 2:
            raise DataError(f"features have the shape {tuple(features.shape)}; give [n, d] with n ≥ 2 rows")
        if not bool(features.isfinite().all()):
            raise DataError("a feature is not finite; look at the images that it comes from")
    if first.shape[1] != second.shape[1]:
        raise DataError(f"features are {first.shape[1]} and {second.shape[1]} wide; take both from one network")
    return first.double(), second.double()


def _covariance_factor(features: Tensor) -> Tensor:
    """R [min(n, d), d] with RᵀR the covariance of ``features`` [n, d]."""
    centred = (features - features.mean(0)) / (len(features) - 1) ** 0.5
    factor: Tensor = torch.linalg.qr(centred, mode="r")[1]
    return factor


def _kernel_sum(first: Tensor, second: Tensor) -> float:
    width = first.shape[1]
    return sum(float((part @ second.mT / width + 1).pow(3).sum()) for part in torch.split(first, ROWS_AT_ONCE))


def _kernel_diagonal(features: Tensor) -> float:
    return float((features.square().sum(1) / features.shape[1] + 1).pow(3).sum())
