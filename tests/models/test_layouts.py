"""With the channels of images innermost a network computes what it computed, and lays out no more than it must."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from privfl.models.convolutional import rebafl_fmnist, two_cnn
from privfl.models.layouts import INNERMOST, InnermostPool, images_relaid, lay_channels_innermost, relays

IMAGES = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def both(build):
    torch.manual_seed(0)
    usual = build()
    innermost = copy.deepcopy(usual)
    lay_channels_innermost(innermost)
    return usual, innermost


@pytest.mark.parametrize("build", [lambda: rebafl_fmnist((1, 28, 28), 10), lambda: two_cnn((1, 28, 28), 10)])
def test_outputs_features_and_gradients_are_the_same_up_to_rounding(build):
    usual, innermost = both(build)
    for network in (usual, innermost):
        network(IMAGES).square().sum().backward()
    torch.testing.assert_close(innermost(IMAGES), usual(IMAGES))
    torch.testing.assert_close(innermost.features(IMAGES), usual.features(IMAGES))
    for one, other in zip(innermost.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_under_transforms_of_torch_func_it_computes_the_same():
    usual, innermost = both(lambda: rebafl_fmnist((1, 28, 28), 10))
    parameters = dict(usual.named_parameters())

    def of_one(network):
        return lambda values, image: functional_call(network, values, (image[None],)).square().sum()

    for network, make in ((innermost, usual), (usual, innermost)):
        found = vmap(grad(of_one(network)), in_dims=(None, 0))(parameters, IMAGES)
        expected = vmap(grad(of_one(make)), in_dims=(None, 0))(parameters, IMAGES)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    stacked = vmap(innermost)(IMAGES[:, None])
    torch.testing.assert_close(stacked[:, 0], usual(IMAGES))


def test_only_networks_that_pool_are_laid_out_anew():
    dense, pooling = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2))
    for network in (dense, pooling):
        lay_channels_innermost(network)
    assert not relays(dense)
    assert relays(pooling)
    assert [type(layer) for layer in pooling] == [nn.Conv2d, InnermostPool]
    assert pooling(IMAGES).is_contiguous(memory_format=INNERMOST)


def test_what_is_no_image_stays_and_one_channel_is_not_copied():
    rows = torch.rand(3, 5)
    assert images_relaid(rows) is rows
    assert images_relaid(IMAGES).data_ptr() == IMAGES.data_ptr()
    colours = torch.rand(2, 3, 4, 4)
    assert torch.equal(images_relaid(colours), colours)
    assert images_relaid(colours).is_contiguous(memory_format=INNERMOST)
