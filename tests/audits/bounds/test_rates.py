"""Clopper and Pearson's bounds against scipy's own interval, and their coverage summed over the binomial law."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from audits.bounds.rates import ErrorRates, clopper_pearson_lower, clopper_pearson_upper
from privfl.errors import ConfigError


@pytest.mark.parametrize("trials", [1, 7, 250, 100_000])
def test_the_bounds_are_the_ends_of_scipys_exact_interval(trials):
    for hits in {0, 1, trials // 3, trials - 1, trials}:
        interval = binomtest(hits, trials).proportion_ci(confidence_level=0.95, method="exact")
        assert clopper_pearson_upper(hits, trials, 0.025) == pytest.approx(interval.high, rel=1e-10)
        assert clopper_pearson_lower(hits, trials, 0.025) == pytest.approx(interval.low, rel=1e-10)


@pytest.mark.parametrize("level", [1e-6, 0.025, 0.5])
@pytest.mark.parametrize("trials", [1, 5, 40, 300])
def test_no_probability_is_missed_more_often_than_the_level_says(trials, level):
    hits = np.arange(trials + 1)
    upper, lower = clopper_pearson_upper(hits, trials, level), clopper_pearson_lower(hits, trials, level)
    ends = np.concatenate([upper + 1e-9, lower - 1e-9])  # where coverage is worst: just beyond a bound
    truths = np.unique(np.clip(np.concatenate([np.linspace(0, 1, 201), ends]), 0, 1))[:, None]
    law = binom.pmf(hits, trials, truths)
    assert (law * (truths > upper)).sum(1).max() <= level * (1 + 1e-9)
    assert (law * (truths < lower)).sum(1).max() <= level * (1 + 1e-9)


def test_nothing_seen_bounds_nothing_from_the_other_side():
    assert clopper_pearson_upper(9, 9, 0.01) == 1
    assert clopper_pearson_lower(0, 9, 0.01) == 0


def test_misses_are_the_complement_of_hits_and_keep_their_digits_near_zero():
    rates = ErrorRates.from_counts([3, 500], 10**6, [2, 100], 10**6, (0.025, 0.01))
    np.testing.assert_allclose(rates.tpr_low, 1 - rates.fnr_high, atol=1e-12)
    np.testing.assert_allclose(rates.tnr_low, 1 - rates.fpr_high, atol=1e-12)
    assert rates.tpr_low[0] == pytest.approx(binomtest(3, 10**6).proportion_ci(0.95).low, rel=1e-9)
    assert rates.at(1).to_json()["fpr_high"] == rates.fpr_high[1]


@pytest.mark.parametrize(
    ("hits", "trials", "level"), [(3, 2, 0.1), (-1, 2, 0.1), (0, 0, 0.1), (0.5, 2, 0.1), (1, 2, 0.0), (1, 2, 1.0)]
)
def test_what_cannot_be_counted_is_refused(hits, trials, level):
    for bound in (clopper_pearson_upper, clopper_pearson_lower):
        with pytest.raises(ConfigError):
            bound(hits, trials, level)


def test_counts_and_trials_of_different_shapes_are_refused():
    with pytest.raises(ConfigError, match="do not match"):
        clopper_pearson_upper([1, 2], [3, 4, 5], 0.1)
