"""MOON's network: the features are the projection, written out a second time in plain functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privfl.errors import ConfigError
from privfl.models import Network, build
from privfl.models.projection import projection_head


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_the_classifier_reads_a_linear_projection_of_84_units(shape):
    network = build("moon-cnn", shape, 10, seed=0).double()
    c1, b1, c2, b2, w1, a1, w2, a2, p1, q1, p2, q2, w, b = network.parameters()
    inputs = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = F.max_pool2d(F.conv2d(inputs, c1, b1).relu(), 2)
    hidden = F.max_pool2d(F.conv2d(hidden, c2, b2).relu(), 2).flatten(1)
    hidden = F.linear(F.linear(hidden, w1, a1).relu(), w2, a2).relu()
    projected = F.linear(F.linear(hidden, p1, q1).relu(), p2, q2)
    torch.testing.assert_close(network.features(inputs), projected)
    torch.testing.assert_close(network(inputs), F.linear(projected, w, b))
    assert network.feature_dim == 256
    assert bool((projected < 0).any())  # no ReLU after it


def test_a_projection_head_ends_a_body_of_your_own():
    network = Network(nn.Sequential(nn.Linear(4, 7), nn.ReLU(), projection_head(7, 5)), nn.Linear(5, 3))
    assert network.features(torch.zeros(2, 4)).shape == (2, 5)
    assert build("moon-cnn", (3, 16, 16), 3, projection=9).feature_dim == 9


def test_images_that_are_too_small_are_refused_with_the_least_size():
    with pytest.raises(ConfigError, match="images of 12 x 12 are too small; give at least 16 x 16"):
        build("moon-cnn", (1, 12, 12), 10)
