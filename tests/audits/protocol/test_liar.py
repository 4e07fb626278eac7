"""What is found in symbols happens to real clients, and stops happening where the guard is on."""

import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from audits.protocol.attacks import divide, maroon
from audits.protocol.knowledge import Setting, Told
from audits.protocol.liar import play
from audits.protocol.stories import breaks
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.parameters import ThreatModel, find
from privfl.privacy.secagg.policy import Policy
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.store import MemoryStore

LENGTH = 3
EVERYBODY = frozenset(range(3))


def a_session(n, threshold, adversary="active", quorum=0, least_honest=2, degree=0, name=""):
    identity = hashlib.sha256(f"{n} {threshold} {adversary} {quorum} {name}".encode()).digest()
    members = tuple(range(n))
    return Session(identity, 0, members, degree or n - 1, threshold, LENGTH, 32, adversary, 0, quorum, least_honest)


def with_quorum(session, quorum):
    """The session with a quorum that its own check would refuse."""
    broken = Session.__new__(Session)
    broken.__dict__.update(session.__dict__, quorum=quorum)
    return broken


def vectors_of(n):
    random = np.random.default_rng(n)
    return {member: random.integers(0, 1 << 32, LENGTH, np.uint32) for member in range(n)}


def exposed(loot, vectors):
    return sum(np.array_equal(loot.sum_of({member}), vectors[member]) for member in vectors)


class CountsNames(Client):
    """Counts survivors whose letters it does not hold towards the quorum."""

    @property
    def _standing(self):
        standing = super()._standing
        return replace(standing, session=with_quorum(standing.session, self.session.threshold))


@pytest.mark.parametrize("n", [10, 20])
def test_dividing_the_neighbours_exposed_everybody_under_the_former_default_and_nobody_under_this_one(n):
    degree, threshold = find(n, ThreatModel(0.1, 0.3))
    vectors = vectors_of(n)
    former = a_session(n, threshold, "semi-honest", degree=degree)
    assert exposed(play(former, vectors, divide(former)[0]), vectors) == n
    default = Session.between(range(n), ThreatModel(0.1, 0.3, "active"), length=LENGTH)
    loot = play(default, vectors, divide(default)[0])
    assert exposed(loot, vectors) == 0
    assert loot.refusals.keys() == set(range(n))


def test_a_victim_with_few_letters_is_exposed_on_the_complete_graph_unless_lists_are_confirmed():
    vectors = vectors_of(10)
    for adversary, victims in (("semi-honest", 1), ("active", 0)):
        session = Session.between(range(10), ThreatModel(0.1, 0.3, adversary), length=LENGTH)
        run, culprits = maroon(session, 4)
        assert exposed(play(session, vectors, run, culprits=culprits), vectors) == victims


def test_a_story_found_in_symbols_exposes_a_real_client():
    _, story = breaks(Setting(3, 0, threshold=2, quorum=2, confirmed=False), 2)["vector"]
    vectors = vectors_of(3)
    for adversary, victims in (("semi-honest", 1), ("active", 0)):
        session = a_session(3, 2, adversary)
        loots = [
            play(session, vectors, story[0], culprits=culprits)
            for culprits in (
                {},
                {who: told.letters - (told.survivors or told.letters) for who, told in story[0].items()},
            )
        ]
        assert max(exposed(loot, vectors) for loot in loots) == victims


def test_a_sum_of_two_opens_if_names_count_towards_the_quorum_and_does_not_if_letters_do():
    _, story = breaks(Setting(3, 0, threshold=2, quorum=3, counted=False), 3)["few"]
    session, vectors = a_session(3, 2, quorum=3, least_honest=3), vectors_of(3)
    (pair,) = {told.letters | {who} for who, told in story[0].items() if told.survivors}
    loot = play(session, vectors, story[0], make_client=CountsNames)
    assert np.array_equal(loot.sum_of(pair), sum(vectors[member] for member in pair))
    loot = play(session, vectors, story[0])
    assert loot.sum_of(pair) is None
    assert "the sum of fewer than 3 stays masked" in loot.refusals[min(pair)]


def test_a_quorum_of_two_opens_a_sum_of_two():
    vectors, pair = vectors_of(3), frozenset({0, 1})
    run = {0: Told(frozenset({1}), pair), 1: Told(frozenset({0}), pair), 2: Told(frozenset(), None)}
    session = a_session(3, 2, quorum=3, least_honest=3)
    assert play(session, vectors, run).sum_of(pair) is None
    few = with_quorum(session, 2)
    assert np.array_equal(play(few, vectors, run).sum_of(pair), vectors[0] + vectors[1])


def test_clients_made_again_for_one_session_open_two_sums_unless_they_remember():
    vectors, stores = vectors_of(3), {member: MemoryStore() for member in EVERYBODY}
    session, pair = a_session(3, 2), frozenset({0, 1})
    whole = {member: Told(EVERYBODY - {member}, EVERYBODY) for member in EVERYBODY}
    less = {member: Told(pair - {member}, pair) for member in pair} | {2: Told(frozenset({0, 1}), None)}
    first, second = (play(session, vectors, run) for run in (whole, less))
    assert np.array_equal(first.sum_of(EVERYBODY) - second.sum_of(pair), vectors[2])
    assert play(session, vectors, whole, stores=stores).sum_of(EVERYBODY) is not None
    again = play(session, vectors, less, stores=stores)
    assert again.sum_of(pair) is None
    assert all("served" in again.refusals[member] for member in pair)


def test_two_rounds_of_changing_survivors_give_a_vector_by_difference_unless_the_policy_forbids_it():
    """Also when both lists name everybody, and one vector is left out by keeping its owner's letters back."""
    vectors = vectors_of(4)
    everybody, rest = frozenset(range(4)), frozenset(range(3))
    whole = {member: Told(everybody - {member}, everybody) for member in everybody}
    dropped = {member: Told(everybody - {member}, rest) for member in rest} | {3: Told(rest, None)}
    kept_back = {member: Told(rest - {member}, everybody) for member in rest} | {3: Told(rest, None)}
    for second_round in (dropped, kept_back):
        for cohorts in ("any", "same"):
            stores = {member: MemoryStore() for member in everybody}
            make = partial(Client, policy=Policy(length=LENGTH, cohorts=cohorts))
            first, second = (
                play(
                    a_session(4, 3, name=f"round {number}", least_honest=3),
                    vectors,
                    run,
                    stores=stores,
                    make_client=make,
                )
                for number, run in enumerate((whole, second_round))
            )
            assert first.sum_of(everybody) is not None
            if cohorts == "any":
                assert np.array_equal(first.sum_of(everybody) - second.sum_of(rest), vectors[3])
            else:
                assert second.sum_of(rest) is None
                assert second.refusals.keys() >= rest
