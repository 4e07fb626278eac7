"""Random numbers of single rows: each row has its own, of its client's stream, in either engine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.func import grad, vmap

import privfl as pf
from privfl.engine.client_randomness import ClientRandomness
from privfl.errors import ConfigError
from privfl.privacy.clipping.guard import Made
from privfl.privacy.clipping.row_wise import each_row
from privfl.privacy.noise.source import NoiseStream
from tests.engine.test_client_randomness import DPSGD, task, trained

ROWS = 2000
DRAWS = {
    "rand": (lambda row: torch.rand(3), stats.uniform.cdf),
    "rand of a size by name": (lambda row: torch.rand(size=(3,), dtype=torch.float64), stats.uniform.cdf),
    "rand_like": (lambda row: torch.rand_like(row), stats.uniform.cdf),
    "uniform in place": (lambda row: torch.empty(3).uniform_(2, 4) / 2 - 1, stats.uniform.cdf),
    "uniform in a new tensor": (lambda row: row.new_empty(3).uniform_(), stats.uniform.cdf),
    "randn": (lambda row: torch.randn((1, 3))[0], stats.norm.cdf),
    "randn_like": (lambda row: torch.randn_like(row), stats.norm.cdf),
    "normal": (lambda row: (torch.normal(2.0, torch.full((3,), 3.0)) - 2) / 3, stats.norm.cdf),
    "normal of two numbers": (lambda row: torch.normal(0.0, 1.0, (3,)), stats.norm.cdf),
    "normal in place": (lambda row: torch.empty(3).normal_(1, 2) / 2 - 0.5, stats.norm.cdf),
    "a distribution": (lambda row: torch.distributions.Normal(torch.zeros(3), 1.0).rsample(), stats.norm.cdf),
    "exponential": (lambda row: torch.empty(3).exponential_(2.0) * 2, stats.expon.cdf),
}
COINS = {
    "bernoulli": lambda row: torch.bernoulli(torch.full((3,), 0.3)),
    "bernoulli of one chance": lambda row: torch.bernoulli(torch.zeros(3), 0.3),
    "bernoulli in place": lambda row: torch.empty(3).bernoulli_(0.3),
    "what drop-out leaves": lambda row: (F.dropout(torch.ones(1, 3), 0.7) > 0).float()[0],
    "what drop-out leaves of channels": lambda row: (F.dropout2d(torch.ones(1, 3, 2, 2), 0.7) > 0).float()[0, :, 0, 0],
}


def drawn(draw, rows=ROWS, key=0, present=None):
    """What each row draws [rows, 3]."""
    randomness = ClientRandomness()
    randomness.layer.generator, randomness.layer.present = NoiseStream(bytes([key]) * 32), present

    def seen(network, inputs, targets):
        return draw(inputs[0])[None].double()

    with randomness:
        return each_row(seen, nn.Identity(), torch.ones(rows, 3), torch.zeros(rows, dtype=torch.long))


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_of_rows_have_their_distribution_and_are_each_rows_own(name):
    """False alarms: 1e-7 each, by Kolmogorov and Smirnov's test; the key is fixed."""
    draw, distribution = DRAWS[name]
    numbers = drawn(draw)
    assert numbers.shape == (ROWS, 3)
    assert len(numbers.unique()) > 0.99 * numbers.numel()
    assert stats.kstest(numbers.flatten().numpy(), distribution).pvalue > 1e-7
    assert torch.equal(numbers, drawn(draw))
    assert not torch.equal(numbers, drawn(draw, key=1))


@pytest.mark.parametrize("name", COINS)
def test_coins_of_rows_fall_as_often_as_they_should(name):
    """False alarms: 1e-7, by the binomial test; the key is fixed."""
    coins = drawn(COINS[name])
    assert set(coins.flatten().tolist()) == {0.0, 1.0}
    assert stats.binomtest(int(coins.sum()), coins.numel(), 0.3).pvalue > 1e-7
    assert len({tuple(row) for row in coins.tolist()}) == 8


@pytest.mark.parametrize("present", [0, 2])
def test_padding_draws_nothing(present):
    numbers = drawn(lambda row: torch.rand(3), rows=5, present=(present, 5))
    assert bool((numbers[present:] == 0.5).all())
    if present:
        assert torch.equal(numbers[:present], drawn(lambda row: torch.rand(3), rows=present))


def test_numbers_reach_code_inside_of_a_gradient():
    randomness, made = ClientRandomness(), Made(1)
    randomness.layer.generator = NoiseStream(bytes(32))

    def one(weight, row):
        with made.of(row, weight):
            return (weight * row * torch.randn(3) * F.dropout(torch.ones(3))).sum()

    with randomness:
        gradients = vmap(grad(one), in_dims=(None, 0))(torch.ones(3), torch.ones(4, 3))
    assert len(gradients[gradients != 0].unique()) == int((gradients != 0).sum()) > 1


def test_what_is_not_served_says_so():
    with pytest.raises(ConfigError, match="take no requires_grad"):
        drawn(lambda row: torch.randn(3, requires_grad=True))
    with pytest.raises(ConfigError, match="random operation"):
        drawn(lambda row: torch.randperm(3).double())


class Augmenting(nn.Module):
    """Images mirrored at random, and noise on them, in training."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 4)

    def forward(self, inputs):
        if self.training:
            coins = torch.rand(len(inputs), 1, 1, 1) < 0.5
            inputs = torch.where(coins, inputs.flip(3), inputs) + 0.1 * torch.randn_like(inputs)
        return self.out(inputs.flatten(1))


def mixing(network, inputs, targets):
    """A loss that hides values in training."""
    if network.training:
        inputs = inputs * torch.empty_like(inputs).bernoulli_(0.8)
    return F.cross_entropy(network(inputs), targets, reduction="none")


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


@pytest.mark.parametrize(("model", "loss"), [(Augmenting, None), (linear, mixing)], ids=["model", "loss"])
@pytest.mark.parametrize("way", ["auto", "vmap"])
def test_both_engines_augment_alike_under_dp_sgd_and_in_secret(model, loss, way):
    privacy = pf.Privacy(
        training=pf.DPSGD(noise_multiplier=1e-6, max_grad_norm=0.5, sample_rate=0.5, per_sample=way), noise_key=3
    )
    loop, stacked = (trained(task(model, loss), privacy, engine=engine) for engine in ("loop", "vectorised"))
    assert torch.allclose(loop.parameters, stacked.parameters, rtol=0, atol=1e-5)
    assert stacked.warnings == ()
    other = trained(task(model, loss), pf.Privacy(training=privacy.training, noise_key=4))
    assert not torch.allclose(loop.parameters, other.parameters, rtol=0, atol=1e-3)


def test_augmentation_changes_no_claim():
    of, plain = task(Augmenting), task(linear)
    claims = [trained(one, DPSGD).statement.cell("sample", "server").epsilon for one in (of, plain)]
    assert claims[0] == claims[1] < np.inf
