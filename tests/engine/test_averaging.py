"""Means over positions, step by step and for stacks, are PyTorch's, forth and back."""

import pytest
import torch
from torch import nn

from privfl.engine.averaging import Averaged, AveragePooled, averaging
from privfl.engine.sequences import sequence_of
from privfl.engine.stacked_sequences import StackedSequence, stacked_sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.models.residual import GlobalAverage
from privfl.privacy.clipping.stacked import StackedGradients

INNERMOST = torch.channels_last
LAYERS = {
    "windows": nn.AvgPool2d(2),
    "windows that overlap, with padding": nn.AvgPool2d(3, stride=2, padding=1),
    "windows without their padding": nn.AvgPool2d((3, 2), padding=(1, 0), count_include_pad=False),
    "windows beyond the edge": nn.AvgPool2d(4, ceil_mode=True),
    "a divisor of one's own": nn.AvgPool2d(2, divisor_override=3),
    "so many windows": nn.AdaptiveAvgPool2d((3, 2)),
    "as many windows as rows": nn.AdaptiveAvgPool2d((None, 2)),
    "one window": nn.AdaptiveAvgPool2d(1),
    "the whole image": GlobalAverage(),
}


def images(layout):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, 7, 6, generator=generator).contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, INNERMOST])
@pytest.mark.parametrize("name", LAYERS)
def test_forth_and_back_it_is_the_layer(name, layout):
    layer, given = LAYERS[name], images(layout)
    step = Averaged() if type(layer) is GlobalAverage else averaging(layer)
    leaf = given.clone().requires_grad_()
    expected = layer(leaf)
    back = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (wanted,) = torch.autograd.grad(expected, leaf, back)
    with torch.no_grad():
        found, kept = step.forward(given)
        torch.testing.assert_close(found, expected.detach())
        torch.testing.assert_close(step.backward(back.clone(), kept), wanted)


def test_layers_of_other_types_are_none_of_these():
    class Own(nn.AvgPool2d):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    assert averaging(Own(2)) is None
    assert averaging(nn.AvgPool1d(2)) is None
    assert isinstance(averaging(nn.AdaptiveAvgPool2d((1, 1))), Averaged)
    assert isinstance(averaging(nn.AdaptiveAvgPool2d((1, None))), AveragePooled)


def network(layer):
    convolution = nn.Conv2d(2, 3, 3, padding=1)
    width = layer(torch.zeros(1, 3, 7, 6)).numel()
    return nn.Sequential(convolution, nn.Tanh(), layer, nn.Flatten(), nn.Linear(width, 4))


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_stacks_take_it_without_autograd(name, steady):
    torch.manual_seed(0)
    way = "rows" if steady else None
    space = Workspace.build(network(LAYERS[name]), torch.device("cpu"), None)
    inputs, targets = torch.randn(8, 2, 7, 6), torch.arange(8) % 4
    single = sequence_of(space.own, cross_entropy, inputs, anywhere=True)
    gradients = StackedGradients(space.own, way)
    found = stacked_sequence_of(single, gradients, space.dropout, inputs[:4], targets[:4], steady=steady)
    assert isinstance(found, StackedSequence)


@pytest.mark.parametrize("shape", [(3, 7), (3, 4, 2, 5), (3, 4, 5)])
def test_stacks_take_the_mean_of_what_they_are_given_whatever_its_dimensions(shape):
    torch.manual_seed(0)
    space = Workspace.build(nn.Sequential(GlobalAverage(), nn.Linear(3, 4)), torch.device("cpu"), None)
    inputs, targets = torch.randn(8, *shape), torch.arange(8) % 4
    single = sequence_of(space.own, cross_entropy, inputs, anywhere=True)
    gradients = StackedGradients(space.own, None)
    found = stacked_sequence_of(single, gradients, space.dropout, inputs[:4], targets[:4], steady=False)
    assert isinstance(found, StackedSequence)


@pytest.mark.parametrize("kind", [Averaged, AveragePooled])
def test_a_wrong_step_is_found_out(kind, monkeypatch):
    torch.manual_seed(0)
    layer = GlobalAverage() if kind is Averaged else nn.AvgPool2d(2)
    space = Workspace.build(network(layer), torch.device("cpu"), None)
    inputs, targets = torch.randn(8, 2, 7, 6), torch.arange(8) % 4
    single = sequence_of(space.own, cross_entropy, inputs, anywhere=True)
    gradients = StackedGradients(space.own, None)
    before = kind.backward
    monkeypatch.setattr(kind, "backward", lambda step, back, kept: before(step, back, kept) * 1.01)
    found = stacked_sequence_of(single, gradients, space.dropout, inputs[:4], targets[:4], steady=False)
    assert "came out different" in found
