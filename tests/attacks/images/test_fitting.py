"""An attacker's training is least squares where that has a closed form, and depends on its generator alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.images.fitting import drawn_from, fit
from privfl.errors import ConfigError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_linear_map_is_found_where_least_squares_puts_it():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(200, 3)), rng.normal(scale=0.1, size=(200, 1))
    y = x @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 + noise
    expected = np.linalg.lstsq(np.c_[x, np.ones(200)], y, rcond=None)[0].ravel()
    module = nn.Linear(3, 1).double()
    arrays = (torch.from_numpy(x), torch.from_numpy(y))
    curve = fit(
        module,
        lambda a, b: F.mse_loss(module(a), b),
        arrays,
        epochs=400,
        batch_size=200,
        learning_rate=0.05,
        generator=generator(),
    )
    found = [*module.weight.detach().ravel().tolist(), float(module.bias.detach())]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert curve[-1] < curve[0]
    assert not module.training


def test_weights_and_batches_depend_on_the_generator_alone():
    def trained(seed):
        chosen = generator(seed)
        with drawn_from(chosen):
            module = nn.Linear(4, 2)
        data = torch.ones(7, 4) * torch.arange(7)[:, None]
        losses = fit(
            module,
            lambda a: module(a).square().mean(),
            (data,),
            epochs=3,
            batch_size=3,
            learning_rate=0.1,
            generator=chosen,
        )
        return losses, module.weight

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = trained(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = trained(0), trained(1)
    assert first[0] == again[0]
    assert torch.equal(first[1], again[1])
    assert first[0] != other[0]


def test_what_cannot_be_trained_on_is_refused():
    module = nn.Linear(1, 1)
    usual = {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "generator": generator()}
    for arrays in ((torch.zeros(3, 1), torch.zeros(4, 1)), (torch.zeros(1, 1),)):
        with pytest.raises(ConfigError, match="equally many"):
            fit(module, lambda *a: a[0].sum(), arrays, **usual)
    for wrong in ({"epochs": 0}, {"batch_size": 1}, {"learning_rate": 0.0}):
        with pytest.raises(ConfigError, match="cannot train"):
            fit(module, lambda *a: a[0].sum(), (torch.zeros(3, 1),), **{**usual, **wrong})
