"""A convolution and the pooling behind it in one step are autograd's, for every size, and only where both are plain."""

import pytest
import torch
from torch import nn

from privfl.engine import pooled_convolution, sequences
from privfl.engine.pooled_convolution import PooledConvolution, joined
from privfl.engine.sequence_steps import Convolution, Pooled
from privfl.engine.sequences import sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.products import Forms

IMAGES = torch.randn(7, 16, 11, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(7) % 4


def network(padding=0, bias=True):
    body = [nn.Conv2d(16, 16, 3, padding=padding, bias=bias), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.LazyLinear(4))


def built(module, **options):
    torch.manual_seed(0)
    module(IMAGES)
    own = Workspace.build(module, torch.device("cpu"), None, innermost=True).own
    own.flat.requires_grad_(False)
    return own, sequence_of(own, cross_entropy, IMAGES, **options)


def kinds(sequence):
    return [type(step) for step in sequence.steps]


@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("space", [1, 1 << 12, 1 << 20])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_and_steps_are_autograds_however_many_images_are_taken_at_once(
    padding, bias, space, first, monkeypatch
):
    monkeypatch.setattr(pooled_convolution, "forms", lambda: Forms(transformed=space))
    module = network(padding, bias)
    if not first:
        module = nn.Sequential(nn.Conv2d(16, 16, 1), *module)
    own, sequence = built(module)
    assert PooledConvolution in kinds(sequence)
    with torch.enable_grad():
        loss = cross_entropy(own.module, IMAGES, LABELS).sum()
        wanted = torch.cat([one.flatten() for one in own.gradient_of(loss)])
    before = own.flat.clone()
    with torch.no_grad():
        for rows in (slice(0, 3), slice(0, 7)):  # work space is used again by larger batches
            sequence.write_gradient(cross_entropy, IMAGES[rows], LABELS[rows], 1.0)
        torch.testing.assert_close(own.gradient, wanted, rtol=1e-4, atol=2e-5)
        for place, back, kept in sequence._backward(cross_entropy, IMAGES, LABELS, 1.0):
            sequence.steps[place].descend(back, kept, 0.125)
    torch.testing.assert_close(8 * (before - own.flat), wanted, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("space", [1, 1 << 20])
@pytest.mark.parametrize("first", [True, False])
def test_under_dp_sgd_each_samples_gradient_is_that_of_the_sample_alone(padding, bias, space, first, monkeypatch):
    monkeypatch.setattr(pooled_convolution, "forms", lambda: Forms(transformed=space))
    module = network(padding, bias)
    if not first:
        module = nn.Sequential(nn.Conv2d(16, 16, 1), *module)
    own, sequence = built(module, steady=True)
    layer = next(step.layer for step in sequence.steps if isinstance(step, PooledConvolution))
    with torch.no_grad():
        formed = dict(sequence.arrivals(cross_entropy, IMAGES, LABELS))[layer]
    assert set(formed) == {name for name, _ in layer.named_parameters()}
    for row in range(len(IMAGES)):
        with torch.enable_grad():
            loss = cross_entropy(own.module, IMAGES[row : row + 1], LABELS[row : row + 1]).sum()
            wanted = dict(zip(map(id, own.parameters), own.gradient_of(loss), strict=True))
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(formed[name][row], wanted[id(parameter)].flatten(), rtol=1e-4, atol=2e-5)


def test_it_is_one_step_only_in_float32_on_a_cpu_and_with_numba(monkeypatch):
    assert PooledConvolution in kinds(built(network())[1])
    assert PooledConvolution in kinds(built(network(), steady=True)[1])
    for options in ({"narrow": True}, {"anywhere": True}):
        assert kinds(built(network(), **options)[1])[1:3] == [Convolution, Pooled]
    monkeypatch.setattr(pooled_convolution, "installed", lambda: False)
    assert kinds(built(network())[1])[1:3] == [Convolution, Pooled]


@pytest.mark.parametrize(
    ("convolution", "pooling"),
    [
        ({"kernel_size": 5}, {}),
        ({"stride": 2}, {}),
        ({"dilation": 2}, {}),
        ({"groups": 2}, {}),
        ({"out_channels": 15}, {}),
        ({"in_channels": 15}, {}),
        ({}, {"kernel_size": 3}),
        ({}, {"stride": 1}),
        ({}, {"padding": 1}),
        ({}, {"ceil_mode": True}),
    ],
)
def test_other_windows_other_pools_and_few_channels_stay_two_steps(convolution, pooling):
    settings = {"in_channels": 16, "out_channels": 16, "kernel_size": 3}
    plain = Convolution(nn.Conv2d(**settings)), Pooled(nn.MaxPool2d(2))
    assert isinstance(joined(*plain), PooledConvolution)
    other = Convolution(nn.Conv2d(**{**settings, **convolution})), Pooled(nn.MaxPool2d(**{"kernel_size": 2, **pooling}))
    assert joined(*other) is None
    assert joined(*reversed(plain)) is None


def test_two_of_them_in_a_row_are_joined_each():
    steps = [Convolution(nn.Conv2d(16, 16, 3)), Pooled(nn.MaxPool2d(2))] * 2
    assert [type(step) for step in sequences._joined(steps, apart=False)] == [PooledConvolution] * 2
