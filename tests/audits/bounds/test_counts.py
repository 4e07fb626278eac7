"""Bounds from counts against other auditors' numbers, and how often they are wrong, summed over all outcomes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from audits.bounds.counts import epsilon_from_counts, perfect_attack_ceiling
from audits.bounds.gaussian_family import GaussianFamily
from privfl.errors import ConfigError

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "audits.json").read_text())


@pytest.mark.parametrize("row", ORACLES["clopper_pearson_epsilon"]["rows"])
def test_one_direction_is_that_of_scipy_and_statsmodels(row):
    found = epsilon_from_counts(
        row["tp"],
        row["n_in"],
        row["fp"],
        row["n_out"],
        delta=row["delta"],
        confidence=1 - row["alpha"],
        sides="tpr_only",
    )
    assert found.epsilon == pytest.approx(max(0.0, row["eps_lo"]), abs=1e-9)
    if row["delta"] == 0:
        assert found.epsilon == pytest.approx(max(0.0, row["eps_tf_audit2020_delta0"]), abs=1e-9)
    assert found.details["tpr_low"] == pytest.approx(row["tpr_lo"], abs=1e-9)
    assert found.details["fpr_high"] == pytest.approx(row["fpr_hi"], abs=1e-9)


@pytest.mark.parametrize("row", ORACLES["microsoft_privacy_estimates"]["rows"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_both_directions_are_microsofts(row, delta):
    members, others = row["TP"] + row["FN"], row["FP"] + row["TN"]
    found = epsilon_from_counts(row["TP"], members, row["FP"], others, delta=delta, confidence=0.95)
    assert found.epsilon == pytest.approx(row[f"beta_d{delta}_a0.05_lo"], abs=1e-9)


@pytest.mark.parametrize("row", ORACLES["clopper_pearson_ceilings"]["rows"])
def test_a_perfect_attack_certifies_no_more_than_the_ceiling(row):
    assert perfect_attack_ceiling(row["n"], delta=0.0, confidence=row["confidence"]) == pytest.approx(
        row["eps"], abs=5e-5
    )


def test_the_other_direction_counts_when_misses_are_rare():
    one = epsilon_from_counts(200, 200, 100, 200, delta=0.0, confidence=0.95, sides="tpr_only")
    both = epsilon_from_counts(200, 200, 100, 200, delta=0.0, confidence=0.95)
    assert both.epsilon > one.epsilon + 2
    mirrored = epsilon_from_counts(100, 200, 0, 200, delta=0.0, confidence=0.95)
    assert both.epsilon == pytest.approx(mirrored.epsilon, abs=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (0.5, 0.1)])
@pytest.mark.parametrize("confidence", [0.95, 0.6])
def test_a_tight_mechanism_is_refuted_no_more_often_than_the_confidence_allows(epsilon, delta, confidence):
    """Exactly: over all outcomes of 25 trials per world of the worst (ε, δ) mechanism, and all three of its events."""
    trials, odds = 25, math.exp(epsilon)
    shown, likely = delta, (1 - delta) * odds / (1 + odds)
    counts = np.arange(trials + 1)
    bounds = {(i, j): 0.0 for i in counts for j in counts}
    for hits, alarms in bounds:
        bounds[hits, alarms] = epsilon_from_counts(
            hits, trials, alarms, trials, delta=delta, confidence=confidence
        ).epsilon
    false = np.array([[bounds[i, j] > epsilon * (1 + 1e-12) for j in counts] for i in counts])
    for tpr, fpr in ((shown + likely, (1 - delta) / (1 + odds)), (shown, 0.0), (likely, (1 - delta) / (1 + odds))):
        law = np.outer(binom.pmf(counts, trials, tpr), binom.pmf(counts, trials, fpr))
        assert law[false].sum() <= 1 - confidence


def test_more_hits_fewer_alarms_less_confidence_and_smaller_delta_certify_more():
    def found(hits=80, alarms=10, delta=1e-3, confidence=0.95):
        return epsilon_from_counts(hits, 100, alarms, 100, delta=delta, confidence=confidence).epsilon

    assert found(hits=85) > found() < found(alarms=5)
    assert found(confidence=0.9) > found() < found(delta=0.0)
    assert epsilon_from_counts(800, 1000, 100, 1000, delta=1e-3, confidence=0.95).epsilon > found()


def test_guessing_certifies_nothing():
    assert epsilon_from_counts(50, 100, 50, 100, delta=0.0, confidence=0.95).epsilon == 0
    assert epsilon_from_counts(0, 1, 0, 1, delta=0.9, confidence=0.95).epsilon == 0


def test_a_family_turns_nine_in_ten_right_into_twelve_instead_of_two():
    """Specification 6.3: error rates of 10 % at 1 000 trials certify 1.99 of any mechanism, 12.2 of Gaussian noise."""
    plain = epsilon_from_counts(900, 1000, 100, 1000, delta=1e-5, confidence=0.95)
    gaussian = epsilon_from_counts(900, 1000, 100, 1000, delta=1e-5, confidence=0.95, family=GaussianFamily())
    assert plain.epsilon == pytest.approx(1.99, abs=0.005)
    assert not plain.assumes
    assert gaussian.epsilon == pytest.approx(12.2, abs=0.05)
    assert "Gaussian noise" in gaussian.assumes


@pytest.mark.parametrize(
    "changes",
    [
        {"true_positives": 11},
        {"false_positives": -1},
        {"members": 0},
        {"delta": 1.0},
        {"confidence": 0.0},
        {"sides": "both of them"},
        {"sides": "tpr_only", "family": GaussianFamily()},
        {"delta": 0.0, "family": GaussianFamily()},
    ],
)
def test_impossible_audits_are_refused(changes):
    arguments = {"true_positives": 5, "members": 10, "false_positives": 5, "non_members": 10, "delta": 0.1}
    with pytest.raises(ConfigError):
        epsilon_from_counts(**arguments | {"confidence": 0.9} | changes)


@pytest.mark.parametrize(
    "wrong", ["480", None, True, 480.5, 10**400, np.array([480, 490])], ids=lambda one: str(one)[:9]
)
@pytest.mark.parametrize("place", range(4))
def test_what_is_no_count_is_one_sentence(wrong, place):
    counts = [480, 500, 12, 500]
    counts[place] = wrong
    named = ("true_positives", "members", "false_positives", "non_members")[place]
    with pytest.raises(ConfigError, match=rf"{named} is .*; give a whole number from {place % 2} to 2\^53"):
        epsilon_from_counts(*counts, delta=1e-5, confidence=0.95)
