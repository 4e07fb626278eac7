"""Secure aggregation gives the exact sum of those who stayed, or ends cleanly: never a wrong sum."""

import itertools
import random

import pytest

from privfl.privacy.secagg.errors import AbortedSession, TooFewClients
from privfl.privacy.secagg.messages import Phase
from tests.privacy.secagg.staging import Stage, a_session, sum_of, vectors_for

PHASES = {
    "semi-honest": (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK),
    "active": tuple(Phase),
}


def check_aborted(stage):
    for refused in (stage.server.result, stage.server.close_phase, lambda: stage.server.survivors):
        with pytest.raises(AbortedSession):
            refused()


@pytest.mark.parametrize(("threshold", "adversary"), [(3, "semi-honest"), (4, "semi-honest"), (3, "active")])
def test_every_drop_out_pattern_of_five_gives_the_sum_of_the_survivors_or_a_clean_abort(threshold, adversary):
    """Every client is lost before any of the phases or never: 5⁵ patterns, 6⁵ with the active adversary's phase.

    Patterns that begin alike share that beginning; one whose beginning is aborted is aborted.
    """
    session = a_session(5, threshold, length=2, adversary=adversary)
    vectors = vectors_for(session)
    seen = {"sum": 0, "abort": 0}

    def go_on(stage, phases):
        if not phases:
            assert stage.server.phase is None
            assert stage.server.result().tolist() == sum_of(session, vectors, stage.server.survivors)
            seen["sum"] += 1
            return
        living = sorted(stage.inbox)
        messages = {member: stage.answer(stage.server.phase, member) for member in living}
        for silent in itertools.chain.from_iterable(itertools.combinations(living, k) for k in range(len(living) + 1)):
            branch = stage.fork()
            for member in messages.keys() - silent:
                branch.receive(messages[member])
            if len(living) - len(silent) < threshold:
                with pytest.raises(TooFewClients):
                    branch.close()
                check_aborted(branch)
                # whoever is still there can be lost in any later phase, or never: so many patterns begin like this
                seen["abort"] += len(phases) ** (len(living) - len(silent))
                continue
            branch.close()
            if phases[0] is Phase.MASK:
                assert branch.server.survivors == set(living) - set(silent)
            go_on(branch, phases[1:])

    phases = PHASES[adversary]
    go_on(Stage(session, vectors), phases)
    p = len(phases)
    most_lost = 5 - threshold
    assert seen["sum"] == sum(len(list(itertools.combinations(range(5), k))) * p**k for k in range(most_lost + 1))
    assert seen["sum"] + seen["abort"] == (p + 1) ** 5


def outcome_by_rules(session, lost):
    """Survivors, or None for an abort, told from who is lost before which phase by the rules of the protocol."""
    holders, enough = session.holders, session.threshold
    living = set(session.members)

    def without_lonely(living):
        while lonely := {m for m in living if len(holders[m] & living) < enough}:
            living = living - lonely
        return living

    for phase in (Phase.ADVERTISE, Phase.SHARE):
        living = without_lonely(living - lost[phase])
        if len(living) < session.quorum:
            return None
    sharers, survivors = living, living - lost[Phase.MASK]
    for phase in (Phase.MASK, Phase.UNMASK):
        living = living - lost[phase]
        if any(len(holders[m] & living) < enough for m in sharers) or len(survivors) < session.quorum:
            return None
    return survivors


@pytest.mark.parametrize("rate", [0.03, 0.08, 0.3])
def test_random_drop_outs_on_a_sparse_graph_of_fifty_give_the_sum_or_a_clean_abort(rate):
    session = a_session(50, 7, length=2, bits=40, degree=12, quorum=20)
    vectors = vectors_for(session)
    dice = random.Random(f"drop-outs {rate}")
    sums = aborts = 0
    for trial in range(3):
        start = Stage(session, vectors, label=f"sparse {rate} {trial}")
        first = {phase: {m for m in session.members if dice.random() < rate} for phase in PHASES["semi-honest"][:2]}
        for _ in range(8):
            lost = first | {
                phase: {m for m in session.members if dice.random() < rate} for phase in (Phase.MASK, Phase.UNMASK)
            }
            expected = outcome_by_rules(session, lost)
            try:
                if start.server.phase is Phase.ADVERTISE:
                    start.until(Phase.MASK, lost)
                stage = start.fork()
                stage.until(None, lost)
            except TooFewClients:
                assert expected is None
                aborts += 1
                if start.server.phase is None:
                    check_aborted(start)
                    break
                check_aborted(stage)
            else:
                assert stage.server.survivors == expected
                assert stage.server.result().tolist() == sum_of(session, vectors, expected)
                sums += 1
    assert (sums > 0, aborts > 0) == {0.03: (True, False), 0.08: (True, True), 0.3: (False, True)}[rate]


@pytest.mark.parametrize("bits", [1, 2, 7, 16, 31, 32, 33, 48, 63, 64])
@pytest.mark.parametrize("adversary", PHASES)
def test_the_sum_is_exact_in_every_ring_and_whoever_the_members_are(bits, adversary):
    session = a_session(4, 3, length=5, bits=bits, adversary=adversary, members=(70_000, 3, 2**32 - 2, 0))
    stage = Stage(session).until(Phase.MASK, {})
    stage.until(None, {Phase.MASK: (3,)})
    assert stage.server.survivors == {0, 70_000, 2**32 - 2}
    assert stage.server.result().tolist() == sum_of(session, stage.vectors, stage.server.survivors)


def test_two_can_add_up():
    session = a_session(2, 2)
    stage = Stage(session).until(None)
    assert stage.server.result().tolist() == sum_of(session, stage.vectors, session.members)


def test_fewer_survivors_than_the_quorum_stay_masked():
    session = a_session(6, 4, quorum=6)
    with pytest.raises(TooFewClients, match="fewer than 6"):
        Stage(session).until(None, {Phase.MASK: (2,)})
    assert Stage(session).until(None, {Phase.UNMASK: (2, 4)}).server.survivors == set(session.members)
    sparse = a_session(30, 4, degree=10, quorum=28)
    stage = Stage(sparse).until(Phase.MASK).play(silent=(3, 11, 20))
    with pytest.raises(TooFewClients, match="fewer than 28"):
        stage.close()
    check_aborted(stage)
    assert len(Stage(sparse).until(None, {Phase.MASK: (3, 11)}).server.survivors) == 28


def test_a_client_whose_neighbours_are_gone_is_left_out_before_it_has_masked_anything():
    session = a_session(30, 4, degree=10)
    alone = 0
    near = sorted(session.holders[alone] - {alone}, key=lambda m: -len(session.holders[m] & session.holders[alone]))
    silent = near[:8]
    stage = Stage(session).until(Phase.SHARE, {Phase.ADVERTISE: silent})
    left_out = set(session.members) - set(silent) - stage.inbox.keys()
    assert left_out == {alone}
    stage.until(None)
    assert stage.server.survivors.isdisjoint(left_out)
    assert stage.server.result().tolist() == sum_of(session, stage.vectors, stage.server.survivors)
