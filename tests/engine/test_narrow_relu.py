"""ReLU of bfloat16 by its bits does what PyTorch's does, whatever the numbers are and however they lie."""

import pytest
import torch

from privfl import compiling
from privfl.engine import narrow_relu
from privfl.engine.sequence_steps import Rectified
from privfl.models.layouts import INNERMOST

EVERY = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
"""Every bfloat16, whatever is not a number too."""


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch):
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("lay", [torch.Tensor.contiguous, lambda one: one.contiguous(memory_format=INNERMOST)])
def test_every_number_comes_out_as_by_pytorch(lay):
    values = lay(EVERY.view(4, 16, 32, 32).clone())
    expected = values.clamp_min(0)
    assert narrow_relu.rectify_(values)
    same(values, expected)
    zeros = values.masked_select(values == 0)
    assert len(zeros) > 2**14
    assert not zeros.signbit().any()


@pytest.mark.parametrize("lay", [torch.Tensor.contiguous, lambda one: one.contiguous(memory_format=INNERMOST)])
def test_a_gradient_goes_back_where_pytorch_lets_it(lay):
    output = lay(EVERY.view(4, 16, 32, 32).clone())
    back = lay(torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).bfloat16())
    back[0, :3, 5, 7] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    expected = torch.ops.aten.threshold_backward(back, output, 0)
    assert narrow_relu.stop_(back, output)
    same(back, expected)


def test_float32_other_layouts_and_what_is_not_compiled_are_left_alone(monkeypatch):
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    narrow = images.bfloat16()
    assert not narrow_relu.rectify_(images)
    assert not narrow_relu.rectify_(narrow.transpose(2, 3))
    assert not narrow_relu.stop_(narrow, narrow.contiguous(memory_format=INNERMOST))
    assert not narrow_relu.stop_(narrow, images)
    monkeypatch.setattr(compiling, "ENOUGH", float("inf"))
    assert not narrow_relu.rectify_(narrow)
    same(images.bfloat16(), narrow)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_step_overwrites_only_what_is_its_own(fresh):
    given = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    step, before = Rectified(), given.clone()
    step.fresh = fresh
    output, kept = step.forward(given)
    same(output, before.clamp_min(0))
    assert torch.equal(given, output if fresh else before)
    back = torch.ones_like(output)
    same(step.backward(back, kept), (before > 0).bfloat16())
