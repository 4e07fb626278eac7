"""Histories of Opacus' accountants and ledgers say the same, and Opacus itself finds the same ε for both."""

import math

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from opacus.accountants import PRVAccountant, RDPAccountant

from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.events import ADD_REMOVE, REPLACE
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.opacus_history import ledger_from_opacus, opacus_history, opacus_state_dict
from privfl.privacy.accounting.release import Cost, Release, unprotected

HISTORIES = [
    [(1.1, 0.02, 100)],
    [(0.8, 0.05, 20), (1.5, 0.01, 50), (0.8, 0.05, 5)],
    [(4.0, 1.0, 12)],
]
PRV_ERROR = 0.01
"""Opacus' bound lies at most twice this above the exact ε: the error that it allows for, both ways."""


def accountant(kind, history):
    one = kind()
    for noise_multiplier, sample_rate, steps in history:
        for _ in range(steps):
            one.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    return one


def claimed(ledger, observer="public", unit="sample"):
    return make_statement(ledger, 1e-5, reproducible_noise=False).cell(unit, observer).epsilon


def ledger_of(*costs, clients=1):
    ledger = Ledger(clients, ["update"])
    for cost in costs:
        ledger.record(Release.of("update", {("sample", "public"): cost}), None)
    return ledger


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_a_ledger_from_opacus_claims_what_opacus_finds(history):
    opacus = accountant(PRVAccountant, history)
    ledger, bound = ledger_from_opacus(opacus), opacus.get_epsilon(1e-5)
    assert bound - 2 * PRV_ERROR <= claimed(ledger) <= bound + 1e-6
    for given in (opacus.state_dict(), opacus.history):
        assert ledger_from_opacus(given).state() == ledger.state()


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_a_history_comes_back_as_it_went_in_and_opacus_takes_it(history):
    ledger = ledger_from_opacus(history)
    together = opacus_history(ledger)
    assert sorted(together) == sorted(accountant(RDPAccountant, _sorted_by_kind(history)).history)
    before, after = accountant(RDPAccountant, history), RDPAccountant()
    after.load_state_dict(opacus_state_dict(ledger, mechanism="rdp"))
    assert after.get_epsilon(1e-5) == pytest.approx(before.get_epsilon(1e-5), rel=1e-9)
    PRVAccountant().load_state_dict(opacus_state_dict(ledger))


def _sorted_by_kind(history):
    """A ledger counts each kind of step once, wherever in the history it stood."""
    totals = {}
    for noise_multiplier, sample_rate, steps in history:
        totals[noise_multiplier, sample_rate] = totals.get((noise_multiplier, sample_rate), 0) + steps
    return [(*kind, steps) for kind, steps in totals.items()]


def test_the_trainer_held_the_data_unless_clients_trained():
    central, local = ledger_from_opacus(HISTORIES[0]), ledger_from_opacus(HISTORIES[0], trained_at="client", clients=3)
    assert math.isinf(claimed(central, "server"))
    assert claimed(local, "server") == claimed(local) == claimed(central) < math.inf
    assert all(math.isinf(claimed(one, "public", "client")) for one in (central, local))


def test_composed_events_are_counted_by_their_parts():
    steps = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 7)
    assert opacus_history(ledger_of(Cost(steps), Cost(steps))) == [(2.0, 0.1, 14)]
    assert opacus_history(Ledger(3)) == []
    assert claimed(ledger_from_opacus([(1.0, 0.0, 5)])) == 0


@pytest.mark.parametrize(
    ("cost", "sentence"),
    [
        (Cost(LaplaceDpEvent(1.0)), "Poisson-sampled Gaussian noise alone"),
        (Cost(GaussianDpEvent(1.0), REPLACE), "charged under REPLACE_ONE"),
        (Cost(GaussianDpEvent(0.0), ADD_REMOVE), "has no noise, so that ε is ∞"),
        (unprotected("it is sent in clear"), "is unprotected \\(it is sent in clear\\)"),
    ],
)
def test_what_a_history_cannot_say_is_refused(cost, sentence):
    with pytest.raises(PrivacyError, match=sentence):
        opacus_history(ledger_of(Cost(GaussianDpEvent(1.0)), cost))


def test_clients_that_differ_are_asked_for_one_by_one():
    ledger = ledger_of(Cost(GaussianDpEvent(2.0)), clients=2)
    ledger.record(Release.of("update", {("sample", "public"): Cost(GaussianDpEvent(1.0))}), [1], 3)
    with pytest.raises(PrivacyError, match="2 different histories"):
        opacus_history(ledger)
    assert opacus_history(ledger, client=0) == [(2.0, 1.0, 1)]
    assert sorted(opacus_history(ledger, client=1)) == [(1.0, 1.0, 3), (2.0, 1.0, 1)]
    with pytest.raises(PrivacyError, match="clients 0 to 1"):
        opacus_history(ledger, client=2)


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        (3, "the history is 3"),
        ([(1.0, 0.1)], "entry 0 of the history is \\(1.0, 0.1\\)"),
        ([(-1.0, 0.1, 3)], "noise multiplier of entry 0 is -1.0"),
        ([(1.0, 0.1, 3), (1.0, 2.0, 3)], "sample rate of entry 1 is 2.0"),
        ([(1.0, 0.1, 1.5)], "steps of entry 0 is 1.5"),
        ({"history": [], "mechanism": "own"}, "the accountant 'own'"),
    ],
)
def test_what_is_no_history_is_one_sentence(history, sentence):
    with pytest.raises((PrivacyError, ConfigError), match=sentence):
        ledger_from_opacus(history)


def test_shuffled_batches_earn_nothing():
    with pytest.raises(PrivacyError, match="poisson_sampling is False"):
        ledger_from_opacus(HISTORIES[0], poisson_sampling=False)
