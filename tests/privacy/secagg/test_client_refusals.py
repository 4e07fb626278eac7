"""What a client refuses, each by its name; after a refusal it reveals nothing more."""

import dataclasses
import itertools

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.privacy.secagg import errors
from privfl.privacy.secagg.bodies import (
    PublicKeys,
    Request,
    mailbox,
    numbers,
    parse_mailbox,
    parse_roster,
    roster,
)
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.messages import Kind, Phase, body_of
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.store import MemoryStore
from tests.privacy.secagg.staging import Stage, a_session, sum_of

CLIENT = 0
SESSIONS = {"semi-honest": a_session(), "active": a_session(adversary="active")}


def staged(phase, adversary="semi-honest", lost=None):
    """A stage at which ``phase`` is open, and what the server would send client 0 next."""
    stage = Stage(SESSIONS[adversary]).until(phase, lost)
    return stage, bytes(body_of(stage.inbox[CLIENT]))


def refuses(stage, error, data):
    """Client 0 refuses ``data`` with exactly ``error``, and answers neither it nor the right message afterwards."""
    phase, right = stage.server.phase, stage.inbox[CLIENT]
    for given, expected in ((data, error), (data, errors.SpentClient), (right, errors.SpentClient)):
        stage.inbox[CLIENT] = given
        with pytest.raises(errors.SecAggError) as caught:
            stage.answer(phase, CLIENT)
        assert type(caught.value) is expected, caught.value
    client = stage.clients[CLIENT]
    assert not any((client._channel, client._mask_key, client._self_seed, client._seal_key))
    assert not any((client._pair_seeds, client._shares, client._keys, client._confirming))


# --- the roster ------------------------------------------------------------------------------------------------------


def altered_roster(change, adversary="semi-honest"):
    stage, body = staged(Phase.SHARE, adversary)
    server, peers = parse_roster(memoryview(body), signed=adversary == "active")
    return stage, stage.from_server(CLIENT, roster(server, change(peers)))


OWN = PublicKeys(b"\x09" + bytes(31))


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (errors.OwnNameListed, lambda peers: peers | {CLIENT: OWN}),
        (errors.UnknownPeer, lambda peers: peers | {5: OWN}),
        (errors.TooFewClients, lambda peers: {1: peers[1]}),
        (errors.TooFewClients, lambda peers: {}),
        (errors.BadKey, lambda peers: peers | {2: peers[1]}),
        (errors.BadKey, lambda peers: peers | {2: PublicKeys(bytes(32))}),
        (errors.BadKey, lambda peers: peers | {2: PublicKeys(b"\x01" + bytes(31))}),
        (errors.MalformedMessage, lambda peers: peers | {2: PublicKeys(peers[2].channel[:-1])}),
        (errors.MalformedMessage, lambda peers: peers | {2: PublicKeys(b"")}),
    ],
)
def test_a_roster_that_cannot_be_is_refused(error, change):
    stage, data = altered_roster(change)
    refuses(stage, error, data)


def test_a_roster_with_this_clients_own_key_under_another_name_is_refused():
    stage, body = staged(Phase.SHARE)
    server, peers = parse_roster(memoryview(body), signed=False)
    own = stage.clients[CLIENT]._channel.public
    for one, others in ((server, peers | {3: PublicKeys(own)}), (own, peers), (peers[3].channel, peers)):
        refuses(stage.fork(), errors.BadKey, stage.from_server(CLIENT, roster(one, others)))


def test_a_roster_that_lists_a_peer_twice_is_refused():
    stage, body = staged(Phase.SHARE)
    refuses(stage, errors.RepeatedPeer, stage.from_server(CLIENT, body + body[32:68]))


@pytest.mark.parametrize(
    "change",
    [
        lambda peers: peers | {2: PublicKeys(OWN.channel, peers[2].signature)},
        lambda peers: peers | {2: PublicKeys(peers[2].channel, peers[3].signature)},
        lambda peers: peers | {2: PublicKeys(peers[2].channel, bytes(64))},
    ],
)
def test_an_active_server_cannot_alter_a_key(change):
    stage, data = altered_roster(change, "active")
    refuses(stage, errors.BadSignature, data)


def test_keys_of_another_session_do_not_pass_as_signed():
    stage, _ = staged(Phase.SHARE, "active")
    other = Stage(a_session(adversary="active", round=8)).until(Phase.SHARE)
    body_of_other = bytes(body_of(other.inbox[CLIENT]))
    refuses(stage, errors.BadSignature, stage.from_server(CLIENT, body_of_other))


def test_keys_altered_on_the_way_part_the_pair_and_cost_nobody_else_anything():
    """Without signatures a server in the middle is outside the model, but even then nothing is summed wrongly."""
    stage, body = staged(Phase.SHARE)
    server, peers = parse_roster(memoryview(body), signed=False)
    stage.inbox[CLIENT] = stage.from_server(CLIENT, roster(server, peers | {2: OWN}))
    stage.until(None)
    assert stage.server.survivors == set(stage.session.members)
    assert stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.session.members)
    assert not stage.server.blamed, "nobody can say which of the two lies"


# --- the mailbox -----------------------------------------------------------------------------------------------------


def altered(letter, **parts):
    return dataclasses.replace(letter, **parts)


def turned(data, place):
    """``data`` with one bit turned."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (errors.OwnNameListed, lambda letters: letters | {CLIENT: letters[1]}),
        (errors.UnknownPeer, lambda letters: letters | {5: letters[1]}),
        (errors.RevivedPeer, lambda letters: letters | {4: letters[1]}),
        (errors.TooFewClients, lambda letters: {1: letters[1]}),
        (errors.MalformedMessage, lambda letters: letters | {1: altered(letters[1], sealed=b"too short")}),
    ],
)
def test_a_mailbox_that_cannot_be_is_refused(error, change):
    stage, body = staged(Phase.MASK, lost={Phase.ADVERTISE: (4,)})
    letters = parse_mailbox(memoryview(body), stage.session)
    refuses(stage, error, stage.from_server(CLIENT, mailbox(change(letters))))


def test_a_mailbox_that_lists_a_peer_twice_is_refused():
    stage, body = staged(Phase.MASK)
    refuses(stage, errors.RepeatedPeer, stage.from_server(CLIENT, body + body[: len(body) // 4]))


ALTERED = [
    lambda letters: letters | {1: letters[2], 2: letters[1]},
    lambda letters: letters | {1: altered(letters[1], sealed=turned(letters[1].sealed, 0))},
    lambda letters: letters | {1: altered(letters[1], sealed=turned(letters[1].sealed, 20))},
    lambda letters: letters | {1: altered(letters[1], sealed=turned(letters[1].sealed, -1))},
    lambda letters: letters | {1: altered(letters[1], commitments=turned(letters[1].commitments, 0))},
    lambda letters: letters | {1: altered(letters[1], commitments=turned(letters[1].commitments, 63))},
]


@pytest.mark.parametrize("change", ALTERED)
def test_a_letter_that_an_active_server_has_altered_opens_no_key_and_ends_the_client(change):
    """Were the key opened, the server could read the true letter by it: both shares of an honest client's secrets."""
    stage, body = staged(Phase.MASK, "active")
    letters = parse_mailbox(memoryview(body), stage.session)
    refuses(stage, errors.BadSignature, stage.from_server(CLIENT, mailbox(change(letters))))


def test_a_letter_that_opens_counts_whatever_its_proof_says():
    stage, body = staged(Phase.MASK, "active")
    letters = parse_mailbox(memoryview(body), stage.session)
    one = altered(letters[1], signature=bytes(64), path=bytes(len(letters[1].path)))
    stage.inbox[CLIENT] = stage.from_server(CLIENT, mailbox(letters | {1: one}))
    stage.until(None)
    assert not stage.server.blamed


@pytest.mark.parametrize("change", ALTERED)
def test_without_signatures_a_letter_altered_on_the_way_costs_its_holder_its_place(change):
    """The server has the dealer's own letter, which is good; so the accusation is false."""
    stage, body = staged(Phase.MASK)
    letters = parse_mailbox(memoryview(body), stage.session)
    stage.inbox[CLIENT] = stage.from_server(CLIENT, mailbox(change(letters)))
    with pytest.raises(errors.BadAccusation):
        stage.receive(stage.answer(Phase.MASK, CLIENT))
    stage.play(silent=(CLIENT,)).close().until(None)
    assert stage.server.survivors == set(stage.session.members) - {CLIENT}
    assert stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.server.survivors)
    assert stage.server.blamed.keys() == {CLIENT}


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(4, np.uint32),
        np.zeros(2, np.uint32),
        np.zeros((1, 3), np.uint32),
        np.zeros(3, np.int32),
        np.zeros(3, np.uint64),
        np.zeros(3, np.float32),
        [0, 0, 0],
    ],
)
def test_a_vector_of_another_kind_is_refused(vector):
    stage, _ = staged(Phase.MASK)
    stage.vectors = {CLIENT: vector}
    refuses(stage, errors.BadVector, stage.inbox[CLIENT])


def test_a_number_outside_the_ring_is_refused():
    session = a_session(bits=20)
    stage = Stage(session, dict.fromkeys(session.members, np.array([0, 1 << 20, 0], np.uint32))).until(Phase.MASK)
    refuses(stage, errors.BadVector, stage.inbox[CLIENT])


def test_the_callers_vector_is_left_as_it_is():
    stage, _ = staged(Phase.MASK)
    before = stage.vectors[CLIENT].copy()
    stage.play()
    assert np.array_equal(stage.vectors[CLIENT], before)


# --- who survived ----------------------------------------------------------------------------------------------------

LOST = {Phase.SHARE: (4,), Phase.MASK: (3,)}
"""So client 4 has dropped out before masking, 3 is to be unmasked as dropped, 0, 1 and 2 survive."""

WRONG_REQUESTS = [
    (errors.AliveAndDead, [0, 1, 2, 3], [3]),
    (errors.AliveAndDead, [0, 1, 2], [0, 3]),
    (errors.OwnNameListed, [1, 2, 3], [0]),
    (errors.MissingPeer, [1, 2, 3], []),
    (errors.MissingPeer, [0, 1, 2], []),
    (errors.MissingPeer, [0, 1, 3], []),
    (errors.UnknownPeer, [0, 1, 2, 5], [3]),
    (errors.UnknownPeer, [0, 1, 2], [3, 77]),
    (errors.RevivedPeer, [0, 1, 2, 4], [3]),
    (errors.RevivedPeer, [0, 1, 2], [3, 4]),
    (errors.TooFewClients, [0, 1], [2, 3]),
    (errors.TooFewClients, [0], [1, 2, 3]),
    (errors.MissingPeer, [], [1, 2, 3]),
    (errors.RepeatedPeer, [0, 1, 2, 2], [3]),
    (errors.RepeatedPeer, [0, 1, 2], [3, 3]),
]


@pytest.mark.parametrize(("error", "survivors", "dropped"), WRONG_REQUESTS)
def test_a_request_that_cannot_be_is_refused(error, survivors, dropped):
    stage, _ = staged(Phase.UNMASK, lost=LOST)
    refuses(stage, error, stage.from_server(CLIENT, Request(survivors, dropped).to_bytes()))


@pytest.mark.parametrize(("error", "survivors", "dropped"), WRONG_REQUESTS)
def test_an_active_servers_request_is_refused_alike(error, survivors, dropped):
    stage, body = staged(Phase.UNMASK, "active", lost=LOST)
    confirmations = Request.from_bytes(memoryview(body)).confirmations
    if survivors == [0, 1, 2, 4]:
        error = errors.InconsistentSurvivors  # one list for everybody may name 4, but it is not the one confirmed
    refuses(stage, error, stage.from_server(CLIENT, Request(survivors, dropped, (), confirmations).to_bytes()))


@pytest.mark.parametrize(
    ("error", "survivors"),
    [
        (errors.MissingPeer, [1, 2, 3]),
        (errors.UnknownPeer, [0, 1, 2, 5]),
        (errors.TooFewClients, [0, 1]),
        (errors.TooFewClients, [0, 1, 4]),
        (errors.RepeatedPeer, [0, 1, 2, 2]),
    ],
)
def test_an_impossible_list_of_survivors_is_not_confirmed(error, survivors):
    """Client 4, whose letter did not come, may be named, but does not count among those who hide client 0."""
    stage, _ = staged(Phase.CONFIRM, "active", lost=LOST)
    body = b"".join(numbers([one]) for one in survivors)
    refuses(stage, error, stage.from_server(CLIENT, body))


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (errors.InconsistentSurvivors, lambda r: Request([0, 1, 2, 3], [], (), r.confirmations)),
        (errors.TooFewClients, lambda r: Request(r.survivors, r.dropped, (), {})),
        (errors.TooFewClients, lambda r: Request(r.survivors, r.dropped, (), {1: r.confirmations[1]})),
        (errors.TooFewClients, lambda r: Request(r.survivors, r.dropped, (), r.confirmations | {2: bytes(16)})),
        (
            errors.TooFewClients,
            lambda r: Request(r.survivors, r.dropped, (), r.confirmations | {2: r.confirmations[1]}),
        ),
        (
            errors.TooFewClients,
            lambda r: Request(r.survivors, r.dropped, (), {one: r.confirmations[1] for one in (0, 1, 3, 4, 9)}),
        ),
        (errors.UnknownPeer, lambda r: Request(r.survivors, r.dropped, (0,), r.confirmations)),
    ],
)
def test_without_enough_valid_confirmations_of_the_same_survivors_nothing_is_revealed(error, change):
    stage, body = staged(Phase.UNMASK, "active", lost=LOST)
    request = change(Request.from_bytes(memoryview(body)))
    refuses(stage, error, stage.from_server(CLIENT, request.to_bytes()))


def test_a_false_confirmation_beside_enough_good_ones_costs_nothing():
    session = a_session(6, 4, adversary="active")
    stage = Stage(session).until(Phase.UNMASK)
    request = Request.from_bytes(body_of(stage.inbox[CLIENT]))
    wrong = Request(request.survivors, request.dropped, (), request.confirmations | {5: bytes(16)})
    stage.inbox[CLIENT] = stage.from_server(CLIENT, wrong.to_bytes())
    assert stage.until(None).server.survivors == set(session.members)


def test_fewer_survivors_than_the_quorum_are_refused_by_every_client_of_a_complete_graph():
    session = a_session(6, 4, quorum=6)
    stage = Stage(session).until(Phase.UNMASK)
    refuses(stage, errors.TooFewClients, stage.from_server(CLIENT, Request([0, 1, 2, 3, 4], [5]).to_bytes()))


# --- order and repetition --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adversary", SESSIONS)
def test_a_client_answers_only_what_is_due_and_once(adversary):
    phases = [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]
    stage, inbox = Stage(SESSIONS[adversary]), {}
    for phase in phases:
        inbox[phase] = stage.until(phase).inbox[CLIENT]
    for due, given in itertools.product(phases, phases):
        stage = Stage(SESSIONS[adversary]).until(due)
        client, vector = stage.clients[CLIENT], stage.vectors[CLIENT]
        if given is due:
            stage.play()  # once more: not due any longer
        error = errors.MalformedMessage if Phase.ADVERTISE in (due, given) else errors.OutOfOrder
        if given is due:
            error = (
                errors.SpentClient if due is Phase.UNMASK else errors.MalformedMessage if not due else errors.OutOfOrder
            )
        with pytest.raises(error):
            client.answer(inbox[given], vector)
        with pytest.raises(errors.SpentClient):
            client.answer(inbox[due], vector)


def test_a_message_of_another_kind_is_refused():
    stage, body = staged(Phase.SHARE)
    refuses(stage, errors.OutOfOrder, stage.from_server(CLIENT, body, Kind.MAILBOX))
    stage, _ = staged(Phase.SHARE)
    refuses(stage, errors.ForeignMessage, stage.from_client(1, Kind.KEYS, bytes(64)))
    stage, _ = staged(Phase.SHARE)
    refuses(stage, errors.ForeignMessage, stage.inbox[1])


def test_a_session_that_comes_twice_is_refused():
    store = MemoryStore()
    Client(SESSIONS["semi-honest"], 0, store=store)
    Client(a_session(round=8), 0, store=store)
    with pytest.raises(errors.SpentClient, match="served"):
        Client(SESSIONS["semi-honest"], 0, store=store)


def test_two_clients_of_one_session_share_no_secret():
    """Restarted, a client has other keys and another self-mask, so no mask is ever used for two vectors."""
    session = SESSIONS["semi-honest"]
    first, second = (Client(session, 0, store=MemoryStore()).answer(session.to_bytes()) for _ in range(2))
    assert len(body_of(first)) == 32
    assert body_of(first) != body_of(second)


@pytest.mark.parametrize("adversary", SESSIONS)
def test_a_client_answers_bytes_with_bytes_from_the_session_on(adversary):
    stage = Stage(SESSIONS[adversary])
    inbox = dict.fromkeys(stage.session.members, stage.session.to_bytes())
    while stage.server.phase is not None:
        for member, data in inbox.items():
            stage.receive(stage.clients[member].answer(data, stage.vectors[member]))
        inbox = stage.server.close_phase()
    assert stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.session.members)
    with pytest.raises(errors.SpentClient):
        stage.clients[CLIENT].answer(stage.session.to_bytes())


def test_a_client_refuses_to_begin_another_session_than_its_own():
    client = Client(SESSIONS["semi-honest"], 0, store=MemoryStore())
    with pytest.raises(errors.MalformedMessage, match="another session"):
        client.answer(dataclasses.replace(SESSIONS["semi-honest"], encoding=b"e" * 32).to_bytes())
    with pytest.raises(errors.SpentClient):
        client.answer(SESSIONS["semi-honest"].to_bytes())


def test_keys_are_for_the_active_adversary_and_everybody_has_an_own_one():
    plain, active = SESSIONS.values()
    stage = Stage(active)
    key, keys = stage.signing[0], stage.verifying
    for session, number, given in (
        (plain, 9, {}),
        (plain, 0, {"signing_key": key, "verify_keys": keys}),
        (plain, 0, {"signing_key": key}),
        (active, 0, {}),
        (active, 0, {"signing_key": key}),
        (active, 0, {"verify_keys": keys}),
        (active, 1, {"signing_key": key, "verify_keys": keys}),
        (active, 0, {"signing_key": key, "verify_keys": keys | {4: keys[3]}}),
        (active, 0, {"signing_key": key, "verify_keys": keys | {9: key}}),
        (active, 0, {"signing_key": key, "verify_keys": {m: keys[m] for m in (0, 1, 2, 3)}}),
    ):
        with pytest.raises(ConfigError):
            Client(session, number, store=MemoryStore(), **given)
    for session, given in ((plain, keys), (active, None), (active, {0: keys[0]})):
        with pytest.raises(ConfigError):
            Server(session, given)
