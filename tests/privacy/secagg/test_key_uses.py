"""No key of a session serves two purposes, and none that serves one content serves two."""

from collections import defaultdict

import pytest

from privfl.privacy.secagg import letters, masking, messages, standing
from privfl.privacy.secagg.bodies import parse_roster, roster
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.messages import SERVER, Kind, Phase, body_of, pack
from tests.privacy.secagg.saboteurs import GarbledLetterToOne
from tests.privacy.secagg.staging import Stage, a_session

AGREED, SEALED, ONE_TIME, CONFIRMED, EXPANDED, KEYED = "agreed", "sealed", "one-time tag", "confirmed", "mask", "HKDF"


@pytest.fixture
def uses(monkeypatch):
    """By key what it was used for, and on what: AES-GCM by nonce and content, tags by content, masks."""
    seen = defaultdict(set)
    plain = letters.seal, messages.one_time_tag, standing.authenticate, masking.add_many, letters.derive

    def seal(key, nonce, content, associated):
        seen[key].add((SEALED, nonce, content, associated))
        return plain[0](key, nonce, content, associated)

    def tag(key, content):
        seen[key].add((ONE_TIME, bytes(content)))
        return plain[1](key, content)

    def confirm(key, content):
        seen[key].add((CONFIRMED, content))
        return plain[2](key, content)

    def expand(target, seeds, threads):
        for seed, _ in seeds:
            seen[seed].add((EXPANDED,))
        return plain[3](target, seeds, threads)

    def derive(secret, salt, info, length=32):
        seen[secret].add((KEYED, info))
        return plain[4](secret, salt, info, length)

    monkeypatch.setattr(letters, "seal", seal)
    monkeypatch.setattr(messages, "one_time_tag", tag)
    monkeypatch.setattr(standing, "authenticate", confirm)
    monkeypatch.setattr(masking, "add_many", expand)
    for module in (letters, messages, masking):
        monkeypatch.setattr(module, "derive", derive)
    return seen


def check(uses):
    """Every key is for one purpose, save that seeds of self-masks are committed to, and seals or tags one content."""
    purposes = defaultdict(int)
    for _key, what in uses.items():
        kinds = {one[0] for one in what}
        assert len(kinds) == 1 or kinds == {EXPANDED, KEYED}, kinds
        for kind in (SEALED, ONE_TIME):
            assert sum(one[0] == kind for one in what) <= 1, f"a key for {kind} serves two contents"
        purposes[EXPANDED if EXPANDED in kinds else kinds.pop()] += 1
    return purposes


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_every_key_of_a_session_serves_one_purpose_and_once(uses, adversary):
    """With a liar whom a peer convicts, one who is a culprit, and one who drops out after masking was begun."""
    session = a_session(7, 5, adversary=adversary)
    kinds = {0: GarbledLetterToOne}
    stage = Stage(session, make_client=lambda *given, **more: kinds.get(given[1], Client)(*given, **more))
    stage.until(Phase.MASK).play(silent=[5]).close()
    while stage.server.phase is not None:
        stage.play().close()
    assert stage.server.blamed.keys() == {0}
    purposes = check(uses)
    assert purposes[SEALED] == 42 + 7, "letters and deposits"
    assert purposes[KEYED] == 21 + 7, "agreements of pairs, and with the server"
    assert purposes[ONE_TIME] == sum(phase is not Phase.ADVERTISE for phase, _ in stage.sent)


def test_a_peers_key_in_the_place_of_the_servers_gives_no_key_that_the_peer_has(uses):
    """Client 0 agrees with client 3 twice, as its peer's peer and as its server's client: under different names."""
    session = a_session(4, 3, adversary="active")
    stage = Stage(session).until(Phase.SHARE)
    _, peers = parse_roster(body_of(stage.inbox[0]), signed=True)
    third = peers.pop(3)
    stage.inbox[0] = pack(session, Kind.ROSTER, SERVER, 0, roster(third.channel, peers))
    for member in session.members:
        stage.answer(Phase.SHARE, member)
    assert any(len(what) == 2 and {one[0] for one in what} == {KEYED} for what in uses.values())
    check(uses)
    assert stage.clients[0]._seal_key not in {
        key for pair in stage.clients[3]._keys.values() for key in vars(pair).values()
    }
