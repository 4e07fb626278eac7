"""Bounds from scores: the same as from counts at a threshold, and honest about how the threshold was found."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from audits.bounds.counts import epsilon_from_counts
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.scores import epsilon_from_scores
from privfl.errors import ConfigError

ROWS = json.loads((Path(__file__).parents[2] / "oracles" / "audits.json").read_text())["one_run_score_based"]["rows"]
CHOICES = ("split", "bonferroni", "dkw")


def quantiles(row):
    spread = norm.ppf((np.arange(row["n"]) + 0.5) / row["n"])
    return spread + row["mu"], spread


@pytest.mark.parametrize("row", ROWS)
def test_a_threshold_fixed_in_advance_gives_what_jax_privacy_gives(row):
    found = epsilon_from_scores(*quantiles(row), delta=1e-5, confidence=0.95, threshold=row["mu"] / 2)
    assert found.epsilon == pytest.approx(row["cp_explicit"], abs=1e-9)


@pytest.mark.parametrize("row", ROWS)
def test_paying_for_every_threshold_costs_more_than_paying_for_the_corners_of_the_observed_hull(row):
    """jax_privacy divides the level by the number of hull corners, which depends on the scores; here by all n."""
    for family, theirs in ((None, row["cp_bonf"]), (GaussianFamily(), row["gdp"])):
        found = epsilon_from_scores(*quantiles(row), delta=1e-5, confidence=0.95, choice="bonferroni", family=family)
        assert theirs - 0.45 < found.epsilon < theirs


def test_all_thresholds_at_once_are_bounded_as_the_definitions_say():
    generator = np.random.default_rng(3)
    ins, outs = generator.normal(1, 1, 60), generator.normal(0, 1, 90)
    dkw, bonferroni = 0.0, 0.0
    for threshold in [*ins, *outs]:
        hits, alarms = int((ins >= threshold).sum()), int((outs >= threshold).sum())
        fnr = min(1.0, 1 - hits / 60 + math.sqrt(math.log(40) / 120))
        fpr = min(1.0, alarms / 90 + math.sqrt(math.log(40) / 180))
        for likely, unlikely in ((1 - fnr, fpr), (1 - fpr, fnr)):
            dkw = max(dkw, math.log((likely - 1e-3) / unlikely) if likely > 1e-3 else 0.0)
        fnr = 1.0 if hits == 0 else bisected_upper(60 - hits, 60, 0.025 / 60)
        fpr = 1.0 if alarms == 90 else bisected_upper(alarms, 90, 0.025 / 90)
        for likely, unlikely in ((1 - fnr, fpr), (1 - fpr, fnr)):
            bonferroni = max(bonferroni, math.log((likely - 1e-3) / unlikely) if likely > 1e-3 else 0.0)
    for choice, expected in (("dkw", dkw), ("bonferroni", bonferroni)):
        found = epsilon_from_scores(ins, outs, delta=1e-3, confidence=0.95, choice=choice)
        assert found.epsilon == pytest.approx(expected, abs=1e-7)


@cache
def bisected_upper(hits, trials, level):
    """The p at which ``hits`` or fewer have probability ``level``, bisected on the binomial law itself."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if binom.cdf(hits, trials, middle) > level else (low, middle)
    return high


def test_a_split_reports_the_counts_of_the_trials_that_did_not_choose():
    generator = np.random.default_rng(0)
    ins, outs = generator.normal(2, 1, 301), generator.normal(0, 1, 200)
    found = epsilon_from_scores(ins, outs, delta=0.0, confidence=0.95)
    details = found.details
    assert (details["members"], details["non_members"]) == (151, 100)
    again = epsilon_from_counts(
        details["true_positives"], 151, details["false_positives"], 100, delta=0.0, confidence=0.95
    )
    assert found.epsilon == again.epsilon
    assert found.epsilon > 1


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("world", ["null", "laplace", "few values"])
def test_choosing_a_threshold_does_not_make_a_true_claim_false_more_often_than_stated(choice, world):
    """False-alarm rate of this test at most 1e-6 each, if at most 30 % of the audits are wrong as they say."""
    generator, wrong, epsilon = np.random.default_rng(7), 0, {"null": 0.0, "laplace": 1.0, "few values": 0.0}[world]
    for seed in range(150):
        if world == "few values":
            ins, outs = generator.integers(0, 4, 80), generator.integers(0, 4, 80)
        else:
            ins, outs = generator.laplace(epsilon, 1, 80), generator.laplace(0, 1, 80)
        found = epsilon_from_scores(ins, outs, delta=0.0, confidence=0.7, choice=choice, seed=seed)
        wrong += found.epsilon > epsilon
    assert wrong <= binom.isf(1e-6, 150, 0.3)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_stronger_the_canary_the_more_is_certified(choice):
    """Common random numbers: the same trials, the canary's mean moved away."""
    spread = np.random.default_rng(1).normal(size=(2, 2000))
    found = [
        epsilon_from_scores(spread[0] + mu, spread[1], delta=1e-5, confidence=0.95, choice=choice).epsilon
        for mu in (0.0, 0.5, 1.0, 2.0, 4.0)
    ]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] > 3


def test_in_the_gaussian_family_a_gaussian_mechanism_is_nearly_met_and_not_exceeded():
    """One noisy sum with σ = 1, ε(1e-5) = 4.377; the bound is wrong with probability at most 1e-6."""
    generator = np.random.default_rng(5)
    ins, outs = generator.normal(1, 1, 20_000), generator.normal(0, 1, 20_000)
    for choice in CHOICES:
        found = epsilon_from_scores(ins, outs, delta=1e-5, confidence=1 - 1e-6, choice=choice, family=GaussianFamily())
        assert 3.5 < found.epsilon < 4.377


def test_infinite_scores_are_scores():
    found = epsilon_from_scores([math.inf] * 500, [-math.inf] * 500, delta=0.0, confidence=0.99, threshold=0.0)
    assert found.epsilon == pytest.approx(4.5419, abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores_in": []},
        {"scores_in": [1.0, math.nan]},
        {"scores_out": [1.0]},
        {"choice": "maximum"},
        {"threshold": math.nan},
        {"threshold": 1.0, "choice": "dkw"},
        {"delta": 0.0, "family": GaussianFamily()},
        {"confidence": 1.0},
    ],
)
def test_impossible_audits_are_refused(changes):
    arguments = {"scores_in": [1.0, 2.0], "scores_out": [0.0, 1.0], "delta": 0.1, "confidence": 0.9}
    with pytest.raises(ConfigError):
        epsilon_from_scores(**arguments | changes)


@pytest.mark.parametrize("wrong", [["a", "b"], [[1], [2, 3]], [1j, 2j], [1.0, None], [1.0, math.nan]], ids=str)
def test_scores_that_order_nothing_are_one_sentence(wrong):
    with pytest.raises(ConfigError, match=r"(scores_in is|of scores_in is NaN)"):
        epsilon_from_scores(wrong, [1.0, 2.0], delta=0.0, confidence=0.9)
    with pytest.raises(ConfigError, match="the threshold is '1'"):
        epsilon_from_scores([1.0], [2.0], delta=0.0, confidence=0.9, threshold="1")
