"""Membership metrics against brute force, scipy and sklearn, and the ceilings of differential privacy."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score

from attacks.membership.result import membership_result
from attacks.metrics.distinguishing import (
    advantage,
    advantage_ceiling,
    as_mask,
    auc,
    auc_ceiling,
    balanced_accuracy,
    membership_measures,
    roc,
    tpr_at_fpr,
    tpr_ceiling,
)
from attacks.metrics.measure import clopper_pearson, mean_of
from privfl.errors import ConfigError


def draws(seed: int, shift: float, tied: bool = False) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    ins, outs = generator.normal(shift, 1, 137), generator.normal(0, 1, 211)
    return (np.round(ins, 1), np.round(outs, 1)) if tied else (ins, outs)


@pytest.mark.parametrize("tied", [False, True])
def test_the_auc_is_the_share_of_pairs_in_the_right_order_and_sklearns(tied):
    ins, outs = draws(1, 0.7, tied)
    pairs = (ins[:, None] > outs).mean() + 0.5 * (ins[:, None] == outs).mean()
    truth = np.r_[np.ones(len(ins)), np.zeros(len(outs))]
    assert auc(ins, outs).value == pytest.approx(pairs, abs=1e-12)
    assert auc(ins, outs).value == pytest.approx(roc_auc_score(truth, np.r_[ins, outs]), abs=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_rates_come_from_the_smallest_threshold_that_keeps_the_false_positive_rate(tied):
    ins, outs = draws(2, 1.0, tied)
    for target in (0.0, 0.001, 0.01, 0.1, 0.5, 1.0):
        allowed = [t for t in [*ins, *outs, math.inf] if (outs >= t).mean() <= target + 1e-12]
        assert tpr_at_fpr(ins, outs, target).value == (ins >= min(allowed)).mean()


def test_the_advantage_is_the_largest_difference_of_the_rates_over_all_thresholds():
    ins, outs = draws(3, 0.5, tied=True)
    best = max((ins >= t).mean() - (outs >= t).mean() for t in [*ins, *outs])
    assert advantage(ins, outs).value == pytest.approx(best, abs=1e-12)
    assert balanced_accuracy(ins, outs).value == pytest.approx(0.5 + best / 2, abs=1e-12)


def test_the_roc_runs_from_nothing_to_everything_and_encloses_the_auc():
    ins, outs = draws(4, 0.5)
    fpr, tpr = roc(ins, outs)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    assert np.trapezoid(tpr, fpr) == pytest.approx(auc(ins, outs).value, abs=1e-12)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (1, 20), (7, 20), (20, 20), (500, 1000)])
def test_the_interval_of_a_rate_is_scipys_exact_one(hits, trials):
    exact = binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_the_intervals_hold_the_true_values_of_two_normal_distributions():
    """Each of 3 × 200 intervals is conservative at 95 %; 22 or more misses of 200 have probability < 1e-3 at 5 %, and
    the seed is fixed."""
    shift = 0.8
    true = {"auc": norm.cdf(shift / math.sqrt(2)), "advantage": 2 * norm.cdf(shift / 2) - 1}
    misses = {"auc": 0, "advantage": 0, "tpr": 0}
    generator = np.random.default_rng(5)
    for _ in range(200):
        ins, outs = generator.normal(shift, 1, 60), generator.normal(0, 1, 80)
        for name, measure in (("auc", auc(ins, outs)), ("advantage", advantage(ins, outs))):
            misses[name] += not measure.low <= true[name] <= measure.high
        cut = np.sort(outs)[::-1][8]
        found = tpr_at_fpr(ins, outs, 0.1)
        misses["tpr"] += not found.low <= norm.sf(cut - shift) <= found.high
    assert max(misses.values()) < 22, misses


def test_a_perfect_separation_still_has_an_interval():
    found = auc([2.0] * 10, [1.0] * 10)
    assert found.value == 1
    assert 0.6 < found.low < 0.8


def test_rates_that_the_non_members_cannot_resolve_are_left_out():
    names = membership_measures(np.arange(50), np.arange(50))
    assert "tpr_at_fpr_0.1" in names
    assert "tpr_at_fpr_0.01" not in names


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (1.0, 1e-2), (3.0, 1e-5), (8.0, 0.1)])
def test_the_ceilings_agree_with_each_other_on_a_fine_grid(epsilon, delta):
    grid = np.linspace(0, 1, 200_001)
    curve = np.array([tpr_ceiling(float(f), epsilon, delta) for f in grid[::20]])
    assert advantage_ceiling(epsilon, delta) == pytest.approx((curve - grid[::20]).max(), abs=1e-3)
    assert auc_ceiling(epsilon, delta) == pytest.approx(np.trapezoid(curve, grid[::20]), abs=1e-3)
    assert (curve <= np.exp(epsilon) * grid[::20] + delta + 1e-12).all()
    assert (1 - grid[::20] <= np.exp(epsilon) * (1 - curve) + delta + 1e-9).all()


def test_randomised_response_reaches_its_ceiling():
    epsilon = 1.3
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert advantage_ceiling(epsilon) == pytest.approx(2 * truthful - 1, abs=1e-12)
    assert tpr_ceiling(1 - truthful, epsilon) == pytest.approx(truthful, abs=1e-12)
    assert auc_ceiling(epsilon) == pytest.approx(truthful, abs=1e-12)
    assert advantage_ceiling(math.inf) == auc_ceiling(math.inf) == tpr_ceiling(0.1, math.inf) == 1


def test_a_mean_has_students_interval_and_one_value_has_none():
    found = mean_of([1.0, 2.0, 4.0])
    assert found.value == pytest.approx(7 / 3)
    assert found.high - found.value == pytest.approx(4.302653 * np.std([1, 2, 4], ddof=1) / math.sqrt(3), rel=1e-6)
    assert math.isnan(mean_of([1.0]).low)
    share = mean_of([1.0, 1.0, 0.6], least=0, most=1)
    assert (share.high, share.low) == (1, mean_of([1.0, 1.0, 0.6]).low)
    assert mean_of([0.0, 0.4], least=0, most=1).low == 0


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: auc([], [1.0]), "0 members"),
        (lambda: auc([math.nan], [1.0]), "NaN"),
        (lambda: tpr_at_fpr([1.0], [1.0], 1.5), "1.5"),
        (lambda: advantage_ceiling(-1), "-1"),
        (lambda: tpr_ceiling(2.0, 1), "2.0"),
        (lambda: clopper_pearson(3, 2), "3 successes"),
        (lambda: clopper_pearson(1, 2, 1.0), "1.0"),
        (lambda: mean_of([]), "no values"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_its_value(call, what):
    with pytest.raises(ConfigError, match=what):
        call()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([-1, 1], "-1"),
        ([0.0, math.nan], "nan"),
        (["yes", "no"], "'yes'"),
        ([None, True], "None"),
        ([[1], [1, 0]], r"\[\[1\], \[1, 0\]\]"),
    ],
)
def test_who_is_a_member_is_yes_or_no(values, told):
    with pytest.raises(ConfigError, match=rf"members (holds|is) {told}; give True or False for each candidate"):
        as_mask("members", values, "candidate")
    with pytest.raises(ConfigError, match="give True or False for each candidate"):
        membership_result("mine", [1.0, 2.0], values, seconds=0.0)


def test_a_mask_is_bool_whether_it_was_given_as_numbers_or_not():
    for values in ([True, False], [1, 0], [1.0, 0.0], np.array([True, False], dtype=object)):
        assert as_mask("members", values, "candidate").tolist() == [True, False]
        assert as_mask("members", values, "candidate").dtype == bool
    assert as_mask("members", [], "candidate").shape == (0,)
