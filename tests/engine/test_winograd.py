"""Winograd's transforms make convolutions of matrix products; compiled loops have the tensor operations' bits."""

import pytest
import torch
import torch.nn.functional as F

from privfl import compiling
from privfl.engine import winograd

SIZES = [(2, 6, 8, 16, 24), (3, 7, 11, 17, 16), (1, 4, 4, 16, 16)]
"""Images, height, width, channels in and out; what is odd has a line that no tile reaches."""


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def slowly(monkeypatch):
    monkeypatch.setattr(winograd, "once_it_pays", lambda function, saved: None)


def compiled(monkeypatch):
    monkeypatch.setattr(winograd, "once_it_pays", lambda function, saved: compiling.compiled(function))


def every_transform(images, out):
    """Everything that the five transforms write for these images and ``out`` channels of products."""
    rows, height, width, channels = images.shape
    down, across = winograd.tile_counts(height, width)
    tiles = rows * down * across
    patches, spread = torch.empty(16, tiles, channels), torch.empty(16, tiles, out)
    pooled, places = torch.empty(tiles, out), torch.empty(tiles, out, dtype=torch.uint8)
    found = torch.full_like(images, 7)
    winograd.patches(images, patches)
    winograd.largest(drawn(16, tiles, out), drawn(out), pooled, places)
    winograd.spread(drawn(tiles, out), places, spread)
    winograd.images(drawn(16, tiles, channels), found)
    narrow = torch.empty(channels * out, 9)
    winograd.filters(drawn(16, channels * out), narrow)
    return patches, pooled, places, spread, found, narrow


@pytest.mark.parametrize("size", SIZES)
def test_the_compiled_loops_have_the_bits_of_the_tensor_operations(size, monkeypatch):
    images = drawn(*size[:4])
    slowly(monkeypatch)
    expected = every_transform(images, size[4])
    compiled(monkeypatch)
    assert all(torch.equal(one, other) for one, other in zip(every_transform(images, size[4]), expected, strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [slowly, compiled])
def test_the_products_of_what_is_transformed_are_the_convolution_pooled(size, way, monkeypatch):
    way(monkeypatch)
    rows, height, width, channels, out = size
    images, weight, bias = drawn(*size[:4]), drawn(out, channels, 3, 3), drawn(out)
    down, across = winograd.tile_counts(height, width)
    patches = torch.empty(16, rows * down * across, channels)
    winograd.patches(images, patches)
    filters = (winograd.filter_transform() @ weight.view(-1, 9).T).view(16, out, channels)
    pooled = torch.empty(rows * down * across, out)
    places = torch.empty(pooled.shape, dtype=torch.uint8)
    winograd.largest(torch.bmm(patches, filters.mT), bias, pooled, places)
    convolved = F.conv2d(images.permute(0, 3, 1, 2).double(), weight.double(), bias.double())
    expected, flat = F.max_pool2d(convolved, 2, return_indices=True)
    torch.testing.assert_close(
        pooled.view(rows, down, across, out).permute(0, 3, 1, 2).double(), expected, rtol=1e-5, atol=1e-4
    )
    line, column = flat // convolved.shape[3] % 2, flat % convolved.shape[3] % 2
    assert torch.equal(places.view(rows, down, across, out).permute(0, 3, 1, 2).long(), 2 * line + column)


@pytest.mark.parametrize("way", [slowly, compiled])
def test_the_transforms_of_the_way_back_are_the_adjoints_of_those_there(way, monkeypatch):
    way(monkeypatch)
    down, across = winograd.tile_counts(7, 8)
    there = drawn(16, 2 * down * across, 16)
    found = torch.empty(2, 7, 8, 16)
    winograd.images(there, found)
    moved = torch.empty(16, 2 * down * across, 16)
    other = drawn(2, 7, 8, 16)
    winograd.patches(other, moved)
    assert float((moved.double() * there.double()).sum()) == pytest.approx(
        float((other.double() * found.double()).sum()), rel=1e-5
    )


@pytest.mark.parametrize("filters", [1, 511, 512, 1030])
@pytest.mark.parametrize("way", [slowly, compiled])
def test_points_become_the_gradient_of_their_filter(way, filters, monkeypatch):
    way(monkeypatch)
    points, found = drawn(16, filters), torch.full((filters, 9), 7.0)
    winograd.filters(points, found)
    expected = points.T.double() @ winograd.filter_transform().double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", [slowly, compiled])
def test_what_is_not_a_number_stays_none_and_the_first_of_equals_is_taken(way, monkeypatch):
    way(monkeypatch)
    products = torch.zeros(16, 3, 16)
    products[5, 1, 2] = float("nan")
    pooled, places = torch.empty(3, 16), torch.full((3, 16), 9, dtype=torch.uint8)
    winograd.largest(products, torch.zeros(16), pooled, places)
    assert pooled.isnan().nonzero().tolist() == [[1, 2]]
    places[1, 2] = 0
    assert not places.any()
