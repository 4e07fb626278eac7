"""A module computes with any flat vector for a while, wherever that lies in memory, and is itself again afterwards."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from privfl.models.flat_network import FlatNetwork


@pytest.fixture
def network():
    torch.manual_seed(0)
    return FlatNetwork(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5)))


def point_elsewhere(module):
    for parameter in module.parameters():
        parameter.data = parameter.data * 2


def set_elsewhere(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.set_(parameter * 2)


def put_back(module):
    vector = nn.utils.parameters_to_vector(module.parameters()).detach()
    nn.utils.vector_to_parameters(vector * 2, module.parameters())


@pytest.mark.parametrize("write", [point_elsewhere, set_elsewhere, put_back])
def test_parameters_that_somebody_has_pointed_elsewhere_hold_what_is_loaded(network, write):
    other, inputs = torch.randn(network.layout.size), torch.randn(2, 2, 4, 4)
    expected = functional_call(network.module, network.layout.named_views(other), inputs)
    write(network.module)
    network.load(other)
    assert torch.equal(network.module(inputs), expected)
    assert torch.equal(nn.utils.parameters_to_vector(network.module.parameters()), other)
    with torch.no_grad():
        network.flat.zero_()
    assert not any(bool(parameter.any()) for parameter in network.module.parameters())


@pytest.mark.parametrize("place", ["whole", "within a longer vector", "not contiguous"])
def test_a_network_computes_with_another_vector(network, place):
    size, inputs = network.layout.size, torch.randn(2, 2, 4, 4)
    other = torch.randn(2 * size)
    flat = {"whole": other[:size].clone(), "within a longer vector": other[7 : 7 + size], "not contiguous": other[::2]}
    expected = functional_call(network.module, network.layout.named_views(flat[place].contiguous()), inputs)
    own, before = network.flat, network.module(inputs)
    with network.at(flat[place]):
        assert torch.equal(network.module(inputs), expected)
        with network.at(own):
            assert torch.equal(network.module(inputs), before)
        assert torch.equal(network.flat, flat[place])
    assert network.flat is own
    assert torch.equal(network.module(inputs), before)


def test_a_network_is_itself_again_after_an_error_and_refuses_vectors_of_another_length(network):
    own = network.flat
    for length in (network.layout.size - 1, network.layout.size + 1):
        with pytest.raises(RuntimeError), network.at(torch.zeros(length)):
            raise AssertionError("a vector of another length was taken")
        assert network.flat is own
    with pytest.raises(ZeroDivisionError), network.at(torch.zeros(network.layout.size)):
        raise ZeroDivisionError
    assert all(parameter.untyped_storage().data_ptr() == own.data_ptr() for parameter in network.parameters)
