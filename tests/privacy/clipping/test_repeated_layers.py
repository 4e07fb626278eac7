"""A layer that a network calls several times has one gradient per example: the sum over its calls, clipped once."""

import pytest
import torch
from torch import nn

from privfl.federation.task import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients

BOUND = 0.05
LAYERS = {
    "convolution": (nn.Conv1d(2, 2, 3, padding=1), (2, 6)),
    "group norm": (nn.GroupNorm(2, 2), (2, 6)),
    "layer norm": (nn.LayerNorm(6), (2, 6)),
    "linear": (nn.Linear(6, 6), (2, 6)),
}


class Repeated(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(12, 3)

    def forward(self, inputs):
        return self.head(self.layer(self.layer(inputs).tanh()).flatten(1))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
@pytest.mark.parametrize("name", LAYERS)
def test_clipped_sums_of_a_repeated_layer_are_those_of_a_loop(name, way, stacked):
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    network = FlatNetwork(Repeated(layer))
    inputs, targets = torch.randn(5, *shape), torch.arange(5) % 3
    expected = torch.zeros_like(network.flat)
    for row in range(5):
        gradient = network.gradient_of(cross_entropy(network.module, inputs[[row]], targets[[row]]).sum())
        flat = torch.cat([one.flatten() for one in gradient])
        expected += flat * min(1.0, BOUND / float(flat.norm()))
    if stacked:
        batch = StackedBatch(inputs[None], targets[None], None, {})
        found = StackedGradients(network, way).clipped_sum(cross_entropy, network.flat[None], batch, BOUND)[0]
    else:
        PerSampleGradients(network, way).clipped_sum(cross_entropy, inputs, targets, BOUND)
        found = network.gradient
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
