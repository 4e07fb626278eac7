"""The tracker's running bound is sound and close; its verdict on a budget is that of the statement itself."""

from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
import pytest

from privfl.errors import PrivacyError
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Cost, Release, everywhere, unprotected
from privfl.privacy.accounting.tracker import EpsilonTracker
from tests.privacy.accounting.accounting_oracles import REPLACE, poisson

DELTA = 1e-5


@dataclass(frozen=True)
class Budget:
    epsilon: float
    unit: str = "sample"
    observer: str = "public"


def update(rate):
    return everywhere("update", Cost(poisson(rate, 1.0)))


def claim(ledger):
    return make_statement(ledger, DELTA, reproducible_noise=False).cell("sample", "public").epsilon


def test_the_running_bound_is_above_the_claim_and_close_to_it():
    ledger = Ledger(20, ("update", "size"))
    tracker = EpsilonTracker(ledger, DELTA)
    assert tracker.so_far()["sample/public"] == 0.0
    ledger.record(everywhere("size", Cost(dp.RandomizedResponseDpEvent(0.5, 100), REPLACE)), None)
    for round in range(60):
        ledger.record(update(0.05 + 0.001 * (round % 4)), None, 3)
        if round % 12 == 0:
            bound = tracker.so_far()["sample/public"]
            assert claim(ledger) <= bound <= 1.08 * claim(ledger)


def test_clients_with_rates_of_their_own_are_bounded_by_the_highest():
    ledger = Ledger(50, ["update"])
    tracker = EpsilonTracker(ledger, DELTA)
    for client, rate in enumerate(np.linspace(0.01, 0.1, 50)):
        ledger.record(update(float(rate)), [client], 200)
    assert claim(ledger) <= tracker.so_far()["sample/public"] <= 1.05 * claim(ledger)


def test_a_history_that_several_cells_share_is_priced_once(monkeypatch):
    ledger, asked = Ledger(30, ["update"]), []
    tracker = EpsilonTracker(ledger, DELTA)
    monkeypatch.setattr(
        tracker, "_price", lambda history, price=tracker._price: asked.append(history) or price(history)
    )
    for round in range(5):
        ledger.record(update(0.05), np.arange(round, round + 20))
        bounds = set(tracker.so_far().values())
        assert len(bounds) == 1
        assert claim(ledger) <= bounds.pop() <= 1.01 * claim(ledger)
    assert [list(history.values()) for history in asked] == [[1], [2], [3], [4], [5]]


def test_who_made_most_of_one_release_need_not_have_made_most_of_another():
    ledger = Ledger(2, ("update", "size"))
    tracker = EpsilonTracker(ledger, DELTA)
    ledger.record(everywhere("size", Cost(poisson(0.05, 1.0))), [0], 200)
    ledger.record(update(0.05), [1], 200)
    assert claim(ledger) <= tracker.so_far()["sample/public"] <= 1.05 * claim(ledger)


def test_a_certificate_is_kept_until_the_run_outgrows_it():
    ledger = Ledger(2, ["update"])
    tracker = EpsilonTracker(ledger, DELTA)
    bounds = []
    for _ in range(200):
        ledger.record(update(0.05), None)
        bounds.append(tracker.so_far()["sample/public"])
    assert bounds == sorted(bounds)
    assert len(set(bounds)) < 100


def test_with_cohorts_that_change_the_bound_stays_above_the_claim_and_the_budget_is_kept():
    rng = np.random.default_rng(2)
    ledger = Ledger(300, ["update"])
    tracker = EpsilonTracker(ledger, DELTA)
    for round in range(150):
        planned = [(update(0.05), rng.choice(300, 30, replace=False), 1)]
        after = claim(ledger.with_releases(planned)) if round % 30 == 29 else None
        if after is not None:
            assert not tracker.would_exceed(Budget(1.02 * after), planned)
            assert tracker.would_exceed(Budget(0.98 * after), planned)
        ledger.record(*planned[0])
        bound = tracker.so_far()["sample/public"]
        assert after is None or after <= bound <= 1.05 * after


def test_cells_without_a_finite_claim_are_left_out():
    ledger = Ledger(2, ["update"])
    clear = unprotected("it is sent as it is.")
    ledger.record(
        Release.of("update", {("sample", "server"): clear, ("sample", "public"): Cost(poisson(0.1, 1.0))}), [0]
    )
    assert set(EpsilonTracker(ledger, DELTA).so_far()) == {"sample/public", "client/server", "client/public"}


def test_the_last_round_within_the_budget_is_the_last_whose_claim_fits():
    ledger = Ledger(5, ["update"])
    tracker = EpsilonTracker(ledger, DELTA)
    planned = [(update(0.02), None, 10), (update(0.01), [1, 2], 10)]
    rounds = 0
    while not tracker.would_exceed(Budget(2.0), planned):
        for release in planned:
            ledger.record(*release)
        rounds += 1
    assert rounds > 5
    assert claim(ledger) <= 2.0
    assert claim(ledger.with_releases(planned)) > 2.0


def test_an_unprotected_release_exceeds_every_budget_of_its_cell():
    ledger = Ledger(5, ("update", "debug"))
    tracker = EpsilonTracker(ledger, DELTA)
    clear = Release.of("debug", {("sample", "server"): unprotected("it is sent as it is.")})
    assert tracker.would_exceed(Budget(1e9, "sample", "server"), [(clear, [0], 1)])
    assert not tracker.would_exceed(Budget(1e-9, "sample", "public"), [(clear, [0], 1)])


def test_a_trial_round_is_not_recorded():
    ledger = Ledger(5, ["update"])
    tracker = EpsilonTracker(ledger, DELTA)
    assert tracker.would_exceed(Budget(1e-3), [(update(0.5), None, 100)])
    assert ledger.releases == ()


@pytest.mark.parametrize("delta", [-1e-5, 1.0])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(PrivacyError, match="delta is"):
        EpsilonTracker(Ledger(1), delta)
