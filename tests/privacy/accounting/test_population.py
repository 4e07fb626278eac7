"""Rounding and joining only ever make claims larger; the worst client is found exactly."""

import dp_accounting as dp
import numpy as np
import pytest
from scipy import sparse

from privfl.privacy.accounting import population
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.grouping import distinct_rows, dominating_history, fewer_rates
from privfl.privacy.accounting.population import account, exceeds, rounded_up
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, sampled

RR = (dp.RandomizedResponseDpEvent(0.5, 10), REPLACE)
DELTA = 1e-5


def claim(history):
    return epsilon(history, DELTA, interval=False).epsilon


def history(kinds, row):
    return {kind: int(count) for kind, count in zip(kinds, row, strict=True) if count}


def test_fewer_rates_dominate_the_history_and_cost_little():
    rates = np.exp(np.random.default_rng(0).uniform(np.log(0.01), np.log(0.05), 60))
    kinds = {sampled(float(rate), 1.0): 3 for rate in rates} | {RR: 2, sampled(0.1, 2.0): 1}
    fewer = fewer_rates(kinds, 12)
    assert sum(fewer.values()) == sum(kinds.values())
    assert len(fewer) <= 14
    assert fewer[RR] == 2
    assert fewer[sampled(0.1, 2.0)] == 1
    assert claim(kinds) <= claim(fewer) <= 1.04 * claim(kinds)
    exact, rounded = (
        sorted(k[0].sampling_probability for k, n in h.items() if k != RR for _ in range(n)) for h in (kinds, fewer)
    )
    assert all(up >= rate for rate, up in zip(exact, rounded, strict=True))


def test_few_rates_stay_as_they_are():
    kinds = {sampled(0.1, 1.0): 3, sampled(0.2, 1.0): 1, RR: 1}
    assert fewer_rates(kinds, 2) == kinds


def test_a_join_dominates_every_history_and_no_more_than_needed():
    kinds = [sampled(0.1, 1.0), RR, sampled(0.3, 1.0), sampled(0.2, 2.0), sampled(0.2, 1.0)]
    rows = np.array([[9, 1, 0, 2, 0], [0, 3, 1, 0, 4], [2, 0, 2, 0, 0]])
    joined = dominating_history(sparse.csr_array(rows), kinds)
    # at noise 1: two at rate 0.3, at least 5 from 0.2 on, at least 9 from 0.1 on
    assert joined == {
        sampled(0.3, 1.0): 2,
        sampled(0.2, 1.0): 3,
        sampled(0.1, 1.0): 4,
        sampled(0.2, 2.0): 2,
        RR: 3,
    }
    assert all(claim(joined) >= claim(history(kinds, row)) for row in rows)


def test_a_join_holds_at_every_rate_what_the_busiest_row_made_from_there_upwards():
    rng = np.random.default_rng(5)
    kinds = [sampled(rate, noise) for noise in (1.0, 2.0) for rate in (0.01, 0.05, 0.1)] + [RR]
    for _ in range(50):
        rows = rng.integers(0, 4, (rng.integers(1, 20), len(kinds))) * (rng.random((1, len(kinds))) < 0.7)
        joined = dominating_history(sparse.csr_array(rows), kinds)
        for start, stop in ((0, 3), (3, 6), (6, 7)):
            for column in range(start, stop):
                above = sum(joined.get(kind, 0) for kind in kinds[column:stop])
                assert above == rows[:, column:stop].sum(axis=1).max()


def test_equal_rows_are_found_and_unequal_ones_kept_apart():
    rows = sparse.csr_array(np.array([[1, 2], [2, 1], [1, 2], [0, 0], [2, 1]]))
    first, inverse = distinct_rows(rows)
    assert (rows[first][inverse].toarray() == rows.toarray()).all()
    assert len(first) == 3


def test_rates_round_up_by_at_most_one_per_cent():
    for rate in (1e-6, 0.01, 0.5, 0.9999):
        up = rounded_up(sampled(rate, 1.0))[0].sampling_probability
        assert rate <= up <= 1.0101 * rate
    assert rounded_up(RR) == RR
    assert rounded_up(sampled(0.1, 1.0)) == rounded_up(sampled(0.1001, 1.0))


def test_counts_round_up_by_at_most_one_per_cent():
    counts = np.arange(0, 20_000)
    up = population._round_counts(counts)
    assert (up >= counts).all()
    assert (up <= 1.01 * counts).all()
    assert len(np.unique(up)) < 1000


def heterogeneous(clients, seed=0):
    generator = np.random.default_rng(seed)
    rates = np.exp(generator.uniform(np.log(0.01), np.log(0.3), clients))
    counts = generator.integers(1, 400, clients)
    kinds = [*(sampled(float(rate), 1.0) for rate in rates), RR]
    return kinds, sparse.csr_array(np.column_stack([np.diag(counts), np.ones(clients, dtype=np.int64)]))


@pytest.mark.parametrize("most", [512, 10], ids=["one by one", "rounded and joined"])
def test_every_client_gets_an_upper_bound_and_the_worst_its_exact_claim(most, monkeypatch):
    monkeypatch.setattr(population, "_MOST_HISTORIES", most)
    kinds, rows = heterogeneous(40)
    exact = np.array([claim(history(kinds, row)) for row in rows.toarray()])
    found = account(kinds, rows, DELTA)
    assert found.worst == exact.argmax()
    assert found.bound.epsilon == exact.max()
    assert (found.epsilons >= exact * (1 - 3e-4)).all()  # both are upper bounds, of unlike tightness
    if most == 512:
        np.testing.assert_allclose(found.epsilons, exact, rtol=5e-3)
        assert not found.note
    else:
        assert "rounded up" in found.note


def test_a_budget_is_compared_with_the_claim_itself():
    kinds, rows = heterogeneous(40)
    worst = account(kinds, rows, DELTA).bound.epsilon
    assert exceeds(kinds, rows, DELTA, worst * (1 - 1e-9))
    assert not exceeds(kinds, rows, DELTA, worst)
    assert not exceeds(kinds, rows, DELTA, 10 * worst)


def test_clients_that_mix_many_rates_share_a_grid_upwards(monkeypatch):
    monkeypatch.setattr(population, "_SHARED_RATES", 16)
    generator = np.random.default_rng(1)
    kinds = [sampled(float(rate), 1.0) for rate in generator.uniform(0.01, 0.03, 40)]
    rows = sparse.csr_array((generator.random((12, 40)) < 0.5).astype(np.int64) * 5)
    found = account(kinds, rows, DELTA)
    exact = np.array([claim(history(kinds, row)) for row in rows.toarray()])
    assert "shared grid" in found.note
    assert (found.epsilons >= exact * (1 - 3e-4)).all()
    assert (found.epsilons <= exact * 1.04).all()


def test_a_crowd_near_the_worst_is_bounded_together(monkeypatch):
    monkeypatch.setattr(population, "_MOST_SPLITS", 2)
    kinds, rows = heterogeneous(40)
    exact = max(claim(history(kinds, row)) for row in rows.toarray())
    found = account(kinds, rows, DELTA)
    assert "bounded together" in found.note
    assert found.bound.epsilon >= exact
    assert found.epsilons.max() == found.bound.epsilon


def test_histories_of_plain_noise_of_all_strengths_are_merged_per_client():
    kinds = [(dp.GaussianDpEvent(float(noise)), ADD_REMOVE) for noise in np.linspace(1, 3, 20)]
    rows = sparse.csr_array(np.eye(20, dtype=np.int64) + 1)
    found = account(kinds, rows, DELTA)
    assert found.worst == 0
    np.testing.assert_allclose(found.epsilons, [claim(history(kinds, row)) for row in rows.toarray()], rtol=1e-9)
