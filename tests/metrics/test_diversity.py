"""Weight diversity: check 10 of ReBaFL's specification, and numpy's variance."""

import numpy as np
import pytest
import torch

from privfl.metrics.diversity import weight_diversity


def test_it_is_the_summed_variance_of_the_weights():
    models = np.random.default_rng(0).normal(size=(7, 30))
    assert weight_diversity(torch.from_numpy(models)) == pytest.approx(np.var(models, axis=0).sum(), rel=1e-12)


def test_two_models_lie_a_quarter_of_their_squared_distance_apart():
    assert weight_diversity(torch.tensor([[0.0, 0.0], [3.0, 4.0]])) == 25 / 4


def test_one_client_or_identical_models_have_none():
    one = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    assert weight_diversity(one) == 0
    assert weight_diversity(one.expand(4, -1)) == pytest.approx(0, abs=1e-30)


def test_a_common_start_does_not_matter():
    draws = torch.Generator().manual_seed(2)
    updates, start = torch.randn(5, 40, generator=draws).double(), torch.randn(40, generator=draws).double()
    assert weight_diversity(updates + start) == pytest.approx(weight_diversity(updates), rel=1e-12)
