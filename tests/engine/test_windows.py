"""Windows of images, laid out and added up again: those that PyTorch unfolds and folds, whichever loops do it."""

import math

import pytest
import torch
import torch.nn.functional as F

from privfl import compiling
from privfl.engine.windows import FEW_CHANNELS, Windows, picked

SHAPES = {  # image, kernel, stride
    "one channel, two apart": ((9, 8, 1), (5, 5), (2, 2)),
    "few channels": ((7, 9, FEW_CHANNELS), (3, 2), (1, 3)),
    "many channels": ((6, 5, FEW_CHANNELS + 3), (2, 3), (2, 1)),
    "windows side by side": ((4, 6, 2), (2, 3), (2, 3)),
    "windows with gaps": ((9, 9, 6), (2, 2), (3, 4)),
    "one window": ((3, 4, 5), (3, 4), (1, 1)),
    "what no window reaches": ((8, 8, 2), (3, 3), (2, 2)),
}


@pytest.fixture(params=["compiled", "by PyTorch"])
def loops(request, monkeypatch):
    if request.param == "compiled" and not compiling.installed():
        pytest.skip("Numba is not installed")
    monkeypatch.setattr(compiling, "ENOUGH", 0.0 if request.param == "compiled" else math.inf)


def numbers(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def innermost(unfolded, channels):
    """What ``F.unfold`` gives, [N, channels · places, windows], as windows with their channels innermost."""
    count, _, windows = unfolded.shape
    return unfolded.view(count, channels, -1, windows).permute(0, 3, 2, 1).reshape(count, windows, -1)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("shape", SHAPES)
def test_windows_are_those_that_torch_unfolds(shape):
    image, kernel, stride = SHAPES[shape]
    images, windows = numbers(3, *image), Windows(image, kernel, stride)
    found = windows.laid_out(images)
    expected = innermost(F.unfold(images.permute(0, 3, 1, 2), kernel, stride=stride), image[2])
    assert torch.equal(found, expected)
    assert found.is_contiguous()
    assert windows.values == found[0].numel()
    assert windows.shape[:2] == tuple((size - k) // s + 1 for size, k, s in zip(image[:2], kernel, stride, strict=True))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("shape", SHAPES)
def test_what_overlaps_is_added_up_as_torch_folds_it(shape):
    image, kernel, stride = SHAPES[shape]
    windows = Windows(image, kernel, stride)
    rows, columns, high, wide, channels = windows.shape
    given = numbers(3, rows * columns, high * wide * channels)
    outermost = given.view(3, rows * columns, high * wide, channels).permute(0, 3, 2, 1).reshape(3, -1, rows * columns)
    expected = F.fold(outermost, image[:2], kernel, stride=stride).permute(0, 2, 3, 1)
    torch.testing.assert_close(windows.added_up(given), expected)


@pytest.mark.skipif(not compiling.installed(), reason="Numba is not installed")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loops_have_the_bits_of_torch(shape, dtype, monkeypatch):
    image, kernel, stride = SHAPES[shape]
    windows, found = Windows(image, kernel, stride), []
    images = numbers(2, *image).to(dtype)
    images.view(-1)[::5], images.view(-1)[::7] = -0.0, math.nan
    for enough in (math.inf, 0.0):  # seconds saved from which on they are compiled
        monkeypatch.setattr(compiling, "ENOUGH", enough)
        laid = windows.laid_out(images)
        found.append([one.view(torch.uint8) for one in (laid, windows.added_up(laid.nan_to_num(0.3)))])
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


@pytest.mark.usefixtures("loops")
def test_numbers_are_picked_by_their_places():
    rows, places = numbers(4, 10), torch.tensor([9, 0, 0, 3])
    assert torch.equal(picked(rows, places), rows[:, places])
