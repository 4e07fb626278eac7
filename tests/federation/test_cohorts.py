"""Cohort rules. 5 s.e. two-sided is 6e-7; corrected where several clients are compared."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.cohorts import (
    COHORTS,
    CohortWithout,
    Everyone,
    Selection,
    check_selection,
    earned_rate,
    expected_cohort,
    keeps_its_word,
)
from privfl.privacy.noise.source import NoiseSource

AVAILABLE = np.array([2, 3, 5, 8, 13, 21])
SIZES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 5.0])
ROUNDS = 4000


def counts(cohort, key=1):
    source, found = NoiseSource.from_key(key), np.zeros((ROUNDS, len(AVAILABLE)))
    for round in range(ROUNDS):
        selection = cohort.draw(AVAILABLE, round, 0, source, SIZES)
        assert np.all(np.diff(selection.clients) > 0)
        found[round, np.searchsorted(AVAILABLE, selection.clients)] = selection.multiplicity
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


@pytest.mark.parametrize(("clients", "period"), [(12, 4), (13, 4), (3, 5), (7, 1), (40, 40)])
def test_a_rotation_visits_everybody_once_in_a_cycle_and_never_earlier(clients, period):
    cohort, source, everybody = pf.Rotation(period), NoiseSource.from_key(1), np.arange(clients)
    rounds = 3 * period + 1
    drawn = [cohort.draw(everybody, round, 7, source, np.ones(clients)) for round in range(rounds)]
    sizes = {len(selection.clients) for selection in drawn}
    assert sizes <= {clients // period, -(-clients // period)}
    for client in range(clients):
        visits = np.flatnonzero([client in selection.clients for selection in drawn])
        assert np.all(np.diff(visits) == period)
        assert 3 <= len(visits) <= cohort.max_participations(clients, rounds) == 4
    assert cohort.min_separation(clients) == period
    assert cohort.expected(clients) == pytest.approx(np.mean([len(one.clients) for one in drawn[:period]]))


def test_a_client_that_is_away_in_its_round_waits_for_the_next_cycle():
    cohort, source = pf.Rotation(4), NoiseSource.from_key(1)
    whole = [cohort.draw(np.arange(20), round, 7, source, np.ones(20)).clients for round in range(8)]
    gone = whole[1][0]
    reachable = np.setdiff1d(np.arange(20), [gone, 19])
    for round in range(8):
        selection = cohort.draw(reachable, round, 7, source, np.ones(18))
        assert np.array_equal(selection.clients, np.intersect1d(whole[round], reachable))
    nobody = cohort.draw(np.empty(0, dtype=np.int64), 0, 7, source, np.empty(0))
    assert len(nobody.clients) == 0


def test_the_places_of_a_rotation_are_drawn_from_the_seed():
    def first(seed):
        return cohort.draw(np.arange(60), 0, seed, NoiseSource.from_key(seed), np.ones(60)).clients.tolist()

    cohort = pf.Rotation(6)
    assert first(1) == first(1)
    found = np.array([first(seed) for seed in range(300)])  # each of 6 places has probability 1/6
    share = (np.bincount(found.ravel(), minlength=60) / 300 - 1 / 6) / math.sqrt(5 / 36 / 300)
    assert np.abs(share).max() < 6.2  # 60 clients, two-sided: 4e-8


def test_other_rules_may_choose_a_client_in_every_round():
    for cohort in (pf.Everyone(), pf.FixedCohort(2), pf.PoissonCohort(0.5), pf.SizeWeightedCohort(2)):
        assert cohort.min_separation(10) == 1
        assert cohort.max_participations(10, 7) == 7


def test_only_secret_poisson_coins_earn_amplification():
    assert pf.PoissonCohort(0.3).rate == 0.3
    for cohort in (pf.Everyone(), pf.FixedCohort(2), pf.SizeWeightedCohort(2), pf.Rotation(3)):
        assert cohort.rate == 1.0


def test_the_expected_size_is_public():
    assert pf.PoissonCohort(0.3).expected(10) == pytest.approx(3)
    assert pf.FixedCohort(4).expected(10) == 4
    assert pf.FixedCohort(40).expected(10) == 10
    assert pf.Everyone().expected(10) == 10


def test_weights_that_are_all_zero_or_negative_fall_back_to_uniform_draws():
    selection = pf.SizeWeightedCohort(4).draw(AVAILABLE, 0, 0, NoiseSource.from_key(1), np.array([-1.0] * 6))
    assert selection.multiplicity.sum() == 4


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pf.FixedCohort, 0),
        (pf.PoissonCohort, 0.0),
        (pf.PoissonCohort, 1.5),
        (pf.SizeWeightedCohort, 0),
        (pf.Rotation, 0),
    ],
)
def test_impossible_cohorts_are_one_sentence(kind, value):
    with pytest.raises(ConfigError, match="the cohort's"):
        kind(value)


def test_a_rate_is_earned_by_the_very_rules_that_draw_at_it(monkeypatch):
    poisson = pf.PoissonCohort(0.3)
    assert earned_rate(poisson) == earned_rate(CohortWithout(poisson, frozenset({1}))) == 0.3

    @dataclass(frozen=True)
    class Own(pf.PoissonCohort):
        """The same, as far as anybody can see."""

    changed = pf.PoissonCohort(0.3)
    object.__setattr__(changed, "draw", poisson.draw)
    monkeypatch.setitem(COHORTS, "own", Own)
    for cohort in (Own(0.3), changed, CohortWithout(Own(0.3), frozenset()), CohortWithout(changed, frozenset())):
        assert earned_rate(cohort) == 1.0
        assert not keeps_its_word(cohort)


@pytest.mark.parametrize(
    ("clients", "times"),
    [([0, 0], [1, 1]), ([2, 1], [1, 1]), ([0, 9], [1, 1]), ([0, 1], [1, 0]), ([0, 1], [1])],
    ids=["twice", "descending", "out of reach", "never", "too few"],
)
def test_a_draw_names_reachable_clients_once(clients, times):
    selection = Selection(np.array(clients), np.array(times))
    with pytest.raises(ConfigError, match="give clients that can be reached, each once, ascending"):
        check_selection(selection, np.arange(5), once=False)


def test_a_client_may_count_twice_only_where_no_noise_covers_it_once():
    twice = Selection(np.array([0, 3]), np.array([1, 2]))
    checked = check_selection(twice, np.arange(5), once=False)
    assert (checked.clients.tolist(), checked.multiplicity.tolist()) == ([0, 3], [1, 2])
    with pytest.raises(ConfigError, match="lets client 3 count 2 times, and noise covers one upload"):
        check_selection(twice, np.arange(5), once=True)


class Turning(Selection):
    """Says otherwise who was drawn each time that it is asked."""

    asked = 0

    @property
    def clients(self):
        Turning.asked += 1
        return np.arange(1 if Turning.asked == 1 else 5)

    @clients.setter
    def clients(self, drawn):
        pass


def test_what_is_checked_is_a_copy_that_stays():
    checked = check_selection(Turning(np.arange(5), [1]), np.arange(5), once=True)
    assert type(checked) is Selection
    assert [checked.clients.tolist() for _ in range(2)] == [[0], [0]]
    assert check_selection(Selection([0, 1], [1, 1]), np.arange(5), once=True).clients.tolist() == [0, 1]


@pytest.mark.parametrize("drawn", [None, [0, 1], Selection([0.5], [1]), Selection(["a"], [1])], ids=repr)
def test_what_is_no_selection_of_whole_numbers_is_refused(drawn):
    with pytest.raises(ConfigError, match=r"let draw return Selection\(clients, multiplicity\), of whole numbers"):
        check_selection(drawn, np.arange(5), once=False)


@dataclass(frozen=True)
class Expecting(Everyone):
    """Says that it expects so many."""

    many: float = 0.0

    def expected(self, available):
        return self.many


@pytest.mark.parametrize("many", [0.0, -1.0, math.inf])
def test_a_cohort_that_expects_nobody_is_refused(many):
    with pytest.raises(ConfigError, match="the expected cohort of Expecting is"):
        expected_cohort(Expecting(many), 5)
