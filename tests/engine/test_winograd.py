"""Winograd's transforms make convolutions of matrix products, and back again."""

import pytest
import torch
import torch.nn.functional as F

from privfl import compiling
from privfl.engine import winograd

SIZES = [(2, 6, 10, 16, 24), (3, 7, 11, 17, 16), (1, 4, 4, 16, 16), (2, 13, 8, 16, 16)]
"""Images, height, width, channels in and out; what is odd has a line that is left out, and tiles may reach beyond."""


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def slowly(monkeypatch):
    monkeypatch.setattr(winograd, "once_it_pays", lambda function, saved: None)


def compiled(monkeypatch):
    monkeypatch.setattr(winograd, "once_it_pays", lambda function, saved: compiling.compiled(function))


def filled(images):
    """``images`` with zeros at the lower and right edge, so that all of their tiles lie inside."""
    tall, wide = winograd.sides(*images.shape[1:3])
    return F.pad(images, (0, 0, 0, wide - images.shape[2], 0, tall - images.shape[1]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [slowly, compiled])
def test_the_products_of_what_is_transformed_are_the_convolution_pooled(size, way, monkeypatch):
    way(monkeypatch)
    rows, height, width, channels, out = size
    images, weight, bias = drawn(*size[:4]), drawn(out, channels, 3, 3), drawn(out)
    (down, across), tiles = winograd.pooled_size(height, width), winograd.tile_counts(height, width)
    patches = torch.empty(36, rows * tiles[0] * tiles[1], channels)
    winograd.patches(filled(images), patches)
    filters = (winograd.filter_transform() @ weight.view(-1, 9).T).view(36, out, channels)
    pooled = torch.empty(rows, down, across, out)
    places = torch.empty(pooled.shape, dtype=torch.uint8)
    winograd.largest(torch.bmm(patches, filters.mT), bias, pooled, places)
    convolved = F.conv2d(images.permute(0, 3, 1, 2).double(), weight.double(), bias.double())
    expected, flat = F.max_pool2d(convolved, 2, return_indices=True)
    torch.testing.assert_close(pooled.permute(0, 3, 1, 2).double(), expected, rtol=1e-5, atol=1e-4)
    line, column = flat // convolved.shape[3] % 2, flat % convolved.shape[3] % 2
    assert torch.equal(places.permute(0, 3, 1, 2).long(), 2 * line + column)


@pytest.mark.parametrize("way", [slowly, compiled])
def test_what_goes_back_to_images_is_the_adjoint_of_what_came_of_them(way, monkeypatch):
    way(monkeypatch)
    down, across = winograd.tile_counts(7, 8)
    there, moved = drawn(36, 2 * down * across, 16), torch.empty(36, 2 * down * across, 16)
    other = filled(drawn(2, 7, 8, 16))
    found = torch.empty_like(other)
    winograd.images(there, found)
    winograd.patches(other, moved)
    assert float((moved.double() * there.double()).sum()) == pytest.approx(
        float((other.double() * found.double()).sum()), rel=1e-5
    )


@pytest.mark.parametrize("way", [slowly, compiled])
def test_what_goes_back_to_products_is_the_adjoint_of_taking_the_same_places(way, monkeypatch):
    way(monkeypatch)
    products, back = drawn(36, 2 * 3 * 2, 16), drawn(2, 5, 3, 16)
    pooled, places, found = torch.empty(back.shape), torch.empty(back.shape, dtype=torch.uint8), torch.empty(36, 12, 16)
    winograd.largest(products, torch.zeros(16), pooled, places)
    winograd.spread(back, places, found)
    assert float((found.double() * products.double()).sum()) == pytest.approx(
        float((back.double() * pooled.double()).sum()), rel=1e-5
    )


@pytest.mark.parametrize("filters", [1, 511, 512, 1030])
@pytest.mark.parametrize("way", [slowly, compiled])
def test_points_become_the_gradient_of_their_filter(way, filters, monkeypatch):
    way(monkeypatch)
    points, found = drawn(36, filters), torch.full((filters, 9), 7.0)
    winograd.filters(points, found)
    expected = points.T.double() @ winograd.filter_transform().double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", [slowly, compiled])
def test_what_is_not_a_number_stays_none_and_the_first_of_equals_is_taken(way, monkeypatch):
    way(monkeypatch)
    products = torch.zeros(36, 3, 16)
    products[5, 1, 2] = float("nan")
    pooled, places = torch.empty(1, 2, 6, 16), torch.full((1, 2, 6, 16), 9, dtype=torch.uint8)
    winograd.largest(products, torch.zeros(16), pooled, places)
    assert pooled.isnan().nonzero().tolist() == [[0, 0, 3, 2]]
    assert places.nonzero().tolist() == [[0, 0, 3, 2]]


def test_images_are_filled_up_to_whole_tiles_and_no_further():
    assert [winograd.sides(side, 4) for side in range(4, 16)] == [
        (side, 6) for side in (6, 6, 6, 7, 10, 10, 10, 11, 14, 14, 14, 15)
    ]
