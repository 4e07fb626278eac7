"""Norms of long rows are those of float64, in an order of additions that nothing but their length decides."""

import math

import numpy as np
import pytest
import torch

from privfl import compiling
from privfl.privacy.norms import BLOCK, LANES, LONG, norms, suits

SIZES = [LONG, LONG + 1, BLOCK - 1, BLOCK, BLOCK + LANES, BLOCK + LANES + 3, 3 * BLOCK + 7]


def one_sum_after_the_other(row):
    sums = [0.0] * LANES
    for place, value in enumerate(row.tolist()):
        sums[place % LANES] += value * value
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [one + other for one, other in zip(sums[:half], sums[half:], strict=True)]
    return math.sqrt(sums[0])


@pytest.mark.parametrize("enough", [math.inf, 0.0])  # seconds saved from which on it is compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_the_norms_have_the_same_bits_with_numba_and_without_however_many_rows(monkeypatch, rows, size, enough):
    monkeypatch.setattr(compiling, "ENOUGH", enough)
    values = torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * 10.0 ** (size % 7)
    expected = [one_sum_after_the_other(values[row]) for row in (0, rows - 1)]
    found = norms(values)
    assert found.dtype == torch.float64
    assert [float(found[0]), float(found[-1])] == expected
    torch.testing.assert_close(found, torch.linalg.vector_norm(values.double(), dim=1), rtol=1e-13, atol=0)
    assert torch.equal(norms(values[-1:]), found[-1:])


@pytest.mark.parametrize("enough", [math.inf, 0.0])
def test_dimensions_stay_and_gaps_do_not_matter(monkeypatch, enough):
    monkeypatch.setattr(compiling, "ENOUGH", enough)
    values = torch.randn(2, 3, 2 * LONG + 2, generator=torch.Generator().manual_seed(0))
    apart = values[..., ::2].requires_grad_()
    assert suits(apart)
    found = norms(apart)
    assert found.shape == (2, 3)
    assert not found.requires_grad
    assert torch.equal(found, norms(apart.detach().contiguous()))
    assert norms(values[:0]).shape == (0, 3)
    assert float(norms(values[0, 0])) == float(norms(values)[0, 0])


@pytest.mark.parametrize("enough", [math.inf, 0.0])
def test_rows_that_are_not_finite_or_huge_are_said_to_be(monkeypatch, enough):
    monkeypatch.setattr(compiling, "ENOUGH", enough)
    values = torch.ones(4, BLOCK + 5)
    values[1, 5], values[2, 7], values[3] = math.inf, math.nan, 3e38  # whose squares float32 does not hold
    found = norms(values)
    assert found[:2].tolist() == [math.sqrt(BLOCK + 5), math.inf]
    assert math.isnan(found[2])
    assert float(found[3]) == pytest.approx(float(np.float32(3e38)) * math.sqrt(BLOCK + 5), rel=1e-14)


def test_what_is_short_wide_or_under_a_transform_is_left_to_pytorch():
    row = torch.ones(LONG)
    assert suits(row)
    for other in (row[1:], row.double(), row.half(), row.to("meta"), torch.tensor(1.0), torch.ones(LONG, 2)):
        assert not suits(other)
    seen = []
    torch.func.vmap(lambda one: seen.append(suits(one)) or one)(torch.ones(2, LONG))
    assert seen == [False]
