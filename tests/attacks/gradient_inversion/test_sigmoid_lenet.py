"""The victim of DLG's paper: its shape, its weights, and that it is drawn from its generator alone."""

import pytest
import torch

from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet


def made(seed=0, spread=0.5, shape=(3, 32, 32)):
    return sigmoid_lenet(shape, 10, generator=torch.Generator().manual_seed(seed), spread=spread)


@pytest.mark.parametrize(("shape", "features"), [((3, 32, 32), 768), ((1, 28, 28), 588)])
def test_it_has_the_features_of_the_published_network(shape, features):
    network = made(shape=shape)
    assert network.feature_dim == features
    inputs = torch.zeros(2, *shape)
    assert network(inputs).shape == (2, 10)
    assert bool((network.features(inputs) > 0).all())


def test_its_weights_are_uniform_and_drawn_from_the_generator():
    weights = torch.cat([parameter.detach().flatten() for parameter in made().parameters()])
    assert float(weights.abs().max()) <= 0.5
    # The mean of n uniform numbers has standard deviation 1/√(12n); 6 of them are passed once in 5e8 draws.
    assert abs(float(weights.mean())) < 6 / (12 * len(weights)) ** 0.5
    first, again, other = (next(net.parameters()) for net in (made(), made(), made(1)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    plain, same = (next(made(spread=None).parameters()) for _ in range(2))
    assert torch.equal(plain, same)
