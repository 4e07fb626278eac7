"""A randomised report: the law that its ε claims, on a grid, within its range."""

import math

import pytest
import torch

from privfl.privacy.channel.field import Field
from privfl.privacy.noise.source import NoiseSource, release_grid

REPORT = Field("loss", shape=(), weighted=False, epsilon=1.5, value_range=(0.0, 4.0))
DRAWS = 20_000


def reports(value, draws=DRAWS):
    stream = NoiseSource.from_key(1).stream("reports")
    return [float(REPORT.randomise(torch.tensor(value, dtype=torch.float64), stream)) for _ in range(draws)]


@pytest.mark.parametrize("value", [0.0, 1.0, 4.0])
def test_the_ends_come_as_often_as_laplace_noise_of_the_claimed_scale_goes_beyond_them(value):
    """6 standard errors of a share (2e-9): P[noise ≥ x] = exp(−εx/(high − low))/2 beyond either end."""
    found, scale = reports(value), 4.0 / 1.5
    for end, distance in ((0.0, value), (4.0, 4.0 - value)):
        share, expected = sum(one == end for one in found) / DRAWS, math.exp(-distance / scale) / 2
        assert abs(share - expected) < 6 * math.sqrt(expected * (1 - expected) / DRAWS)
    grid = release_grid(scale)
    assert all(one / grid == round(one / grid) for one in found)


@pytest.mark.parametrize(("value", "as_if"), [(-50.0, 0.0), (1e9, 4.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_what_lies_outside_of_the_range_reports_as_its_end(value, as_if):
    assert reports(value, draws=200) == reports(as_if, draws=200)
