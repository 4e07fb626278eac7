"""A fully-connected layer's gradient gives back its input, to 1e-5 and better, on real images."""

import pytest
import torch
from torch import nn

from attacks.gradient_inversion.fully_connected_leakage import leaked_input, leaked_rows
from attacks.observations.gradients import batch_gradient
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.models import Network, build

DIGITS = load_dataset("digits", seed=0)


def gradient_by_name(network, inputs, targets):
    found = batch_gradient(network, inputs, targets)
    return dict(zip((name for name, _ in network.named_parameters()), found, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_the_first_layers_gradient_holds_the_image_to_1e_5_in_float64(seed):
    network = build("two-nn", (1, 8, 8), 10, seed=seed).double()
    image, label = DIGITS.test_inputs[seed : seed + 1].double(), DIGITS.test_targets[seed : seed + 1]
    names = [name for name, _ in network.named_parameters()]
    gradient = gradient_by_name(network, image, label)
    found = leaked_input(gradient[names[0]], gradient[names[1]])
    assert float((found - image.flatten()).abs().max()) < 1e-5
    assert float((found - image.flatten()).abs().max()) < 1e-10, "nothing but rounding stands between"


def test_the_heads_gradient_holds_the_features():
    network = build("rebafl-fmnist", (1, 28, 28), 10, seed=0).double()
    image = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = gradient_by_name(network, image, torch.tensor([3]))
    found = leaked_input(gradient["head.weight"], gradient["head.bias"])
    torch.testing.assert_close(found, network.features(image)[0], atol=1e-10, rtol=0)


def test_a_row_of_a_batch_is_a_mixture_whose_weights_sum_to_one():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    deltas = torch.randn(4, 9, generator=generator, dtype=torch.float64)  # ∂ℓ/∂a of each sample
    rows = leaked_rows(deltas.T @ inputs, deltas.sum(0))
    for row, delta in zip(rows, deltas.T, strict=True):
        weights = delta / delta.sum()
        assert float(weights.sum()) == pytest.approx(1)
        torch.testing.assert_close(row, weights @ inputs)


def test_a_neuron_that_one_sample_of_a_batch_reaches_gives_that_sample_exactly():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 16, generator=generator, dtype=torch.float64)
    layer, head = nn.Linear(16, 8, dtype=torch.float64), nn.Linear(8, 3, dtype=torch.float64)
    with torch.no_grad():  # neuron i fires for sample i alone
        points = inputs / inputs.norm(dim=1, keepdim=True)
        layer.weight.copy_(points)
        scores = points @ inputs.T
        runners_up = scores.masked_fill(torch.eye(8, dtype=torch.bool), -torch.inf).amax(1)
        layer.bias.copy_(-(scores.diagonal() + runners_up) / 2)
    network = Network(nn.Sequential(layer, nn.ReLU()), head)
    weight, bias = batch_gradient(network, inputs, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))[:2]
    torch.testing.assert_close(leaked_rows(weight, bias), inputs, atol=1e-9, rtol=0)


def test_gradients_that_say_nothing_are_refused():
    with pytest.raises(ConfigError, match="every bias gradient is zero"):
        leaked_input(torch.ones(3, 2), torch.zeros(3))
    with pytest.raises(ConfigError, match="of one layer"):
        leaked_rows(torch.ones(3, 2), torch.ones(2))
