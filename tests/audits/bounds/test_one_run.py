"""One-run bounds against published values and two implementations, and their false alarms, summed or simulated."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.one_run import epsilon_one_run, epsilon_one_run_from_scores, guess_pairs, one_run_p_value
from privfl.errors import ConfigError

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "audits.json").read_text())


@pytest.mark.parametrize("row", ORACLES["one_run"]["eps_rows"])
def test_the_bound_is_that_of_two_other_implementations(row):
    found = epsilon_one_run(row["m"], row["r"], row["v"], delta=row["delta"], confidence=1 - row["p"]).epsilon
    assert found == pytest.approx(row["jax_privacy"], abs=1e-6)
    assert found == pytest.approx(row["ml_privacy_meter"], abs=1e-5)


@pytest.mark.parametrize("row", ORACLES["one_run"]["p_value_rows"])
def test_the_p_value_is_that_of_two_other_implementations(row):
    found = one_run_p_value(row["m"], row["r"], row["v"], epsilon=row["eps"], delta=row["delta"])
    assert found == pytest.approx(row["p_jax"], abs=1e-9)
    assert found == pytest.approx(row["p_mpm"], abs=1e-9)


@pytest.mark.parametrize("row", [row for row in ORACLES["one_run_published_pins"]["rows"] if "eps" in row])
def test_the_values_published_with_the_method(row):
    found = epsilon_one_run(row["m"], row["r"], row["v"], delta=row["delta"], confidence=1 - row["p"]).epsilon
    assert found == pytest.approx(row["eps"], abs=1e-3)


@pytest.mark.parametrize(
    ("numbers", "delta", "epsilon"),
    [
        ((1000, 100, 75), 1e-4, 0.673),
        ((10**5, 1510, 1439), 1e-5, 2.6759),
        ((1000, 1000, 600), 0.0, 0.2975),
        ((1000, 1000, 1000), 0.0, 5.809),
        ((100, 100, 100), 1e-5, 3.490),
        ((1000, 1000, 500), 0.0, 0.0),
    ],
)
def test_the_specified_values(numbers, delta, epsilon):
    assert epsilon_one_run(*numbers, delta=delta, confidence=0.95).epsilon == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.parametrize(("numbers", "epsilon", "delta"), [((60, 60, 60), 0.5, 1e-17), ((400, 90, 89), 0.7, 1e-18)])
def test_far_tails_keep_their_digits(numbers, epsilon, delta):
    """Against sums of fractions: float64's complement of a probability near 1 would keep nothing of 1e-15."""
    canaries, guesses, correct = numbers
    miss = Fraction(float(expit(-epsilon)))
    law = [math.comb(guesses, k) * (1 - miss) ** k * miss ** (guesses - k) for k in range(guesses + 1)]
    slope = max(sum(law[correct - i : correct]) / i for i in range(1, correct + 1))
    exact = sum(law[correct:]) + 2 * canaries * Fraction(delta) * slope
    assert one_run_p_value(*numbers, epsilon=epsilon, delta=delta) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("numbers", [(50, 50, 45), (3000, 200, 180), (100_000, 1510, 1439)])
def test_the_bound_is_rounded_down(numbers):
    for delta in (0.0, 1e-6):
        found = epsilon_one_run(*numbers, delta=delta, confidence=0.95).epsilon
        assert one_run_p_value(*numbers, epsilon=found, delta=delta) < 0.05
        assert one_run_p_value(*numbers, epsilon=found + 1e-6, delta=delta) > 0.05


@pytest.mark.parametrize("guesses", [1, 9, 60])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.01), (0.2, 0.05)])
def test_randomised_response_about_each_coin_is_refuted_no_more_often_than_stated(guesses, epsilon, delta):
    """Exactly: of 60 coins each is shown with probability δ and otherwise randomised; those shown are guessed first."""
    canaries, confidence = 60, 0.8
    bounds = np.array(
        [epsilon_one_run(canaries, guesses, v, delta=delta, confidence=confidence).epsilon for v in range(guesses + 1)]
    )
    false = np.flatnonzero(bounds > epsilon)
    chance = sum(
        binom.pmf(shown, canaries, delta) * binom.pmf(false - sure, guesses - sure, expit(epsilon)).sum()
        for shown in range(canaries + 1)
        for sure in [min(shown, guesses)]
    )
    assert chance <= 1 - confidence


def test_more_right_guesses_less_delta_fewer_canaries_and_less_confidence_certify_more():
    def found(canaries=1000, correct=170, delta=1e-4, confidence=0.95):
        return epsilon_one_run(canaries, 200, correct, delta=delta, confidence=confidence).epsilon

    values = [found(correct=v) for v in range(0, 201, 10)]
    assert values == sorted(values)
    assert found(canaries=500) > found() < found(delta=0.0)
    assert found(confidence=0.9) > found() > found(confidence=0.999)


def scored(canaries, strength, seed):
    generator = np.random.default_rng(seed)
    included = generator.random(canaries) < 0.5
    return generator.normal(size=canaries) + strength * included, included


def test_scores_are_guessed_from_both_ends_and_counted():
    scores, included = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [True, False, True, True, False, False]
    found = epsilon_one_run_from_scores(scores, included, delta=0.0, confidence=0.6, guesses=(3, 2), method="steinke")
    assert (found.details["guesses"], found.details["correct"]) == (5, 4)
    assert found.epsilon == epsilon_one_run(6, 5, 4, delta=0.0, confidence=0.6).epsilon


def test_several_pairs_share_the_error_and_the_best_is_kept():
    scores, included = scored(500, 2.0, 0)
    pairs = [(250, 250), (100, 100), (30, 30)]
    each = [
        epsilon_one_run_from_scores(
            scores, included, delta=1e-5, confidence=1 - 0.05 / 3, guesses=pair, method="steinke"
        ).epsilon
        for pair in pairs
    ]
    found = epsilon_one_run_from_scores(scores, included, delta=1e-5, confidence=0.95, guesses=pairs, method="steinke")
    assert found.epsilon == pytest.approx(max(each), abs=1e-9)
    assert found.confidence == 0.95
    assert found.details["pairs"] == 3


def test_the_pairs_tried_by_default_depend_on_the_number_of_canaries_alone():
    assert guess_pairs(100) == ((50, 50), (25, 25), (12, 12))
    assert guess_pairs(5) == ((3, 2),)
    assert all(above + below <= m for m in range(1, 200) for above, below in guess_pairs(m))


@pytest.mark.parametrize("method", ["best", "steinke", "f-dp"])
@pytest.mark.parametrize("world", ["null", "gaussian noise", "equal scores"])
def test_a_run_that_keeps_its_claim_is_refuted_no_more_often_than_stated(method, world):
    """False-alarm rate of this test at most 1e-6 each, if at most 30 % of the audits are wrong as they say.

    The noise is that of σ = 1, the claim ε = 4.377 at δ = 1e-5; in a null world the claim is ε = δ = 0.
    """
    wrong = 0
    for seed in range(100):
        if world == "gaussian noise":
            scores, included = scored(64, 1.0, seed)
            found = epsilon_one_run_from_scores(
                scores,
                included,
                delta=1e-5,
                confidence=0.7,
                method=method,
                seed=seed,
                family=None if method == "steinke" else GaussianFamily(),
            )
            wrong += found.epsilon > 4.3772
        else:
            scores, included = scored(64, 0.0, seed)
            if world == "equal scores":  # listed members first, as callers do: ties must not tell
                scores, included = np.zeros(64), np.sort(included)[::-1]
            found = epsilon_one_run_from_scores(scores, included, delta=0.0, confidence=0.7, method=method, seed=seed)
            wrong += found.epsilon > 0
    assert wrong <= binom.isf(1e-6, 100, 0.3)


def test_the_larger_of_two_bounds_on_one_count_is_wrong_no_more_often_than_the_worse_of_them():
    """Exactly, for randomised response with ε = 1 and δ = 0.01 about each of 40 coins, those shown guessed first."""
    epsilon, delta, canaries, guesses = 1.0, 0.01, 40, 20
    scores = np.arange(canaries, dtype=float)
    false = []
    for correct in range(guesses + 1):
        included = np.arange(canaries) >= canaries - correct
        found = epsilon_one_run_from_scores(
            scores, included, delta=delta, confidence=0.8, guesses=(guesses, 0), method="best"
        )
        assert found.details["correct"] == correct
        if found.epsilon > epsilon:
            false.append(correct)
    chance = sum(
        binom.pmf(shown, canaries, delta) * binom.pmf(np.array(false) - sure, guesses - sure, expit(epsilon)).sum()
        for shown in range(canaries + 1)
        for sure in [min(shown, guesses)]
    )
    assert 0 < chance <= 0.2


def test_the_stronger_the_canary_the_more_is_certified():
    found = []
    for strength in (0.0, 0.5, 1.0, 2.0, 4.0):
        scores, included = scored(2000, strength, 3)
        found.append(epsilon_one_run_from_scores(scores, included, delta=1e-5, confidence=0.95).epsilon)
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] > 4


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5.5, 5), (10, 5, 6), (10, 5, -1), (0, 0, 0)])
def test_impossible_guesses_are_refused(numbers):
    with pytest.raises(ConfigError):
        epsilon_one_run(*numbers, delta=0.0, confidence=0.95)
    with pytest.raises(ConfigError):
        one_run_p_value(*numbers, epsilon=1.0, delta=0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": [1.0, 2.0]},
        {"scores": [1.0, 2.0, math.nan]},
        {"scores": [], "included": []},
        {"guesses": (2, 2)},
        {"guesses": (0, 0)},
        {"guesses": (0.5, 0.5)},
        {"guesses": [(1, 1, 1)]},
        {"method": "largest"},
        {"method": "steinke", "family": GaussianFamily()},
        {"family": GaussianFamily(), "delta": 0.0},
        {"confidence": 0.0},
    ],
)
def test_impossible_audits_are_refused(changes):
    arguments = {"scores": [1.0, 2.0, 3.0], "included": [True, False, True], "delta": 0.1, "confidence": 0.9}
    with pytest.raises(ConfigError):
        epsilon_one_run_from_scores(**arguments | changes)


def test_scores_that_are_all_equal_certify_nothing_in_whatever_order_members_are_listed():
    """Which of them are guessed about is drawn: half of the guesses are right, as if they were tossed."""
    included = np.repeat([False, True], 100)
    for listed in (included, ~included):
        found = epsilon_one_run_from_scores(np.zeros(200), listed, delta=0.0, confidence=1 - 1e-6)
        assert found.epsilon == 0


@pytest.mark.parametrize(
    ("coins", "told"), [((-1, 1), "-1"), ((2, 1), "2"), ((0.5, 1.0), "0.5"), (("out", "in"), "'(out|in)'")], ids=str
)
def test_coins_are_true_or_false_or_one_or_zero(coins, told):
    """Any other kind would count as included on both sides: guesses "in" would all be right, on scores of noise."""
    generator = np.random.default_rng(0)
    scores, heads = generator.normal(size=100), generator.random(100) < 0.5
    of = {"delta": 0.0, "confidence": 0.95, "guesses": (50, 0)}
    with pytest.raises(ConfigError, match=f"included holds {told}; give True or False for each canary"):
        epsilon_one_run_from_scores(scores, np.where(heads, coins[1], coins[0]), **of)
    found = [epsilon_one_run_from_scores(scores, heads.astype(kind), **of) for kind in (bool, int, float)]
    assert found == [found[0]] * 3
