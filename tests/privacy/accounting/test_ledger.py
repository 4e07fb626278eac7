"""The ledger counts by client, refuses what was not declared, and survives a restart unchanged."""

import json

import dp_accounting as dp
import numpy as np
import pytest

from privfl.errors import ConfigError, DataError, PrivacyError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Cost, Release, everywhere, unprotected
from tests.privacy.accounting.accounting_oracles import REPLACE, poisson

UPDATE = everywhere("update", Cost(poisson(0.1, 1.0)))
SIZE = Release.of("size", {("client", "server"): Cost(dp.RandomizedResponseDpEvent(0.5, 10), REPLACE)})
CLEAR = Release.of("clear", {("sample", "server"): unprotected("it is sent as it is")})


def counts(ledger, unit="sample", observer="server"):
    """{client: {release name: count}} from the grouped histories."""
    return {
        int(client): {release.name: count for release, count in made.items()}
        for clients, made in ledger.histories(unit, observer)
        for client in clients
    }


def test_releases_are_counted_by_client():
    ledger = Ledger(4, ("update", "size"))
    ledger.record(UPDATE, [0, 2])
    ledger.record(UPDATE, np.array([2]), count=3)
    ledger.record(UPDATE, None, count=2)
    ledger.record(SIZE, None)
    assert counts(ledger) == {0: {"update": 3}, 1: {"update": 2}, 2: {"update": 6}, 3: {"update": 2}}
    assert counts(ledger, "client") == {client: made | {"size": 1} for client, made in counts(ledger).items()}


def test_clients_with_equal_histories_are_taken_together():
    ledger = Ledger(5, ["update"])
    ledger.record(UPDATE, [1, 3])
    groups = {tuple(clients.tolist()): made for clients, made in ledger.histories("sample", "public")}
    assert groups == {(0, 2, 4): {}, (1, 3): {UPDATE: 1}}


def test_an_observer_who_learns_nothing_has_empty_histories():
    ledger = Ledger(3, ["size"])
    ledger.record(SIZE, None)
    histories = ledger.histories("sample", "public")
    assert histories.releases == ()
    assert [(clients.tolist(), made) for clients, made in histories] == [([0, 1, 2], {})]


def test_a_client_drawn_twice_is_counted_twice():
    for clients in (10, 1000):  # a dense and a sparse tally
        ledger = Ledger(clients, ["update"])
        for _ in range(2):
            ledger.record(UPDATE, [7, 7, 1, 2, 3])
        assert counts(ledger)[7] == {"update": 4}
        assert counts(ledger)[1] == {"update": 2}


def test_sparse_and_dense_tallies_count_alike():
    generator = np.random.default_rng(0)
    for clients, size in ((1000, 3), (1000, 400), (6, 2), (1, 1)):
        ledger, expected = Ledger(clients, ["update"]), np.zeros(clients, dtype=int)
        for _ in range(20):
            cohort = generator.choice(clients, size, replace=False)
            ledger.record(UPDATE, cohort, 2)
            expected[cohort] += 2
        assert [counts(ledger)[client].get("update", 0) for client in range(clients)] == expected.tolist()


def test_an_undeclared_release_cannot_be_recorded():
    ledger = Ledger(2, ["update"])
    with pytest.raises(PrivacyError, match=r"unknown release 'updates': did you mean 'update'\?"):
        ledger.record(everywhere("updates", Cost(dp.GaussianDpEvent(1.0))), None)
    ledger.declare("updates")
    ledger.record(everywhere("updates", Cost(dp.GaussianDpEvent(1.0))), None)
    assert ledger.declared == ("update", "updates")


@pytest.mark.parametrize(("clients", "count"), [([-1], 1), ([3], 1), ([0.5], 1), ([0], -1), ([0], 1.5)])
def test_impossible_records_are_refused_and_leave_no_trace(clients, count):
    ledger = Ledger(3, ["update"])
    with pytest.raises(DataError, match="release 'update' recorded"):
        ledger.record(UPDATE, clients, count)
    assert counts(ledger) == {0: {}, 1: {}, 2: {}}


def test_nobody_recorded_is_nobody_charged():
    ledger = Ledger(3, ["update"])
    ledger.record(UPDATE, [])
    ledger.record(UPDATE, None, 0)
    assert counts(ledger) == {0: {}, 1: {}, 2: {}}


def test_releases_with_lists_inside_are_the_same_as_with_tuples():
    ledger = Ledger(2, ["update"])
    for sequence in (list, tuple):
        ledger.record(everywhere("update", Cost(dp.ComposedDpEvent(sequence([dp.GaussianDpEvent(1.0)])))), None)
    assert list(counts(ledger)[0].values()) == [2]
    assert len(ledger.releases) == 1


def filled():
    ledger = Ledger(300, ("update", "size", "clear"), fingerprint="run 1")
    ledger.record(UPDATE, np.arange(0, 300, 2), 3)
    ledger.record(everywhere("update", Cost(poisson(0.2, 1.0))), [5])
    ledger.record(SIZE, None)
    ledger.record(CLEAR, [1])
    return ledger


def test_a_state_goes_through_json_and_comes_back_equal():
    ledger = filled()
    again = Ledger.from_state(json.loads(json.dumps(ledger.state(), allow_nan=False)), "run 1")
    assert again.state() == ledger.state()
    for unit in ("sample", "client"):
        assert counts(again, unit) == counts(ledger, unit)
    for one in (ledger, again):
        one.record(UPDATE, [2, 3, 4])
    assert again.state() == ledger.state()


def test_a_state_of_another_configuration_is_refused():
    with pytest.raises(PrivacyError, match="belongs to configuration 'run 1', not to 'run 2'"):
        Ledger.from_state(filled().state(), "run 2")
    with pytest.raises(PrivacyError, match="belongs to configuration 'run 1'"):
        Ledger.from_state(filled().state())


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.update(format=99),
        lambda state: state.pop("clients"),
        lambda state: state.update(clients=2),
        lambda state: state["releases"][0].update(who="!!!"),
        lambda state: state["releases"][0].update(counts=state["releases"][1]["counts"]),
        lambda state: state["releases"][0].update(everyone=-1),
        lambda state: state["releases"][0].update(name="undeclared"),
        lambda state: state["releases"][0]["costs"][0]["event"].update(kind="builtins.eval"),
        lambda state: state["releases"][0]["costs"][0].update(relation="NONE"),
    ],
)
def test_a_damaged_state_is_refused(damage):
    state = json.loads(json.dumps(filled().state()))
    damage(state)
    with pytest.raises(PrivacyError, match=r"saved ledger|not a privacy event"):
        Ledger.from_state(state, "run 1")


def test_a_trial_copy_leaves_the_ledger_as_it_was():
    ledger = filled()
    before = json.dumps(ledger.state())
    trial = ledger.with_releases([(UPDATE, [1, 2], 1), (UPDATE, None, 1), (SIZE, [4], 2)])
    assert json.dumps(ledger.state()) == before
    assert counts(trial, "client")[2] == {"update": 5, "size": 1}
    assert counts(trial, "client")[4] == {"update": 4, "size": 3}


def test_merged_ledgers_hold_all_runs():
    first, second = filled(), filled()
    second.record(UPDATE, None)
    together = counts(Ledger.merged([first, second]), "client")
    assert together[0] == {"update": 7, "size": 2}
    assert together[1] == {"update": 1, "size": 2}
    with pytest.raises(ConfigError, match=r"\[300, 2\] clients"):
        Ledger.merged([first, Ledger(2)])


def test_a_ledger_needs_a_client():
    with pytest.raises(ConfigError, match="0 clients"):
        Ledger(0)


def test_a_hundred_thousand_clients_over_ten_thousand_rounds_stay_small():
    ledger = Ledger(100_000, ("update", "size"))
    generator = np.random.default_rng(0)
    ledger.record(SIZE, None)
    for _ in range(500):
        ledger.record(UPDATE, generator.integers(0, 100_000, 1000), 20)
    assert len(json.dumps(ledger.state())) < 2_000_000
    assert len(ledger.histories("sample", "server")) < 100


def test_thousands_of_distinct_releases_stay_small():
    ledger = Ledger(100_000, ["update"])
    generator = np.random.default_rng(0)
    for rate in np.linspace(0.01, 0.02, 2000):
        ledger.record(everywhere("update", Cost(poisson(float(rate), 1.0))), generator.integers(0, 100_000, 20))
    assert len(json.dumps(ledger.state())) < 3_000_000
    histories = ledger.histories("sample", "server")
    assert histories.counts.nnz < 45_000
    assert int(histories.counts.sum(axis=1)[histories.group].sum()) == 40_000


def test_the_most_that_one_client_made_of_each_release_is_known_and_survives_a_restart():
    rng = np.random.default_rng(0)
    ledger = Ledger(12, ("update", "size", "clear"))
    for _ in range(40):
        release = (UPDATE, SIZE, CLEAR)[rng.integers(3)]
        ledger.record(release, None if rng.random() < 0.1 else rng.integers(0, 12, rng.integers(1, 4)), 2)
        clients = [*counts(ledger).values(), *counts(ledger, "client").values()]
        made = {name: max(client.get(name, 0) for client in clients) for name in ledger.declared}
        assert ledger.most() == [made[release.name] for release in ledger.releases]
        assert Ledger.from_state(json.loads(json.dumps(ledger.state()))).most() == ledger.most()
    assert ledger.with_releases([(UPDATE, [3], 1000)]).most()[ledger.releases.index(UPDATE)] >= 1000
