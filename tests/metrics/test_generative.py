"""FID and KID: closed forms, a matrix square root, a brute-force sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from privfl.errors import DataError
from privfl.metrics.generative import frechet_distance, kernel_distance, nearest_distances


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whitened(n: int, d: int, seed: int = 0) -> Tensor:
    """Rows whose sample mean is zero and whose sample covariance is the identity."""
    rows = normal(n, d, seed)
    rows = rows - rows.mean(0)
    return rows @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(rows.mT))).mT


@pytest.mark.parametrize("n", [40, 7])
def test_check_13_a_set_is_at_distance_zero_from_itself(n: int) -> None:
    x = 100 * normal(n, 20)
    assert abs(frechet_distance(x, x)) <= 1e-12 * float(torch.cov(x.mT).trace())


def test_check_13_it_is_symmetric_and_not_negative() -> None:
    for seed in range(5):
        x, y = normal(9, 12, seed), normal(30, 12, seed + 10)
        assert frechet_distance(x, y) == pytest.approx(frechet_distance(y, x), rel=1e-12)
        assert frechet_distance(x, y) >= -1e-6 * float(torch.cov(x.mT).trace())


def test_check_13_two_normal_distributions_have_the_closed_form() -> None:
    """N(0, diag a²) and N(μ, diag b²): ‖μ‖² + Σ(a − b)²."""
    a, b, mean = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0, 0.5], [3.0, 1.0, 0.5], [1.0, 0.0, -2.0]))
    x, y = whitened(50, 3) * a, whitened(80, 3, seed=1) * b + mean
    assert frechet_distance(x, y) == pytest.approx(float(mean.square().sum() + (a - b).square().sum()), rel=1e-12)


def test_check_13_it_equals_the_form_with_a_matrix_square_root() -> None:
    x, y = normal(200, 6), 1.5 * normal(100, 6, seed=1) @ normal(6, 6, seed=2) + 0.3
    first, second = np.cov(x.numpy().T), np.cov(y.numpy().T)
    root = scipy.linalg.sqrtm(first @ second).real
    expected = np.square(x.numpy().mean(0) - y.numpy().mean(0)).sum() + np.trace(first + second - 2 * root)
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-9)


def test_fewer_rows_than_features_need_no_regularisation() -> None:
    """Padding with features that are constant adds nothing."""
    x, y = normal(5, 3), normal(6, 3, seed=1)
    padded = [torch.cat([rows, torch.full((len(rows), 40), 7.0, dtype=torch.float64)], 1) for rows in (x, y)]
    assert frechet_distance(*padded) == pytest.approx(frechet_distance(x, y), rel=1e-9)


def test_the_kernel_distance_is_the_sum_over_pairs() -> None:
    x, y = normal(6, 4), normal(5, 4, seed=1) + 0.5

    def kernel(a: Tensor, b: Tensor) -> float:
        return (float(a @ b) / 4 + 1) ** 3

    within = [
        np.mean([kernel(rows[i], rows[j]) for i in range(len(rows)) for j in range(len(rows)) if i != j])
        for rows in (x, y)
    ]
    between = np.mean([kernel(a, b) for a in x for b in y])
    assert kernel_distance(x, y) == pytest.approx(within[0] + within[1] - 2 * between, rel=1e-12)


def test_the_kernel_distance_does_not_depend_on_how_many_rows_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(25, 4), normal(31, 4, seed=1)
    whole = kernel_distance(x, y)
    monkeypatch.setattr("privfl.metrics.generative.ROWS_AT_ONCE", 4)
    assert kernel_distance(x, y) == pytest.approx(whole, rel=1e-12)


def test_the_kernel_distance_is_unbiased_where_the_frechet_distance_is_not() -> None:
    """400 pairs of 20 rows of one distribution: the mean KID lies within 5 standard errors of zero (p < 6e-7)."""
    pairs = [(normal(20, 3, 2 * seed), normal(20, 3, 2 * seed + 1)) for seed in range(400)]
    kernel = np.array([kernel_distance(x, y) for x, y in pairs])
    assert abs(kernel.mean()) < 5 * kernel.std(ddof=1) / math.sqrt(len(kernel))
    assert min(frechet_distance(x, y) for x, y in pairs) > 0


def test_the_nearest_distance_is_the_least_of_all_and_zero_for_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    images, real = normal(7, 12).view(7, 3, 2, 2), normal(9, 12, seed=1).view(9, 3, 2, 2)
    expected = [min(float((one - other).square().sum().sqrt()) for other in real) for one in images]
    monkeypatch.setattr("privfl.metrics.generative.ROWS_AT_ONCE", 4)
    torch.testing.assert_close(nearest_distances(images, real), torch.tensor(expected, dtype=torch.float64))
    assert float(nearest_distances(real[3:4], real)[0]) < 1e-6
    with pytest.raises(DataError, match="there is no real image to be near to; give at least one"):
        nearest_distances(images, real[:0])


@pytest.mark.parametrize("distance", [frechet_distance, kernel_distance])
@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (torch.zeros(1, 3), torch.zeros(4, 3), r"features have the shape \(1, 3\); give \[n, d\] with n ≥ 2 rows"),
        (torch.zeros(4, 3), torch.zeros(4), r"features have the shape \(4,\)"),
        (torch.zeros(4, 3), torch.zeros(4, 2), "features are 3 and 2 wide; take both from one network"),
        (torch.full((4, 3), math.nan), torch.zeros(4, 3), "a feature is not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(distance, first: Tensor, second: Tensor, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        distance(first, second)
