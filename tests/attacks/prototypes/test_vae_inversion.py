"""Both VAEs optimise their textbook objective; the search through latents is ridge regression where all is linear."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from attacks.images.pixels import Pixels
from attacks.prototypes.vae_inversion import (
    VariationalDecoder,
    divergence,
    search_latents,
    train_feature_vae,
    train_image_vae,
)
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.models import build

DIGITS, PIXELS = load_dataset("digits", seed=0), Pixels.of("digits")
PUBLIC, HELD_OUT = PIXELS.images(DIGITS.inputs), PIXELS.images(DIGITS.test_inputs)
SMALL = {"latent": 16, "channels": (16, 8)}
NETWORK = build("two-nn", (1, 8, 8), 10, seed=0).requires_grad_(False)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def extract(images):
    return NETWORK.features(PIXELS.inputs(images))


def error(found, truth):
    return float((found - truth).square().mean())


def test_the_divergence_is_that_of_two_normal_laws():
    mean, log_variance = torch.randn(5, 3, generator=generator()), torch.randn(5, 3, generator=generator(1))
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(divergence(mean, log_variance), expected)


def test_the_loss_is_reconstruction_plus_weighted_divergence():
    vae = VariationalDecoder(nn.Identity(), 3, 2, nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (1, 2, 2))))
    observed, images = torch.randn(6, 3, generator=generator()), torch.rand(6, 1, 2, 2, generator=generator(1))
    mean, log_variance = vae.mean(observed), vae.log_variance(observed)
    latents = mean + (0.5 * log_variance).exp() * torch.randn(6, 2, generator=generator(2))
    apart = (vae.decoder(latents) - images).square().sum((1, 2, 3))
    expected = (apart + 0.3 * divergence(mean, log_variance)).mean()
    torch.testing.assert_close(vae.loss(observed, images, 0.3, generator(2)), expected)
    torch.testing.assert_close(vae.sample(observed, generator(2)), vae.decoder(latents))
    torch.testing.assert_close(vae(observed), vae.decoder(mean))


def test_features_of_unseen_images_give_more_than_the_mean_image():
    features = extract(PUBLIC)
    vae = train_feature_vae(features, PUBLIC, generator=generator(), epochs=10, learning_rate=5e-3, beta=0.05, **SMALL)
    with torch.no_grad():
        found = vae(extract(HELD_OUT))
        drawn = vae.sample(extract(HELD_OUT), generator(3))
    nothing = error(PUBLIC.mean(0).expand_as(HELD_OUT), HELD_OUT)
    assert error(found, HELD_OUT) < 0.6 * nothing
    assert error(drawn, HELD_OUT) < 0.8 * nothing
    assert train_feature_vae(features, PUBLIC, generator=generator(), epochs=1, start=vae) is vae


def test_a_search_through_the_latents_of_an_image_vae_finds_the_image_behind_a_feature():
    vae = train_image_vae(PUBLIC, generator=generator(), epochs=10, learning_rate=5e-3, beta=0.05, **SMALL)
    truth = HELD_OUT[:6]
    found = search_latents(extract, vae, extract(truth), iterations=150)
    assert error(found, truth) < 0.7 * error(PUBLIC.mean(0).expand_as(truth), truth)
    with torch.no_grad():
        before = (extract(vae.decoder(torch.zeros(6, 16))) - extract(truth)).square().sum()
        after = (extract(found) - extract(truth)).square().sum()
    assert float(after) < 0.3 * float(before)


def test_the_search_is_ridge_regression_where_extractor_and_decoder_are_linear():
    rng = np.random.default_rng(0)
    decoder, extractor = rng.normal(size=(4, 2)), rng.normal(size=(5, 4))
    vae = VariationalDecoder(
        nn.Identity(), 1, 2, nn.Sequential(nn.Linear(2, 4, bias=False), nn.Unflatten(1, (1, 2, 2)))
    )
    vae = vae.double()
    with torch.no_grad():
        vae.decoder[0].weight.copy_(torch.from_numpy(decoder))
    targets, shrinkage = rng.normal(size=(3, 5)), 0.7
    both = extractor @ decoder
    expected = np.linalg.solve(both.T @ both + shrinkage * np.eye(2), both.T @ targets.T).T @ decoder.T
    found = search_latents(
        lambda images: images.flatten(1) @ torch.from_numpy(extractor).T,
        vae,
        torch.from_numpy(targets),
        iterations=1500,
        learning_rate=0.02,
        shrinkage=shrinkage,
    )
    np.testing.assert_allclose(found.flatten(1), expected, atol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="one row each"):
        train_feature_vae(torch.zeros(3, 4), PUBLIC[:2], generator=generator())
    vae = VariationalDecoder(nn.Identity(), 1, 2, nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8))))
    with pytest.raises(ConfigError, match="the extractor gives"):
        search_latents(extract, vae, torch.zeros(2, 7))
