"""Raw noise under siege: floating-point leaks and wrong scales are refuted, our samplers are not."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import laplace, norm

from audits.mechanisms.noise import audit_noise, largest_scale
from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource, round_to_grid

SURE = 1 - 1e-6  # the false-alarm rate of every verdict here


def ours(noise, scale, key=1):
    source, calls = NoiseSource.from_key(key), iter(range(100))

    def release(values):
        stream = source.stream("siege", next(calls))
        if noise == "laplace":
            return round_to_grid(values + stream.laplace(len(values), scale), scale)
        return stream.add_gaussian_(torch.from_numpy(values.copy()), scale).numpy()

    return release


def naive(noise, scale):
    generator = np.random.default_rng(2)

    def release(values):
        drawn = generator.laplace(size=len(values)) if noise == "laplace" else generator.normal(size=len(values))
        return values + scale * drawn

    return release


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_our_noise_stands_where_naive_noise_falls(noise):
    found = audit_noise(ours(noise, 2.0), noise=noise, scale=2.0, shift=4.0, confidence=SURE)
    assert not found.refuted
    assert found.certified_scale / found.claimed_scale < 1.3  # and the audit is not blind
    fallen = audit_noise(naive(noise, 2.0), noise=noise, scale=2.0, shift=4.0, confidence=SURE)
    assert fallen.refuted
    assert fallen.certified_scale / fallen.claimed_scale < 0.7
    assert "is refuted" in str(fallen)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_of_two_thirds_of_the_scale_is_refuted(noise):
    found = audit_noise(ours(noise, 2.0), noise=noise, scale=3.0, shift=4.0, confidence=SURE)
    assert found.refuted
    assert found.certified_scale >= 2.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (0.3, 0.01), (1.0, 1e-5), (1.0, 0.2)])
def test_scales_solve_the_exact_curves(epsilon, delta):
    def gaussian(scale):
        mu = 1 / scale
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    def laplacian(scale):  # by numbers: the part of one density that exceeds e^ε times the other
        x = np.linspace(-30 * scale, 30 * scale, 60_001)
        gap = laplace.pdf(x, 0, scale) - math.exp(epsilon) * laplace.pdf(x, 1, scale)
        return np.trapezoid(np.maximum(gap, 0), x) - delta

    assert largest_scale("gaussian", epsilon, delta, 1.0) == pytest.approx(brentq(gaussian, 0.05, 100), rel=1e-6)
    if delta > 1e-3:
        assert largest_scale("laplace", epsilon, delta, 1.0) == pytest.approx(brentq(laplacian, 0.05, 50), rel=1e-3)


def test_the_ends_of_the_curves():
    assert largest_scale("laplace", 2.0, 0.0, 1.0) == 0.5
    assert largest_scale("gaussian", 2.0, 0.0, 1.0) == math.inf
    assert largest_scale("laplace", 0.0, 0.0, 1.0) == math.inf


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"trials": 100}, "100 trials"), ({"noise": "cauchy"}, "'cauchy'"), ({"scale": 0.0}, "the scale is 0.0")],
)
def test_impossible_sieges_are_one_sentence(change, sentence):
    settings = {"noise": "laplace", "scale": 1.0, **change}
    with pytest.raises(ConfigError, match=sentence):
        audit_noise(ours("laplace", 1.0), **settings)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_tree_learns_of_pure_chance_certifies_nothing(seed):
    """Releases that do not depend on the value at all keep any claim."""
    chance = np.random.default_rng(seed)
    found = audit_noise(
        lambda values: chance.normal(size=len(values)), noise="gaussian", scale=1e3, trials=30_000, confidence=1 - 1e-7
    )
    assert not found.refuted
    assert found.certified_scale > 1e3


@pytest.mark.parametrize(
    "change", [{"trials": "many"}, {"trials": 400.5}, {"scale": "2"}, {"confidence": "0.95"}], ids=str
)
def test_arguments_that_do_not_fit_are_one_sentence(change):
    with pytest.raises(ConfigError, match=f"{next(iter(change))} is .*; give a"):
        audit_noise(lambda values: pytest.fail("released"), **{"noise": "laplace", "scale": 1.0, **change})
