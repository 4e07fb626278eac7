"""Who adds up in a secure sum: whom the seed draws, or where a server draws so many that accomplices are few."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from privfl.deploy.local import Training, settings_of
from privfl.deploy.members import BY_THE_SEED, SecureSumAmongAll, cohort_of, guarded
from privfl.deploy.secure import session_of
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError
from privfl.federation.cohorts import COHORTS, Cohort, Selection
from privfl.simulation.caveats import adversary, caveats
from privfl.simulation.plan import prepare
from privfl.simulation.state import State
from tests.deploy.rehearsal import experiment

UNIFORM = {"name": "fedavg", "weighting": "uniform"}
POISSON = {"name": "poisson", "probability": 0.9}
MANY = {"name": "iid", "clients": 12}
SHARES = [{"name": "clip", "max_norm": 1.0}, {"name": "skellam-noise", "noise_multiplier": 1.0}]


@dataclass(frozen=True)
class Same(Cohort):
    """The same four clients, by somebody's own rule."""

    def expected(self, available):
        return 4.0

    def draw(self, available, round, seed, source, sizes):
        return Selection(available[:4], np.ones(4, dtype=np.int64))


def planned(cohort, *, availability=None, secure=None, shares=(), **privacy):
    update = [*shares, {"name": "secure-sum", **(secure or {})}]
    given = {"partition": MANY, "algorithm": UNIFORM, "privacy": {"update": update, **privacy}, "cohort": cohort}
    asked = experiment(rounds=5, **given, **({"availability": availability} if availability else {}))
    return prepare(settings_of(asked, asked.task()))


@pytest.mark.parametrize(
    "cohort", [{"name": "everyone"}, {"name": "fixed", "size": 5}, {"name": "rotation", "period": 3}]
)
@pytest.mark.parametrize("availability", [{"name": "always"}, {"name": "bernoulli", "probability": 0.7}])
def test_whom_the_seed_draws_a_client_tells_without_the_server(cohort, availability):
    plan = planned(cohort, availability=availability)
    assert type(plan.cohort) in BY_THE_SEED
    state = State.start(plan)
    for round in range(5):
        selection, _ = plan.select_cohort(round, plan.available(round), state.server, state.sizes)
        assert cohort_of(plan, round) == selection.clients.tolist()
    assert guarded(plan) is plan


def test_of_every_other_rule_no_client_can_tell_whom_it_draws():
    sizes = {"size": {"name": "laplace", "epsilon": 8.0, "bound": 600}, "max_size_error": 1e4}
    for cohort in (POISSON, {"name": "size-weighted", "size": 9}, {"name": "tests.deploy.test_members:Same"}):
        assert cohort_of(planned(cohort, **sizes), 0) is None
    assert {rule for rule in COHORTS.values() if rule in BY_THE_SEED} == {*BY_THE_SEED}


def test_where_the_server_draws_the_accomplices_are_a_share_of_all_clients_whatever_it_draws():
    plan = planned(POISSON, shares=SHARES)
    secure = guarded(plan).channel.secure
    assert isinstance(secure, SecureSumAmongAll)
    for asked in (6, 9, 12):
        assert plan.channel.secure.accomplices(asked) == (asked == 12)
        assert secure.accomplices(asked) == 1
        channel = guarded(plan).channel.in_round(0, asked, {})
        session = secure.session(range(asked), length=1, bits=32, round=0)
        assert session.quorum - session.accomplices >= channel.secure_encoding.terms.survivors == secure.honest(asked)
        assert session.accomplices == 1
    with pytest.raises(
        ConfigError, match="of 3 clients, of whom 1 may work with the server, hides nobody; ask at least 4"
    ):
        secure.session(range(3), length=1, bits=32, round=0)


def test_the_statement_says_whose_share_may_collude():
    plan = planned(POISSON, shares=SHARES)
    told = guarded(plan)
    assert adversary(plan.channel) == "the server may lie, with 10 % of a cohort"
    assert adversary(told.channel) == "the server may lie, with 10 % of all 12 clients"
    server = State.start(told).server
    assert any("at most 10 % of all 12 clients opens one sum" in one for one in caveats(told, server))
    assert not any("Among" in one for one in caveats(told, server))


def test_a_claim_rests_on_the_larger_share_as_it_did_on_the_smaller_one():
    plan = planned(POISSON, shares=SHARES)
    (one, cover), (other, same) = (
        (channel.chain.unclaimed, channel.usual.charges.cover) for channel in (plan.channel, guarded(plan).channel)
    )
    assert one == other == ""
    assert cover.client is not None
    assert same.client is not None


def test_cohorts_too_small_for_the_accomplices_among_all_are_refused_before_any_work():
    small = planned({"name": "poisson", "probability": 0.4}, secure={"corrupt": 0.3, "dropout": 0.1})
    with pytest.raises(
        ConfigError, match=r"PoissonCohort and Always, so 3 of all 12 clients may be in each: let the seed"
    ):
        guarded(small)


def test_a_target_that_the_server_finds_the_noise_for_leaves_the_guard_in_place():
    privacy = {"training": {"target_epsilon": 3.0}, "target_delta": 1e-4, "update": [{"name": "secure-sum"}]}
    given = {"partition": MANY, "algorithm": UNIFORM, "privacy": privacy, "cohort": POISSON}
    asked = experiment(rounds=5, **given)
    training = Training.prepare(asked.task(), asked, 0)
    told = training._calibrated({"noise_multiplier": 2.0})
    assert isinstance(training.plan.channel.secure, SecureSumAmongAll)
    assert isinstance(told.channel.secure, SecureSumAmongAll)
    assert told.privacy.training == replace(training.plan.privacy.training, target_epsilon=None, noise_multiplier=2.0)


def test_what_is_left_of_a_cohort_holds_out_against_the_accomplices_among_all_of_it():
    plan = planned({"name": "everyone"})
    (phase,) = phases_of(plan.algorithm, plan.channel.in_round(0, 12, {}))
    for left in (12, 9, 5):
        session = session_of(phase, range(left), b"x" * 32)
        assert session.accomplices == 1
        assert session.quorum >= 1 + 3
    with pytest.raises(ConfigError, match="of 3 clients, of whom 1 may work with the server, hides nobody"):
        session_of(phase, range(3), b"x" * 32)
