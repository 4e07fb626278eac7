"""Noise on totals: how wide it is, and by how much one sample may move the sum."""

import pytest
import torch

from privfl.errors import ConfigError
from privfl.privacy.door.noisy_total import NoisyTotal
from tests.lying_tensor import Lying


@pytest.mark.parametrize(("bound", "multiplier"), [(0.5, 4.0), (20.0, 0.3)])
def test_the_noise_is_the_multiplier_times_the_bound(bound, multiplier):
    assert NoisyTotal("loss", bound, multiplier).deviation == bound * multiplier


@pytest.mark.parametrize("scale", [1e-20, 0.1, 1.0, 1e20])
def test_one_sample_moves_a_sum_by_no_more_than_the_bound_and_short_ones_stay(scale):
    values = scale * torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0))
    clipped = NoisyTotal("prototypes", 2.0, 1.0).clip(values)
    assert clipped.dtype == torch.float64
    assert clipped.shape == values.shape
    assert bool((clipped.flatten(1).norm(dim=1) <= 2.0).all())
    short = values.double().flatten(1).norm(dim=1) < 1.99
    assert torch.equal(clipped[short], values[short].double())


def test_a_sample_that_is_not_finite_counts_as_zero():
    values = torch.tensor([[1.0, float("nan")], [float("inf"), 0.0], [0.3, 0.4]])
    clipped = NoisyTotal("loss", 2.0, 1.0).clip(values)
    assert torch.equal(clipped, torch.stack([torch.zeros(2), torch.zeros(2), values[2]]).double())


def test_a_statistic_of_a_kind_of_its_own_is_refused_before_it_is_clipped():
    with pytest.raises(ConfigError, match="what the statistic 'x' gives is a Lying"):
        NoisyTotal("x", 1.0, 1.0).clip(torch.full((2, 3), 1000.0).as_subclass(Lying))
