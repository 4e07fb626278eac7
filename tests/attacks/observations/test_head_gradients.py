"""The head of a network is found in modules of one's own too, and what it reads is what its gradient is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.observations.head_gradients import HeadGradient, checked_head, class_gradients, features, head_name
from privfl.errors import ConfigError
from privfl.models import Network
from privfl.models.flat_network import Layout

INPUTS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """A module of one's own that knows nothing of heads."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, inputs):
        return self.layers(inputs)


class Unfinished(Plain):
    """Its last linear layer is not what gives the outputs."""

    def forward(self, inputs):
        return self.layers(inputs).square()


class Features(Plain):
    """Calls a part of itself ``features``, as many networks do that are no privfl.models.Network."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(4, 2)


def test_the_last_linear_layer_of_a_module_is_its_head():
    assert head_name(Network(nn.Identity(), nn.Linear(4, 3))) == "head"
    assert head_name(Plain()) == "layers.2"
    assert head_name(nn.Linear(4, 3)) == ""
    with pytest.raises(ConfigError, match=r"Conv2d has no linear head; .*privfl.models.Network\(body, nn.Linear"):
        head_name(nn.Conv2d(1, 2, 3))


@pytest.mark.parametrize("network", [Plain(), nn.Linear(4, 3), Network(nn.Tanh(), nn.Linear(4, 3))])
def test_the_gradient_of_a_head_is_the_errors_times_what_it_reads(network):
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    read = features(network, INPUTS)
    gradient = torch.autograd.grad(F.cross_entropy(network(INPUTS), targets), list(network.parameters()))
    flat = torch.cat([part.reshape(-1) for part in gradient])
    found = HeadGradient.of(flat, Layout.of(network), checked_head(network, INPUTS[:1]))
    errors = (network(INPUTS).softmax(1) - F.one_hot(targets, 3)).double().detach() / len(targets)
    torch.testing.assert_close(found.weight, errors.T @ read.double().detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found.bias, errors.sum(0), atol=1e-6, rtol=1e-4)
    known = class_gradients(network, INPUTS, targets, 3)
    torch.testing.assert_close(known.means.mean(0), found.vector(), atol=1e-6, rtol=1e-4)


def test_a_linear_layer_that_does_not_give_the_outputs_is_no_head():
    for network in (Unfinished(), Features()):
        with pytest.raises(ConfigError, match=r"last linear layer of \w+, '[\w.]+', does not give its outputs"):
            checked_head(network, INPUTS[:1])
