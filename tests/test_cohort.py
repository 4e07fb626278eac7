"""Cohort rules. 5 s.e. two-sided is 6e-7; corrected where several clients are compared."""

import math

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.noise import NoiseSource

AVAILABLE = np.array([2, 3, 5, 8, 13, 21])
SIZES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 5.0])
ROUNDS = 4000


def counts(cohort, key=1):
    source, found = NoiseSource.from_key(key), np.zeros((ROUNDS, len(AVAILABLE)))
    for round in range(ROUNDS):
        selection = cohort.draw(AVAILABLE, round, 0, source, SIZES)
        assert np.all(np.diff(selection.clients) > 0)
        found[round, np.searchsorted(AVAILABLE, selection.clients)] = selection.times
    return found


def test_everyone_is_everyone():
    assert counts(pf.Everyone()).min() == 1


def test_a_fixed_cohort_has_its_size_and_is_uniform():
    found = counts(pf.FixedCohort(2))
    assert set(found.sum(1)) == {2}
    assert np.abs(found.mean(0) - 1 / 3).max() < 5.5 * math.sqrt(2 / 9 / ROUNDS)
    assert counts(pf.FixedCohort(99)).min() == 1


def test_a_poisson_cohort_draws_clients_independently_with_secret_coins():
    found = counts(pf.PoissonCohort(0.3))
    assert np.abs(found.mean(0) - 0.3).max() < 5.5 * math.sqrt(0.21 / ROUNDS)
    off = np.cov(found.T, bias=True)[~np.eye(6, dtype=bool)]
    assert np.abs(off).max() < 6 * 0.21 / math.sqrt(ROUNDS)
    assert not np.array_equal(found, counts(pf.PoissonCohort(0.3), key=2))


def test_a_size_weighted_cohort_draws_with_replacement_in_proportion_to_size():
    found = counts(pf.SizeWeightedCohort(3))
    assert set(found.sum(1)) == {3}
    assert found.max() >= 2
    law = SIZES / SIZES.sum()
    assert np.abs(found.mean(0) - 3 * law).max() < 5.5 * math.sqrt(3 * 0.2 / ROUNDS)


def test_only_secret_poisson_coins_earn_amplification():
    assert pf.PoissonCohort(0.3).rate == 0.3
    for cohort in (pf.Everyone(), pf.FixedCohort(2), pf.SizeWeightedCohort(2)):
        assert cohort.rate == 1.0


def test_the_expected_size_is_public():
    assert pf.PoissonCohort(0.3).expected(10) == pytest.approx(3)
    assert pf.FixedCohort(4).expected(10) == 4
    assert pf.FixedCohort(40).expected(10) == 10
    assert pf.Everyone().expected(10) == 10


def test_weights_that_are_all_zero_or_negative_fall_back_to_uniform_draws():
    selection = pf.SizeWeightedCohort(4).draw(AVAILABLE, 0, 0, NoiseSource.from_key(1), np.array([-1.0] * 6))
    assert selection.times.sum() == 4


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pf.FixedCohort, 0),
        (pf.PoissonCohort, 0.0),
        (pf.PoissonCohort, 1.5),
        (pf.SizeWeightedCohort, 0),
        (pf.FixedCohort, 2.5),
    ],
)
def test_impossible_cohorts_are_one_sentence(kind, value):
    with pytest.raises(ConfigError, match="the cohort's"):
        kind(value)
