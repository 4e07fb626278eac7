"""Whoever lies is named and costs its own place only: the others' sum is exact, or the abort names the liar."""

import pytest

from privfl.privacy.secagg import errors
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.server import Server
from tests.privacy.secagg import saboteurs
from tests.privacy.secagg.staging import Stage, a_session, sum_of

ADVERSARIES = ("semi-honest", "active")


def with_liars(session, liars):
    """A stage on which these members are of these classes, the others honest."""
    return Stage(session, make_client=lambda *given, **more: liars.get(given[1], Client)(*given, **more))


def play_out(stage):
    """Go on to the end; what the server refuses is not sent again."""
    while stage.server.phase is not None:
        phase = stage.server.phase
        for member in sorted(stage.inbox):
            try:
                stage.receive(stage.answer(phase, member))
            except errors.SecAggError:
                assert type(stage.clients[member]) is not Client, f"client {member} is honest"
        stage.close()
    return stage


def right(stage):
    return stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.server.survivors)


def takes_place(liar, adversary):
    return adversary == "active" or liar.phase is not Phase.CONFIRM


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("place", [0, 4, 7])
@pytest.mark.parametrize("liar", saboteurs.LEFT_OUT + saboteurs.IN_THE_SUM)
def test_one_liar_costs_its_own_place_at_most(liar, place, adversary):
    if not takes_place(liar, adversary):
        return
    session = a_session(8, 5, adversary=adversary, accomplices=1)
    stage = play_out(with_liars(session, {place: liar}))
    others = set(session.members) - {place}
    assert stage.server.survivors == (others if liar in saboteurs.LEFT_OUT else set(session.members))
    assert right(stage)
    assert stage.server.blamed.keys() == (set() if liar in saboteurs.UNNAMED else {place})


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("liar", saboteurs.ENDING)
def test_shares_that_do_not_fit_end_the_session_and_name_their_dealer(liar, adversary):
    stage = with_liars(a_session(8, 5, adversary=adversary, accomplices=1), {4: liar})
    with pytest.raises(errors.BadShare, match=r"To blame: client 4: the shares that it dealt"):
        play_out(stage)
    assert stage.server.blamed.keys() == {4}
    with pytest.raises(errors.AbortedSession):
        stage.server.result()


def test_an_abort_names_every_dealer_whose_shares_do_not_fit():
    liars = {0: saboteurs.UnfittingShares, 5: saboteurs.FalseSeed, 7: saboteurs.UnfittingShares}
    stage = with_liars(a_session(10, 6), liars)
    with pytest.raises(errors.BadShare):
        play_out(stage)
    assert stage.server.blamed.keys() == liars.keys()


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_five_liars_of_twenty_in_different_phases_cost_five_places(adversary):
    kinds = [saboteurs.ReflectedKey, saboteurs.FalseKeyCommitments, saboteurs.GarbledLettersToHalf]
    liars = dict(zip((3, 0, 19, 11, 8), [*kinds, saboteurs.FalseAccusation, saboteurs.FalseAnswer], strict=True))
    session = a_session(20, 13, adversary=adversary, accomplices=5)
    stage = play_out(with_liars(session, liars))
    assert stage.server.survivors == set(session.members) - {3, 0, 19, 11}
    assert right(stage)
    assert stage.server.blamed.keys() == liars.keys()


@pytest.mark.parametrize(
    "liar", [saboteurs.GarbledLetters, saboteurs.GarbledLetterToOne, saboteurs.FalseKeyCommitments]
)
def test_on_a_sparse_graph_liars_cost_their_own_places_too(liar):
    session = a_session(30, 4, degree=10, quorum=20, accomplices=2)
    stage = play_out(with_liars(session, {7: liar, 21: liar}))
    assert stage.server.survivors == set(session.members) - {7, 21}
    assert right(stage)
    assert stage.server.blamed.keys() == {7, 21}


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_too_many_liars_end_the_session_and_are_all_named(adversary):
    liars = dict.fromkeys((0, 2, 5, 6), saboteurs.ShortVector)
    stage = with_liars(a_session(8, 5, adversary=adversary, accomplices=1), liars)
    with pytest.raises(errors.TooFewClients, match=r"To blame: client 0: .*client 2: .*client 5: .*client 6: "):
        play_out(stage)
    assert stage.server.blamed.keys() == liars.keys()


def test_a_vector_that_came_before_its_sender_was_convicted_is_taken_out_again():
    """And without a copy of it the session ends, because nothing could take it out."""
    session = a_session(6, 4)
    for take_back in (True, False):
        stage = with_liars(session, {0: saboteurs.GarbledLetterToOne})
        stage.server = Server(session, take_back=take_back)
        stage.until(Phase.MASK)
        stage.receive(stage.answer(Phase.MASK, 0))
        stage.play(silent=(0,))
        if not take_back:
            with pytest.raises(errors.BadShare, match="client 0 was convicted after its vector came"):
                stage.close()
            continue
        stage.close().until(None)
        assert stage.server.survivors == {1, 2, 3, 4, 5}
        assert right(stage)


def test_a_convicted_client_is_out_at_once():
    stage = with_liars(a_session(6, 4), {5: saboteurs.GarbledLetterToOne}).until(Phase.MASK)
    stage.play(silent=(5,))
    with pytest.raises(errors.DroppedClient):
        stage.receive(stage.answer(Phase.MASK, 5))


def test_an_accuser_reveals_nothing_of_the_accused_and_is_not_asked_to():
    stage = with_liars(a_session(6, 4), {5: saboteurs.GarbledLetterToOne})
    stage.until(Phase.UNMASK, {Phase.MASK: (5,)})
    assert 5 not in stage.clients[0]._shares
    assert 5 in stage.clients[1]._shares
    stage.until(None)
    assert right(stage)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_other_seeds_of_masks_than_committed_to_end_the_session_and_name_who_deposited_them(adversary):
    """They show when they are needed: once their owner has fallen silent."""
    session = a_session(8, 5, adversary=adversary, accomplices=1)
    stage = with_liars(session, {4: saboteurs.FalseDeposit}).until(None)
    assert right(stage), "nobody needed them"
    stage = with_liars(session, {4: saboteurs.FalseDeposit}).until(Phase.UNMASK, {Phase.MASK: (4,)})
    with pytest.raises(errors.BadShare, match=r"To blame: client 4: the shares that it dealt"):
        stage.play().close()
    assert stage.server.blamed.keys() == {4}


def test_a_false_seed_beside_a_culprit_is_refused_and_named():
    stage = with_liars(a_session(8, 5), {7: saboteurs.GarbledLettersToHalf})
    stage.until(Phase.UNMASK, {Phase.MASK: (7,)})
    stage.clients[6]._pair_seeds[7] = bytes(32)
    with pytest.raises(errors.BadShare, match="client 6 reveals a false seed of its mask with client 7"):
        stage.receive(stage.clients[6].answer(stage.inbox[6]))


def test_silence_beside_a_culprit_that_dealt_to_few_is_told():
    """Who has masks with the culprit and falls silent takes them along: the abort says whose they were."""
    session = a_session(8, 5)
    stage = with_liars(session, {7: saboteurs.GarbledLettersToHalf})
    stage.until(Phase.UNMASK, {Phase.MASK: (7,)})
    with pytest.raises(errors.TooFewClients, match=r"client 6 dropped out.*To blame: client 7"):
        stage.play(silent=(6,)).close()
