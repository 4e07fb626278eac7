"""The one-shot estimate against closed forms, numerical integrals, and a run with known noise."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.integrate import quad
from scipy.stats import norm

from audits.bounds.bound import Estimate, LowerBound
from audits.bounds.one_shot import cosines, epsilon_one_shot, normal_pair_delta, normal_pair_epsilon
from privfl.errors import ConfigError


@pytest.mark.parametrize("first", [(1.0, 1.0), (0.5, 1.3), (-2.0, 0.7), (0.0, 2.0), (0.0, 0.5), (3.0, 1.0001)])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_divergence_of_two_normal_laws_is_the_integral_of_what_one_has_more(first, epsilon):
    def excess(x):
        return max(0.0, norm.pdf(x, *first) - math.exp(epsilon) * norm.pdf(x, 0.2, 1.0))

    integral, _ = quad(excess, -30, 30, points=np.linspace(-12, 12, 25), limit=500)
    assert normal_pair_delta(first, (0.2, 1.0), epsilon) == pytest.approx(integral, abs=1e-7)


@pytest.mark.parametrize("mu", [0.25, 1.0, 3.0])
def test_with_equal_deviations_it_is_the_gaussian_mechanism(mu):
    found = normal_pair_epsilon((5.0 + mu * 0.3, 0.3), (5.0, 0.3), 1e-5)
    assert found == pytest.approx(get_epsilon_gaussian(1 / mu, 1e-5), abs=1e-7)


def test_both_directions_are_within_delta_at_epsilon_and_one_is_not_just_below():
    first, second = (0.4, 1.5), (0.0, 1.0)
    epsilon = normal_pair_epsilon(first, second, 1e-3)
    pairs = ((first, second), (second, first))
    assert max(normal_pair_delta(*pair, epsilon) for pair in pairs) <= 1e-3
    assert max(normal_pair_delta(*pair, epsilon - 1e-6) for pair in pairs) > 1e-3


def test_equal_laws_are_zero_apart_and_order_does_not_matter():
    assert normal_pair_epsilon((1.0, 2.0), (1.0, 2.0), 1e-9) == 0
    assert normal_pair_epsilon((1.0, 2.0), (0.0, 1.0), 1e-5) == normal_pair_epsilon((0.0, 1.0), (1.0, 2.0), 1e-5)


def test_cosines_are_those_of_the_definition():
    update, directions = np.array([3.0, 4.0]), np.array([[1.0, 0.0], [-3.0, -4.0], [8.0, -6.0]])
    np.testing.assert_allclose(cosines(update, directions), [0.6, -1.0, 0.0], atol=1e-15)


def test_one_noisy_sum_of_canary_clients_is_estimated_near_its_epsilon():
    """200 unit directions in 10 000 dimensions, noise σ per coordinate: μ = 1/σ. An estimate, here 15 % near."""
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(200, 10_000))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    update = directions.sum(axis=0) + generator.normal(size=10_000)
    found = epsilon_one_shot(cosines(update, directions), dimension=10_000, delta=1e-5)
    assert isinstance(found, Estimate)
    assert not isinstance(found, LowerBound)
    assert found.epsilon == pytest.approx(get_epsilon_gaussian(1.0, 1e-5), rel=0.15)


def test_the_law_of_canaries_that_took_no_part_can_be_fitted_instead():
    generator = np.random.default_rng(2)
    ins, outs = generator.normal(3, 1, 5000), generator.normal(2, 1, 5000)
    found = epsilon_one_shot(ins, scores_out=outs, delta=1e-5)
    expected = normal_pair_epsilon((ins.mean(), ins.std(ddof=1)), (outs.mean(), outs.std(ddof=1)), 1e-5)
    assert found.epsilon == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 0.0},
        {"scores_out": [1.0, 2.0]},
        {"dimension": None},
        {"dimension": 0},
        {"scores_in": [1.0]},
        {"scores_in": [1.0, 1.0]},
        {"scores_in": [1.0, math.inf]},
    ],
)
def test_impossible_estimates_are_refused(changes):
    with pytest.raises(ConfigError):
        epsilon_one_shot(**{"scores_in": [0.1, 0.2], "dimension": 100, "delta": 1e-5} | changes)


@pytest.mark.parametrize(
    ("update", "directions"), [([0.0, 0.0], [[1.0, 0.0]]), ([1.0, 0.0], [[1.0]]), ([1.0], [1.0]), ([math.nan], [[1.0]])]
)
def test_vectors_without_a_cosine_are_refused(update, directions):
    with pytest.raises(ConfigError):
        cosines(update, directions)
