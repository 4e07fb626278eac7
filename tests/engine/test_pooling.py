"""Pooling of 2 × 2 with its ReLU in one pass: the bits of PyTorch's, forward and back, whatever the numbers are."""

import math

import pytest
import torch
from torch import nn

from privfl import compiling
from privfl.engine import pooling
from privfl.engine.sequence_steps import Pooled
from privfl.models.layouts import INNERMOST

pytestmark = pytest.mark.skipif(not compiling.installed(), reason="Numba is not installed")
SIZES = [(3, 20, 8, 6), (2, 16, 7, 9), (1, 1, 2, 2), (2, 33, 3, 2)]
"""Images, channels, height, width; what is odd has a line that no pool reaches."""
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def images_of(size, dtype):
    """Numbers of both signs, many alike, zeros of both signs, some infinite, some none, with a sign or without."""
    generator = torch.Generator().manual_seed(sum(size))
    values = torch.randint(-3, 4, size, generator=generator) * torch.rand(size, generator=generator).round(decimals=1)
    odd = torch.tensor([-0.0, math.inf, -math.inf, math.nan, -math.nan])
    chosen = torch.randint(0, 25, size, generator=generator)
    values = torch.where(chosen < len(odd), odd[chosen.clamp_max(len(odd) - 1)], values)
    values = values.to(dtype)
    if dtype == torch.bfloat16:  # of which not every processor makes one that has no sign
        values.view(torch.int16)[chosen == 3] = 0x7FC0
    return values.contiguous(memory_format=INNERMOST)


def both_ways(images, *, rectified):
    step = Pooled(nn.MaxPool2d(2))
    step.rectified = rectified
    pooled, kept = step.forward(images)
    back = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1)).to(images.dtype)
    return pooled, step.backward(back.contiguous(memory_format=INNERMOST), kept), kept


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rectified", [False, True])
def test_it_has_the_bits_of_torch(monkeypatch, size, dtype, rectified):
    images, found = images_of(size, dtype), []
    for enough in (math.inf, 0.0):  # seconds saved from which on it is compiled
        monkeypatch.setattr(compiling, "ENOUGH", enough)
        found.append(both_ways(images, rectified=rectified))
    (expected, expected_back, _), (pooled, back, kept) = found
    assert isinstance(kept, pooling.Places)
    assert torch.equal(pooled.isnan(), expected.isnan())
    for one, other in ((pooled, expected), (back, expected_back)):
        bits = [values.nan_to_num(7.0).contiguous().view(BITS[dtype]) for values in (one, other)]
        assert torch.equal(*bits)
        assert one.is_contiguous(memory_format=INNERMOST)


def test_pooling_and_relu_are_those_of_the_layers():
    images = images_of((4, 6, 8, 8), torch.float32).nan_to_num(0.0, 5.0, -5.0).requires_grad_()
    expected = torch.relu(nn.MaxPool2d(2)(images))
    pooled, kept = (step := rectifying()).forward(images.detach())
    assert torch.equal(pooled, expected)
    back = torch.randn_like(expected)
    expected.backward(back)
    assert torch.equal(step.backward(back, kept), images.grad)


def rectifying():
    step = Pooled(nn.MaxPool2d(2))
    step.rectified = True
    return step


@pytest.mark.parametrize(
    "images",
    [torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4, dtype=torch.float64).contiguous(memory_format=INNERMOST)],
    ids=["channels outermost", "float64"],
)
def test_what_there_is_no_loop_for_is_pooled_by_torch(monkeypatch, images):
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    assert pooling.largest(images, rectified=True) is None
    assert torch.equal(rectifying().forward(images)[0], torch.relu(nn.MaxPool2d(2)(images)))


def test_on_a_device_there_is_no_loop(monkeypatch):
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    images = torch.empty(2, 16, 4, 4, device="meta").contiguous(memory_format=INNERMOST)
    assert pooling.largest(images, rectified=True) is None


@pytest.mark.parametrize(
    "settings", [{"kernel_size": 3}, {"kernel_size": 2, "stride": 1}, {"kernel_size": 2, "padding": 1}]
)
def test_other_pools_are_rectified_too(settings):
    images = torch.randn(2, 16, 6, 6, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=INNERMOST)
    given = images.clone().requires_grad_()
    expected = torch.relu(nn.MaxPool2d(**settings)(given))
    step = Pooled(nn.MaxPool2d(**settings))
    step.rectified = True
    pooled, kept = step.forward(images)
    assert torch.equal(pooled, expected)
    back = torch.randn_like(expected)
    expected.backward(back)
    torch.testing.assert_close(step.backward(back, kept), given.grad)


def test_a_line_that_no_pool_reaches_has_no_gradient():
    found = torch.full((1, 3, 5, 2), 7.0)
    places = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    pooling._spread(torch.ones(1, 1, 2, 2).numpy(), places.numpy(), found.numpy())
    expected = torch.zeros(1, 3, 5, 2)
    expected[0, 0, [0, 2]] = 1
    assert torch.equal(found, expected)
