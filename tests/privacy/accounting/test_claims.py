"""The claims are what the ledger earns, and say why where they are none."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import BARE_TRAINING, SIZE_RESPONSE, Cost, Release, everywhere, unprotected
from privfl.privacy.accounting.statement import Answers, Statement
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT, poisson, sampled

DELTA = 1e-5
TRAINING = Cost(poisson(0.1, 1.0))
CLEAR = unprotected("the update is sent as it is.")


def statement_of(*records, clients=3, **options):
    """A statement of (release, clients, count) records."""
    ledger = Ledger(clients, {release.name for release, _, _ in records})
    for record in records:
        ledger.record(*record)
    return make_statement(ledger, DELTA, **({"reproducible_noise": False} | options))


def test_a_clear_update_is_infinite_to_the_server_and_finite_to_the_public():
    update = Release.of(
        "update", {("sample", "server"): CLEAR, ("sample", "public"): TRAINING, ("client", "server"): CLEAR}
    )
    statement = statement_of((update, None, 100))
    server, public = statement.cell("sample", "server"), statement.cell("sample", "public")
    assert server.epsilon == math.inf
    assert server.reasons == ("update: the update is sent as it is.",)
    assert public.epsilon == epsilon({sampled(0.1, 1.0): 100}, DELTA).epsilon
    assert public.bound.accountant == "PLD"
    assert (public.bound.lower, public.bound.upper) != (0.0, 0.0)
    assert not public.reasons
    assert statement.cell("client", "public").epsilon == 0.0
    assert str(statement).count("the update is sent as it is") == 1
    assert "(1) No guarantee at sample/server, client/server because of update" in str(statement)


def test_a_run_without_any_mechanism_claims_nothing_anywhere():
    statement = statement_of((everywhere("update", CLEAR), None, 1))
    assert all(cell.epsilon == math.inf and cell.reasons for cell in statement.cells)
    assert str(statement).count("ε = ∞") == 4


def test_one_clear_message_of_one_client_makes_the_cell_infinite_but_not_the_other_clients():
    statement = statement_of(
        (everywhere("update", TRAINING), None, 10), (everywhere("debug", unprotected("a value in clear.")), [2], 1)
    )
    cell = statement.cell("sample", "public")
    assert cell.epsilon == cell.clients.maximum == math.inf
    assert cell.clients.worst_client == 2
    assert cell.clients.median == pytest.approx(epsilon({sampled(0.1, 1.0): 10}, DELTA).epsilon, rel=1e-6)


def test_a_declared_clear_release_that_nobody_made_costs_nothing():
    statement = statement_of((everywhere("update", TRAINING), None, 1), (everywhere("debug", CLEAR), None, 0))
    assert not statement.cell("sample", "server").reasons


def test_the_same_reason_of_several_releases_is_given_once():
    statement = statement_of((everywhere("update", CLEAR), None, 1), (everywhere("loss", CLEAR), [0], 1))
    assert statement.cell("sample", "server").reasons == ("update, loss: the update is sent as it is.",)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(dp.RandomizedResponseDpEvent(0.5, 10), ADD_REMOVE), "no accountant supports randomised response"),
        (Cost(dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)), REPLACE), "no accountant supports"),
        (Cost(dp.GaussianDpEvent(0.0)), "without any noise"),
        (Cost(dp.NonPrivateDpEvent()), "a value without noise"),
    ],
)
def test_what_no_accountant_can_price_is_infinite_with_a_reason(cost, words):
    cell = statement_of((everywhere("update", cost), None, 1)).cell("sample", "server")
    assert cell.epsilon == math.inf
    assert words in cell.reasons[0]


SIZES = everywhere(SIZE_RESPONSE, Cost(dp.RandomizedResponseDpEvent(0.5, 10), REPLACE))
BARE = everywhere("update", unprotected(BARE_TRAINING))


def test_what_answers_about_sizes_cost_is_said_where_training_alone_has_no_mechanism():
    statement = statement_of((SIZES, [0, 2], 1), (SIZES, [1], 2), (BARE, [0], 7))
    cell = statement.cell("sample", "server")
    expected = epsilon({(dp.RandomizedResponseDpEvent(0.5, 10), REPLACE): 2}, DELTA).epsilon
    assert (cell.epsilon, cell.answers) == (math.inf, Answers(expected, 2))
    assert "the 2 answers about a client's size alone: ε = 4.80, which says nothing of" in " ".join(
        str(statement).split()
    )
    assert Statement.from_json(statement.to_json()) == statement


@pytest.mark.parametrize(
    "other",
    [
        everywhere("data shared between clients", unprotected("one client's data may be in another's upload")),
        everywhere("update", unprotected("a callback changed what clients train on")),
        everywhere("update", Cost(dp.GaussianDpEvent(40.0))),
        everywhere(SIZE_RESPONSE, unprotected("its coins do not follow from the stream")),
    ],
)
def test_nothing_is_said_of_sizes_beside_other_messages_or_defects(other):
    assert statement_of((SIZES, None, 1), (BARE, [0], 1), (other, [1], 1)).cell("sample", "server").answers is None


def test_nothing_is_said_of_messages_that_training_made_or_that_have_no_cost_at_this_delta():
    noisy = everywhere("update", Cost(dp.GaussianDpEvent(1.0)))
    assert statement_of((noisy, None, 1), (BARE, [0], 1)).cell("sample", "server").answers is None
    assert statement_of((SIZES, None, 1)).cell("sample", "server").answers is None
    exact = everywhere(SIZE_RESPONSE, Cost(dp.GaussianDpEvent(1.0)))
    ledger = Ledger(2, [SIZE_RESPONSE, "update"])
    ledger.record(exact, None)
    ledger.record(BARE, None)
    assert make_statement(ledger, 0.0, reproducible_noise=False).cell("sample", "server").answers is None


def test_a_delta_that_allows_all_says_nothing_of_sizes():
    ledger = Ledger(2, [SIZE_RESPONSE, "update"])
    ledger.record(SIZES, None)
    ledger.record(BARE, None)
    said = make_statement(ledger, 0.6, reproducible_noise=False, units={"client": 2, "sample": 1})
    assert said.cell("client", "server").answers is None
    assert said.cell("sample", "server").answers is not None


def test_cells_compose_unlike_relations():
    size = Release.of("size", {("client", "server"): Cost(dp.RandomizedResponseDpEvent(0.5, 10), REPLACE)})
    statement = statement_of((everywhere("update", TRAINING), None, 100), (size, None, 1))
    rr = (dp.RandomizedResponseDpEvent(0.5, 10), REPLACE)
    assert statement.cell("client", "server").epsilon == epsilon({sampled(0.1, 1.0): 100, rr: 1}, DELTA).epsilon
    assert statement.cell("sample", "server").epsilon == epsilon({sampled(0.1, 1.0): 100}, DELTA).epsilon
    assert statement.cell("sample", "server").relation == "add or remove one example of one client"
    assert statement.cell("client", "server").relation == "one client's contribution is left out"


def test_the_worst_client_and_its_releases_are_named():
    releases = [everywhere("update", Cost(poisson(rate, 1.0))) for rate in (0.05, 0.2, 0.1)]
    statement = statement_of(*((release, [client], 50) for client, release in enumerate(releases)))
    cell = statement.cell("sample", "public")
    assert cell.clients.worst_client == 1
    assert [(made.name, made.count) for made in cell.releases] == [("update", 50)]
    assert "rate 0.2" in cell.releases[0].mechanism
    assert cell.clients.minimum == pytest.approx(epsilon({sampled(0.05, 1.0): 50}, DELTA).epsilon, rel=4e-3)
    assert cell.clients.minimum < cell.clients.median < cell.clients.maximum == cell.epsilon


def test_many_settings_of_one_release_take_one_line():
    releases = [everywhere("update", Cost(poisson(rate, 1.0))) for rate in (0.05, 0.2, 0.1)]
    cell = statement_of(*((release, None, count) for count, release in enumerate(releases, 1))).cell("sample", "public")
    assert len(cell.releases) == 1
    assert cell.releases[0].count == 6
    assert cell.releases[0].mechanism.endswith("rate 0.1 (the most frequent of 3 settings)")


@pytest.mark.parametrize("delta", [-1.0, 1.0, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(PrivacyError, match="delta is"):
        make_statement(Ledger(1), delta, reproducible_noise=False)


def test_delta_zero_is_allowed():
    ledger = Ledger(1, ["size"])
    ledger.record(everywhere("size", Cost(dp.LaplaceDpEvent(2.0))), None, 3)
    assert make_statement(ledger, 0.0, reproducible_noise=False).cell("client", "server").epsilon == pytest.approx(1.5)


def test_more_rounds_never_claim_less():
    claims = [
        statement_of((everywhere("update", TRAINING), None, rounds)).cells[0].epsilon for rounds in (1, 5, 25, 200)
    ]
    assert claims == sorted(claims)


def test_the_claim_bounds_the_best_attack_on_a_gaussian_release():
    """The likelihood-ratio attacker of a Gaussian sum has TPR = Phi(Phi^-1(FPR) + 1/noise): never above the claim."""
    for noise, count in ((1.0, 1), (3.0, 12)):
        release = everywhere("update", Cost(dp.GaussianDpEvent(noise)))
        claim = statement_of((release, None, count)).cell("sample", "public").epsilon
        false_alarm = np.logspace(-9, -0.01, 2000)
        power = stats.norm.cdf(stats.norm.ppf(false_alarm) + math.sqrt(count) / noise)
        assert (power <= math.exp(claim) * false_alarm + DELTA + 1e-12).all()
        lower = np.log((power - DELTA)[power > DELTA] / false_alarm[power > DELTA]).max()
        assert claim == pytest.approx(lower, rel=1e-3)


@pytest.mark.slow
def test_a_thousand_clients_with_rates_of_their_own_over_a_thousand_rounds():
    rates = np.exp(np.random.default_rng(0).uniform(np.log(0.01), np.log(0.5), 1000))
    size = Release.of("size", {("sample", "server"): Cost(dp.RandomizedResponseDpEvent(0.5, 100), REPLACE)})
    ledger = Ledger(1000, ("update", "size"))
    for client, rate in enumerate(rates):
        ledger.record(everywhere("update", Cost(poisson(float(rate), 2.0))), [client], 1000)
    ledger.record(size, None)
    statement = make_statement(ledger, DELTA, reproducible_noise=False)
    worst = {sampled(float(rates.max()), 2.0): 1000}
    cell = statement.cell("sample", "public")
    assert cell.clients.worst_client == rates.argmax()
    assert cell.epsilon == epsilon(worst, DELTA, interval=False).epsilon
    median = epsilon({sampled(float(np.sort(rates)[500]), 2.0): 1000}, DELTA, interval=False).epsilon
    assert median * (1 - 1e-3) <= cell.clients.median <= 1.02 * median
    rr = (dp.RandomizedResponseDpEvent(0.5, 100), REPLACE)
    assert statement.cell("sample", "server").epsilon == epsilon(worst | {rr: 1}, DELTA, interval=False).epsilon


@pytest.mark.slow
def test_a_fresh_rate_in_each_of_three_hundred_rounds():
    generator = np.random.default_rng(0)
    ledger = Ledger(1000, ["update"])
    for rate in np.exp(generator.uniform(np.log(0.01), np.log(0.015), 300)):
        cohort = generator.choice(1000, 100, replace=False)
        ledger.record(everywhere("update", Cost(poisson(float(rate), 1.0))), cohort)
    cell = make_statement(ledger, DELTA, reproducible_noise=False).cell("sample", "public")
    assert "rounded up" in cell.note
    histories = ledger.histories("sample", "public")
    exact = {
        (release.cost("sample", "public").event, ZERO_OUT): count
        for release, count in histories.row(int(histories.group[cell.clients.worst_client])).items()
    }
    assert epsilon(exact, DELTA, interval=False).epsilon <= cell.epsilon * (1 + 1e-3)
    assert cell.epsilon <= 1.02 * epsilon(exact, DELTA, interval=False).epsilon
