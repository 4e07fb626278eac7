"""Decoders draw images of the asked shape in (0, 1), from the smallest start that the shape allows."""

import pytest
import torch
from torch import nn

from attacks.images.decoders import Standardised, channels_innermost, doublings, up_decoder
from privfl.errors import ConfigError


@pytest.mark.parametrize(
    ("shape", "blocks", "start"), [((3, 32, 32), 3, 4), ((1, 28, 28), 2, 7), ((1, 8, 8), 1, 4), ((2, 5, 5), 0, 5)]
)
def test_an_image_starts_small_and_doubles(shape, blocks, start):
    assert doublings(shape, 3) == blocks
    decoder = up_decoder(16, shape, hidden=8, channels=(12, 8, 4))
    unflatten = next(module for module in decoder if isinstance(module, nn.Unflatten))
    assert unflatten.unflattened_size == (12, start, start)
    assert sum(isinstance(module, nn.Upsample) for module in decoder) == blocks
    images = decoder.eval()(torch.randn(5, 16, generator=torch.Generator().manual_seed(0))).detach()
    assert images.shape == (5, *shape)
    assert float(images.min()) > 0
    assert float(images.max()) < 1


def test_standardised_features_have_mean_zero_and_deviation_one_and_dead_ones_are_zero():
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 7 + 2
    features[:, 1] = 5.0
    found = Standardised(features)(features)
    torch.testing.assert_close(found.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(found.std(0), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))


def test_the_layout_of_the_weights_changes_nothing_but_rounding():
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3))
    images = torch.rand(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    before = plain(images)
    torch.testing.assert_close(channels_innermost(plain)(images), before)


def test_impossible_shapes_are_refused():
    with pytest.raises(ConfigError, match="channels, height, width"):
        doublings((28, 28), 3)
    with pytest.raises(ConfigError, match="channels are empty"):
        up_decoder(4, (1, 8, 8), channels=())
