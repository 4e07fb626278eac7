"""A client takes part on its own terms only, and opens no sum that tells too much beside those it has opened."""

import dataclasses
from contextlib import suppress

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.encoding import Encoding, FieldRange
from privfl.privacy.secagg.errors import PolicyRefused
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.policy import Policy
from privfl.privacy.secagg.store import FolderStore, MemoryStore
from tests.privacy.secagg.staging import Stage, a_session, sum_of, vectors_for

SESSION = a_session(6, 5, adversary="active", accomplices=1, least_honest=3, quorum=5)
GOOD = Policy(length=3, members=frozenset(range(6)), accomplices=1)


def join(session, policy, store=None):
    keys = Stage(session)
    return Client(
        session,
        0,
        signing_key=keys.signing.get(0),
        verify_keys=keys.verifying,
        policy=policy,
        store=store or MemoryStore(),
    )


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("member 5 is none of those", {"members": frozenset(range(5))}),
        ("accomplices is 1; this client asks for 2", {"accomplices": 2}),
        ("least_honest is 3; this client asks for 4", {"least_honest": 4}),
        ("vectors of 3 numbers; this client's have 4", {"length": 4}),
        ("encoding", {"encoding": b"e" * 32}),
    ],
)
def test_a_session_that_breaks_a_clients_policy_is_refused_and_not_noted_as_served(says, change):
    store = MemoryStore()
    with pytest.raises(PolicyRefused, match=says):
        join(SESSION, dataclasses.replace(GOOD, **change), store)
    join(SESSION, GOOD, store)


def test_a_server_that_might_lie_is_expected_unless_the_policy_says_otherwise():
    plain = a_session(6, 5)
    with pytest.raises(PolicyRefused, match="semi-honest; this client asks for active"):
        join(plain, Policy(length=3, least_honest=2))
    join(plain, Policy(length=3, least_honest=2, adversary="semi-honest"))
    sparse = a_session(20, 5, degree=6)
    with pytest.raises(PolicyRefused, match="complete graph only"):
        join(sparse, Policy(length=3, least_honest=2, adversary="semi-honest", cohorts="same"))


@pytest.mark.parametrize(
    "change",
    [{"adversary": "weak"}, {"cohorts": "other"}, {"length": 0}, {"least_honest": 1}, {"smallest_difference": -1}],
)
def test_a_policy_that_cannot_be_is_refused(change):
    with pytest.raises(ConfigError, match=f"policy's {next(iter(change))}"):
        dataclasses.replace(GOOD, **change)


def test_clients_with_other_bounds_cannot_add_up():
    """A bound of 2 instead of 1 halves the steps: the same word means another number."""
    ours, theirs = (Encoding.for_cohort([FieldRange("update", 3, bound)], 10) for bound in (1.0, 2.0))
    assert ours.steps != theirs.steps
    session = dataclasses.replace(SESSION, encoding=ours.digest)
    join(session, dataclasses.replace(GOOD, encoding=ours.digest))
    with pytest.raises(PolicyRefused, match="encoding"):
        join(session, dataclasses.replace(GOOD, encoding=theirs.digest))
    other = dataclasses.replace(session, encoding=theirs.digest)
    assert other.fingerprint != session.fingerprint


# --- several sums ----------------------------------------------------------------------------------------------------


def opened(stores, policy, survivors, round):
    """The sum over ``survivors`` of vectors that stay the same, or None if the clients' policies prevent it."""
    session = a_session(8, 5, length=3, adversary="active", round=round)
    lost = set(session.members) - set(survivors)
    stage = Stage(
        session,
        vectors_for(a_session(8, 5)),
        make_client=lambda session, member, **more: Client(session, member, **more | stores[member], policy=policy),
    ).until(Phase.CONFIRM, {Phase.MASK: lost})
    try:
        stage.until(None)
    except PolicyRefused:
        return None
    assert stage.server.result().tolist() == sum_of(session, stage.vectors, survivors)
    return stage.server.result()


def in_folders(folder):
    return {member: {"store": FolderStore(folder / str(member))} for member in range(8)}


ANY = Policy(length=3, least_honest=2)
COHORTS = (range(8), range(7))


def test_the_difference_of_two_sums_is_one_clients_vector():
    """What the protocol does not bound: one cohort without client 7, and its vector is told."""
    stores = {member: {"store": MemoryStore()} for member in range(8)}
    first, second = (opened(stores, ANY, cohort, round) for round, cohort in enumerate(COHORTS))
    assert np.array_equal(first - second, vectors_for(a_session(8, 5))[7])


@pytest.mark.parametrize("terms", [{"cohorts": "same"}, {"smallest_difference": 2}])
def test_a_policy_prevents_the_difference_whatever_the_order_and_across_restarts(terms, tmp_path):
    policy = dataclasses.replace(ANY, **terms)
    for order in (COHORTS, COHORTS[::-1]):
        folder = tmp_path / str(len(order[0]))
        assert opened(in_folders(folder), policy, order[0], 0) is not None
        assert opened(in_folders(folder), policy, order[1], 1) is None
        assert opened(in_folders(folder), policy, order[0], 2) is not None, "the same cohort tells nothing new"


class AtOnce(MemoryStore):
    """Answers the waiting requests of other sessions after it has looked up what was opened, as other threads may."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def opened(self):
        found = list(super().opened())
        while self.waiting:
            self.waiting.pop()()
        return found


def test_two_sessions_that_ask_at_once_do_not_both_open():
    policy, store, answered = dataclasses.replace(ANY, cohorts="same"), AtOnce(), []

    def asked(survivors, round):
        stage = Stage(
            a_session(8, 5, length=3, adversary="active", round=round),
            make_client=lambda session, member, **more: Client(
                session, member, **more | ({"store": store, "policy": policy} if member == 0 else {})
            ),
        )
        return stage.until(Phase.UNMASK, {Phase.MASK: set(range(8)) - set(survivors)})

    first, second = (asked(cohort, round) for round, cohort in enumerate(COHORTS))

    def answer(stage):
        with suppress(PolicyRefused):
            answered.append(stage.answer(Phase.UNMASK, 0))

    store.waiting.append(lambda: answer(second))
    answer(first)
    assert len(answered) == 1


def test_a_smallest_difference_bounds_two_sums_and_not_three_but_the_same_cohort_bounds_all():
    """Pairwise the cohorts differ in two clients or more; a combination of three tells client 7's vector doubled."""
    cohorts = ({0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 6})
    assert min(len(one ^ other) for one in cohorts for other in cohorts if one != other) == 2
    vectors = vectors_for(a_session(8, 5))
    for terms, told in (({"smallest_difference": 2}, True), ({"cohorts": "same"}, False)):
        stores = {member: {"store": MemoryStore()} for member in range(8)}
        policy = dataclasses.replace(ANY, **terms)
        sums = [opened(stores, policy, sorted(cohort), round) for round, cohort in enumerate(cohorts)]
        assert all(one is not None for one in sums) is told
        if told:
            both = 2 * sums[0] - sums[1] - sums[2]
            assert np.array_equal(both - (vectors[5] + vectors[6]) - 2 * vectors[7], np.zeros(3, np.uint32))


def test_cohorts_that_are_the_same_or_disjoint_hide_a_whole_cohort_in_every_combination():
    """The sets' indicators have disjoint supports, so no combination is over fewer than the smallest of them."""
    policy = dataclasses.replace(ANY, cohorts="same")
    policy.check_sum({0, 1, 2}, [frozenset({3, 4, 5}), frozenset({0, 1, 2})])
    for earlier in ({0, 1}, {2, 3, 4}, {0, 1, 2, 3}):
        with pytest.raises(PolicyRefused, match="the same cohort or over others altogether"):
            policy.check_sum({0, 1, 2}, [frozenset({7, 8, 9}), frozenset(earlier)])
