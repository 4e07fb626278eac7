"""Compiled, the loops of Winograd's transforms have the bits of the tensor operations that stand for them."""

import pytest
import torch

from privfl.engine import winograd
from tests.engine.test_winograd import SIZES, compiled, drawn, filled, slowly


def every_transform(images, out):
    """Everything that the five transforms write for these images and ``out`` channels of products."""
    rows, height, width, channels = images.shape
    down, across = winograd.tile_counts(height, width)
    tiles, images = rows * down * across, filled(images)
    patches, spread = torch.empty(36, tiles, channels), torch.empty(36, tiles, out)
    pooled = torch.empty(rows, *winograd.pooled_size(height, width), out)
    places, found = torch.empty(pooled.shape, dtype=torch.uint8), torch.full_like(images, 7)
    winograd.patches(images, patches)
    winograd.largest(drawn(36, tiles, out), drawn(out), pooled, places)
    winograd.spread(drawn(*pooled.shape), places, spread)
    winograd.images(drawn(36, tiles, channels), found)
    narrow = torch.empty(channels * out, 9)
    winograd.filters(drawn(36, channels * out), narrow)
    return patches, pooled, places, spread, found, narrow


@pytest.mark.parametrize("size", SIZES)
def test_the_compiled_loops_have_the_bits_of_the_tensor_operations(size, monkeypatch):
    images = drawn(*size[:4])
    slowly(monkeypatch)
    expected = every_transform(images, size[4])
    compiled(monkeypatch)
    assert all(torch.equal(one, other) for one, other in zip(every_transform(images, size[4]), expected, strict=True))
