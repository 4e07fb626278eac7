"""One-run audits by trade-off curves against other implementations, a linear programme, and exact laws."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.one_run import epsilon_one_run
from audits.bounds.one_run_f_dp import approximate_dp_missed, epsilon_one_run_f_dp, f_dp_refuted
from privfl.errors import ConfigError

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "audits.json").read_text())


@pytest.mark.parametrize("row", ORACLES["one_run"]["eps_rows"])
def test_with_a_gaussian_curve_the_bound_is_jax_privacys(row):
    delta = row["delta"] or 1e-12  # as they took it
    found = epsilon_one_run_f_dp(
        row["m"], row["r"], row["v"], delta=delta, confidence=1 - row["p"], family=GaussianFamily()
    )
    assert found.epsilon == pytest.approx(row["jax_privacy_fdp"], abs=1e-6)


@pytest.mark.parametrize("row", ORACLES["one_run_fdp_privacyguard"]["rows"])
def test_privacyguard_is_within_two_hundredths(row):
    """It searches noise on a coarser grid; where jax_privacy has the same row, that agrees with this to 1e-6."""
    found = epsilon_one_run_f_dp(
        row["m"], row["r"], row["v"], delta=row["delta"], confidence=1 - row["p"], family=GaussianFamily()
    )
    assert found.epsilon == pytest.approx(row["privacyguard_fdp"], abs=0.02)


def most_probable(canaries, guesses, correct, epsilon, delta):
    """The largest P[T ≥ correct] that the inequalities of the two lines of (ε, δ)-DP allow, by linear programming."""
    number = np.arange(guesses + 1)
    rows, limits = [], []
    for start in range(guesses):
        right = np.where(number > start, number, 0) / canaries
        wrong = np.where(number >= start, guesses - number, 0) / canaries
        rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
        limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    solved = linprog(
        -(number >= correct).astype(float), A_ub=rows, b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1.0]
    )
    assert solved.success
    return -solved.fun


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(12, 12, 10), (40, 15, 14), (9, 9, 9), (20, 10, 6)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (1.0, 0.01), (2.0, 0.1)])
def test_the_recursion_finds_the_optimum_of_the_linear_programme(canaries, guesses, correct, epsilon, delta):
    largest = most_probable(canaries, guesses, correct, epsilon, delta)
    missed = approximate_dp_missed(epsilon, delta)
    if largest < 0.99:
        assert f_dp_refuted(canaries, guesses, correct, missed, largest * 1.0001)
    assert not f_dp_refuted(canaries, guesses, correct, missed, largest * 0.9999)


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("canaries", [1, 10, 60])
def test_independent_gaussian_noise_on_each_coin_is_refuted_no_more_often_than_stated(canaries, strength):
    """Exactly: all m coins are guessed, each is right with probability Φ(μ/2), and the curve is μ's."""
    confidence, right = 0.8, np.arange(canaries + 1)
    epsilon = GaussianFamily().epsilon(1 / strength, 1e-5) if strength else 0.0
    bounds = np.array(
        [
            epsilon_one_run_f_dp(
                canaries, canaries, v, delta=1e-5, confidence=confidence, family=GaussianFamily()
            ).epsilon
            for v in right
        ]
    )
    assert binom.pmf(right, canaries, norm.cdf(strength / 2))[bounds > epsilon].sum() <= 1 - confidence


def test_randomised_response_is_refuted_no_more_often_than_stated_and_nothing_is_assumed():
    """Exactly: ε = 1 and δ = 0.02 about each of 50 coins, 20 guesses, those shown guessed first."""
    canaries, guesses, epsilon, delta = 50, 20, 1.0, 0.02
    found = [epsilon_one_run_f_dp(canaries, guesses, v, delta=delta, confidence=0.8) for v in range(guesses + 1)]
    false = np.array([v for v, bound in enumerate(found) if bound.epsilon > epsilon])
    chance = sum(
        binom.pmf(shown, canaries, delta)
        * binom.pmf(false - min(shown, guesses), guesses - min(shown, guesses), 1 / (1 + math.exp(-epsilon))).sum()
        for shown in range(canaries + 1)
    )
    assert 0 < chance <= 0.2
    assert found[0].assumes == ""


def test_without_a_family_much_delta_costs_less_than_in_the_counting_bound_and_no_delta_costs_more():
    large = {"canaries": 100_000, "guesses": 1510, "correct": 1439, "delta": 1e-5, "confidence": 0.95}
    small = {"canaries": 1000, "guesses": 1000, "correct": 600, "delta": 0.0, "confidence": 0.95}
    assert epsilon_one_run_f_dp(**large).epsilon > epsilon_one_run(**large).epsilon + 0.1
    assert epsilon_one_run_f_dp(**small).epsilon < epsilon_one_run(**small).epsilon


def test_sampling_leaves_more_to_noise_but_less_to_epsilon():
    """The same guesses about sampled steps need less noise than about steps that all take part in."""
    sampled, whole = GaussianFamily(0.2, 10, 10), GaussianFamily(1.0, 10, 10)
    arguments = {"canaries": 1000, "guesses": 200, "correct": 180, "delta": 1e-5, "confidence": 0.95}
    first, second = (epsilon_one_run_f_dp(**arguments, family=family) for family in (sampled, whole))
    assert first.details["noise_multiplier"] < second.details["noise_multiplier"]
    assert "rate 0.2" in first.assumes
    assert first.epsilon > 0


def test_chance_certifies_nothing_and_perfection_something_finite():
    for family in (None, GaussianFamily()):
        chance = epsilon_one_run_f_dp(100, 100, 50, delta=1e-5, confidence=0.95, family=family)
        assert chance.epsilon == 0
        perfect = epsilon_one_run_f_dp(100, 100, 100, delta=1e-5, confidence=0.95, family=family)
        assert 3 < perfect.epsilon < 10


@pytest.mark.parametrize(
    "changes", [{"correct": 6}, {"guesses": 11}, {"delta": 0.0, "family": GaussianFamily()}, {"confidence": 1.0}]
)
def test_impossible_audits_are_refused(changes):
    arguments = {"canaries": 10, "guesses": 5, "correct": 5, "delta": 0.1, "confidence": 0.9}
    with pytest.raises(ConfigError):
        epsilon_one_run_f_dp(**arguments | changes)
