"""What the server refuses, each by its name; a refused message changes nothing, and a good one may still come."""

import dataclasses

import numpy as np
import pytest

from privfl.privacy.secagg import errors
from privfl.privacy.secagg.bodies import (
    Dealing,
    answer,
    confirmation,
    parse_answer,
    parse_confirmation,
    parse_keys,
)
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK
from privfl.privacy.secagg.messages import SENT_IN, SERVER, Kind, Phase, body_of, pack
from privfl.privacy.secagg.primitives import SigningKey
from privfl.privacy.secagg.shamir import PRIME, SHARE_BYTES
from tests.privacy.secagg.staging import Stage, a_session, sum_of

SESSIONS = {"semi-honest": a_session(), "active": a_session(adversary="active")}
SHARE_OF_ZERO = bytes(SHARE_BYTES)


def staged(phase, adversary="semi-honest", lost=None, session=None):
    """A stage at which ``phase`` is open, and client 0's good message in it, not yet received."""
    stage = Stage(session or SESSIONS[adversary]).until(phase, lost)
    return stage, stage.answer(phase, 0)


def refuses(stage, error, data, good=None):
    """The server refuses ``data`` with exactly ``error``, takes the good message, and the sum is right."""
    with pytest.raises(errors.SecAggError) as caught:
        stage.receive(data)
    assert type(caught.value) is error, caught.value
    if good is None:
        return
    stage.receive(good)
    stage.play(silent=(0,)).close().until(None)
    assert stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.server.survivors)
    assert 0 in stage.server.survivors


@pytest.mark.parametrize("adversary", SESSIONS)
def test_altered_cut_replayed_and_foreign_messages_are_refused_in_every_phase(adversary):
    other_round = a_session(adversary=adversary, round=8)
    for phase in [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]:
        stage, good = staged(phase, adversary)
        altered = good[:60] + bytes([good[60] ^ 1]) + good[61:]
        signed = adversary == "active" and phase is Phase.ADVERTISE
        seal_error = errors.BadSignature if signed else errors.AlteredMessage
        keys = {member: SigningKey(key) if signed else key for member, key in stage.signing.items()}
        refuses(stage, seal_error, altered)
        refuses(stage, errors.MalformedMessage, good[:-1])
        refuses(stage, errors.MalformedMessage, good + b"\0")
        refuses(stage, errors.ForeignMessage, Stage(other_round).until(phase).answer(phase, 0))
        kind = next(kind for kind, sent_in in SENT_IN.items() if sent_in is phase)
        refuses(stage, errors.UnknownPeer, pack(stage.session, kind, 5, SERVER, b"", keys.get(0)))
        if adversary == "active":
            refuses(stage, seal_error, pack(stage.session, kind, 0, SERVER, b"", keys[1]))
        else:
            refuses(stage, errors.ForeignMessage, stage.from_server(1, b"", Kind.ROSTER))
        refuses(stage, errors.MalformedMessage, b"", good)


@pytest.mark.parametrize("adversary", SESSIONS)
def test_repeated_early_and_late_messages_are_refused(adversary):
    whole = Stage(SESSIONS[adversary]).until(None)
    phases = sorted({phase for phase, _ in whole.sent})
    stage = Stage(SESSIONS[adversary])
    for phase in phases:
        for other in phases:
            if other != phase:
                error = errors.LateMessage if other < phase else errors.EarlyMessage
                refuses(stage, error, whole.sent[other, 1])
        stage.play()
        refuses(stage, errors.RepeatedMessage, stage.sent[phase, 1])
        stage.close()
    refuses(stage, errors.LateMessage, whole.sent[Phase.UNMASK, 1])
    assert stage.server.result().tolist() == whole.server.result().tolist()


@pytest.mark.parametrize("adversary", SESSIONS)
def test_who_has_missed_a_phase_is_out(adversary):
    for phase in (Phase.SHARE, Phase.MASK, Phase.UNMASK):
        stage = Stage(SESSIONS[adversary]).until(phase)
        late = stage.answer(phase, 0)
        stage.play(silent=(0,)).close()
        if stage.server.phase is None:
            refuses(stage, errors.LateMessage, late)
            continue
        refuses(stage, errors.LateMessage, late)
        kind = next(kind for kind, sent_in in SENT_IN.items() if sent_in is stage.server.phase)
        refuses(stage, errors.DroppedClient, stage.from_client(0, kind, b""))


def test_keys_in_use_are_refused():
    stage, good = staged(Phase.ADVERTISE)
    mine, theirs = bytes(body_of(good)), bytes(body_of(stage.answer(Phase.ADVERTISE, 1)))
    stage = Stage(stage.session)
    stage.receive(stage.answer(Phase.ADVERTISE, 1))
    good = stage.answer(Phase.ADVERTISE, 0)
    for body in (theirs, stage.server._key.public):
        refuses(stage, errors.BadKey, stage.from_client(0, Kind.KEYS, body))
    for body in (b"", mine[:-1], mine + b"\0"):
        refuses(stage, errors.MalformedMessage, stage.from_client(0, Kind.KEYS, body))
    stage.receive(good)


def test_shares_for_others_than_the_roster_named_are_refused():
    stage, good = staged(Phase.SHARE, lost={Phase.ADVERTISE: (4,)})
    dealing = Dealing.from_bytes(body_of(good), signed=False)
    letters, some = dealing.letters, dict(list(dealing.letters.items())[:2])

    def dealt(letters):
        return dataclasses.replace(
            dealing, keys=dict.fromkeys(letters, bytes(96)), seeds=bytes(32 * len(letters) + 16), letters=letters
        ).to_bytes()

    for error, body in (
        (errors.UnknownPeer, dealt(letters | {0: letters[1]})),
        (errors.UnknownPeer, dealt(letters | {4: letters[1]})),
        (errors.UnknownPeer, dealt(letters | {9: letters[1]})),
        (errors.MissingPeer, dealt(some)),
        (errors.MissingPeer, dealt({})),
        (errors.MalformedMessage, dealing.to_bytes()[:-1]),
        (errors.MalformedMessage, b""),
        (errors.RepeatedPeer, bytes(32) + dealt(letters) + dealt({1: letters[1]})[64 + 48 :]),
    ):
        refuses(stage, error, stage.from_client(0, Kind.SHARES, body))
    refuses(stage, errors.MalformedMessage, b"", good)


def test_letters_that_their_dealer_has_not_signed_are_refused():
    stage, good = staged(Phase.SHARE, "active")
    dealing = Dealing.from_bytes(body_of(good), signed=True)
    others = Dealing.from_bytes(body_of(stage.answer(Phase.SHARE, 1)), signed=True)
    swapped = {**dealing.letters, 1: dealing.letters[2], 2: dealing.letters[1]}
    for change in ({"signature": bytes(64)}, {"signature": others.signature}, {"letters": swapped}):
        body = dataclasses.replace(dealing, **change).to_bytes()
        refuses(stage, errors.BadSignature, stage.from_client(0, Kind.SHARES, body))
    stage.receive(good)


@pytest.mark.parametrize("bits", [20, 32, 40])
def test_a_masked_vector_of_another_length_or_outside_the_ring_is_refused(bits):
    stage, good = staged(Phase.MASK, session=a_session(bits=bits))
    body = bytes(body_of(good))
    for wrong in (body[:-1], body + b"\0", body[:36], body + body[-4:]):
        refuses(stage, errors.BadVector, stage.from_client(0, Kind.MASKED, wrong))
    if bits % 32:
        outside = np.array([0, 1, 1 << bits], stage.session.word).tobytes()
        refuses(stage, errors.BadVector, stage.from_client(0, Kind.MASKED, body[:36] + outside))
    refuses(stage, errors.MalformedMessage, stage.from_client(0, Kind.MASKED, b""), good)


def test_a_confirmation_of_other_survivors_is_refused():
    stage, good = staged(Phase.CONFIRM, "active", lost={Phase.MASK: (4,)})
    _, tags = parse_confirmation(body_of(good))
    assert tags.keys() == {1, 2, 3}
    right = confirmation([0, 1, 2, 3], tags)
    turned = right[:4] + right[4:8] + right[12:16] + right[8:12] + right[16:]
    for body in (*(confirmation(named, tags) for named in ([0, 1, 2, 3, 4], [0, 1, 2], [], [9])), turned):
        refuses(stage, errors.InconsistentSurvivors, stage.from_client(0, Kind.CONFIRMATION, body))
    for error, to in (
        (errors.MissingPeer, {1, 2}),
        (errors.UnknownPeer, {1, 2, 3, 4}),
        (errors.UnknownPeer, {0, 1, 2, 3}),
    ):
        body = confirmation([0, 1, 2, 3], dict.fromkeys(to, bytes(16)))
        refuses(stage, error, stage.from_client(0, Kind.CONFIRMATION, body))
    refuses(stage, errors.MalformedMessage, stage.from_client(0, Kind.CONFIRMATION, b""), good)


def test_an_answer_with_other_shares_than_asked_for_is_refused():
    stage, good = staged(Phase.UNMASK, lost={Phase.SHARE: (4,), Phase.MASK: (3,)})
    shares = parse_answer(body_of(good))
    assert {peer: secret for peer, (secret, _) in shares.items()} == {
        0: SELF_MASK,
        1: SELF_MASK,
        2: SELF_MASK,
        3: MASK_KEY,
    }
    for error, given in (
        (errors.UnknownPeer, shares | {4: shares[1]}),
        (errors.UnknownPeer, shares | {9: shares[1]}),
        (errors.MissingPeer, {peer: shares[peer] for peer in (0, 1, 2)}),
        (errors.MissingPeer, {}),
        (errors.BadShare, shares | {3: (SELF_MASK, shares[3][1])}),
        (errors.BadShare, shares | {1: (MASK_KEY, shares[1][1])}),
        (errors.MalformedMessage, shares | {1: (7, shares[1][1])}),
        (errors.BadShare, shares | {1: (SELF_MASK, shares[1][1][:-1])}),
    ):
        refuses(stage, error, stage.from_client(0, Kind.ANSWER, answer(given)))
    refuses(
        stage, errors.RepeatedPeer, stage.from_client(0, Kind.ANSWER, answer(shares) + answer({1: shares[1]})), good
    )


def shifted(share):
    """A share at point 1 with which those of points 2 and 3 give the secret plus 2¹⁰⁰, a plausible secret."""
    weight = 2 * 3 * pow((2 - 1) * (3 - 1), -1, PRIME)  # Lagrange's, of the value at 0
    return ((int.from_bytes(share, "big") + (pow(weight, -1, PRIME) << 100)) % PRIME).to_bytes(SHARE_BYTES, "big")


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("share", [SHARE_OF_ZERO, b"\xff" * SHARE_BYTES, "of another", "shifted"])
def test_a_false_share_is_refused_and_costs_its_sender_only(victim, share):
    """Of client 2, who survived, of client 3, who dropped out, and of itself; the other three suffice."""
    stage, good = staged(Phase.UNMASK, lost={Phase.MASK: (3,)}, session=a_session(6, 4))
    shares = parse_answer(body_of(good))
    false = {"of another": shares[1][1], "shifted": shifted(shares[victim][1])}.get(share, share)
    body = answer(shares | {victim: (shares[victim][0], false)})
    with pytest.raises(errors.BadShare, match=f"client 0 reveals a false share of a secret of client {victim}"):
        stage.receive(stage.from_client(0, Kind.ANSWER, body))
    assert not stage.server.blamed, "it may still send a good one"
    stage.play(silent=(0,)).close()
    assert stage.server.blamed.keys() == {0}
    assert stage.server.survivors == {0, 1, 2, 4, 5}
    assert stage.server.result().tolist() == sum_of(stage.session, stage.vectors, stage.server.survivors)


@pytest.mark.parametrize("adversary", SESSIONS)
def test_a_message_in_the_name_of_another_is_refused_in_every_phase(adversary):
    for phase in [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]:
        stage, good = staged(phase, adversary)
        for connection in (1, 5, SERVER):
            with pytest.raises(errors.ForeignMessage, match="in the name of client 0"):
                stage.server.receive(good, connection)
        stage.server.receive(good, 0)


def test_a_key_in_another_form_is_refused():
    """The same point with the top bit set would pass for another key."""
    stage, good = staged(Phase.ADVERTISE)
    keys = parse_keys(body_of(good), b"")
    for public in (keys.channel[:31] + bytes([keys.channel[31] | 0x80]), (2**255 - 19 + 9).to_bytes(32, "little")):
        refuses(stage, errors.BadKey, stage.from_client(0, Kind.KEYS, public))
    stage.receive(good)


def test_nothing_is_to_be_had_before_its_time():
    stage = Stage(SESSIONS["semi-honest"])
    for refused in (stage.server.result, lambda: stage.server.survivors):
        with pytest.raises(errors.OutOfOrder):
            refused()
    stage.until(Phase.UNMASK)
    assert stage.server.survivors == set(range(5))
    with pytest.raises(errors.OutOfOrder, match="UNMASK"):
        stage.server.result()
    stage.until(None)
    with pytest.raises(errors.OutOfOrder):
        stage.close()


def test_a_point_of_low_order_loses_its_sender_and_nobody_else():
    """Every peer that agreed with such a point would be spent, so the server must not pass it on."""
    stage, good = staged(Phase.ADVERTISE)
    for bad in (bytes(32), bytes([1]) + bytes(31)):
        refuses(stage, errors.BadKey, pack(stage.session, Kind.KEYS, 0, SERVER, bad))
    refuses(stage, errors.MalformedMessage, good[:-1], good)
