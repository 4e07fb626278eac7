"""A message counts where it was meant to: its session, its round, its receiver, whole and unaltered."""

import dataclasses

import numpy as np
import pytest

from privfl.privacy.secagg.bodies import (
    PAIR_SEED,
    Dealing,
    PublicKeys,
    Request,
    answer,
    before_words,
    confirmation,
    mailbox,
    numbers,
    parse_answer,
    parse_confirmation,
    parse_mailbox,
    parse_masked,
    parse_numbers,
    parse_roster,
    roster,
)
from privfl.privacy.secagg.errors import (
    AlteredMessage,
    BadSignature,
    BadVector,
    ForeignMessage,
    MalformedMessage,
    RepeatedPeer,
    SecAggError,
    UnknownPeer,
    UnsupportedVersion,
)
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK, Letter
from privfl.privacy.secagg.messages import SERVER, Kind, body_of, pack, seal_key, unpack
from privfl.privacy.secagg.primitives import SigningKey
from privfl.privacy.secagg.shamir import SHARE_BYTES
from tests.privacy.secagg.staging import Stage, a_session

SESSION = a_session()
ACTIVE = a_session(adversary="active")
SEALED = 12 + 2 * SHARE_BYTES + 16
KEYS = {member: SigningKey(key) for member, key in Stage(ACTIVE).signing.items()}
VERIFY = Stage(ACTIVE).verifying
SEALS = {member: seal_key(ACTIVE, member, b"agreed") for member in ACTIVE.members}


def key_of(kind, sender):
    return VERIFY[sender] if kind is Kind.KEYS else SEALS[sender]


def test_what_is_packed_is_unpacked():
    message = unpack(SESSION, pack(SESSION, Kind.MASKED, 3, SERVER, b"words"), SERVER)
    assert (message.kind, message.sender, bytes(message.body), message.signature) == (Kind.MASKED, 3, b"words", b"")
    message = unpack(SESSION, pack(SESSION, Kind.ROSTER, SERVER, 2, b""), 2)
    assert (message.kind, message.sender, bytes(message.body)) == (Kind.ROSTER, SERVER, b"")
    signed = unpack(ACTIVE, pack(ACTIVE, Kind.KEYS, 3, SERVER, b"keys", KEYS[3]), SERVER, key_of)
    assert len(signed.signature) == 64
    sealed = unpack(ACTIVE, pack(ACTIVE, Kind.MASKED, 3, SERVER, b"words", SEALS[3]), SERVER, key_of)
    assert (bytes(sealed.body), sealed.signature) == (b"words", b"")


@pytest.mark.parametrize(
    ("session", "kind", "key"),
    [(SESSION, Kind.KEYS, None), (ACTIVE, Kind.KEYS, KEYS[3]), (ACTIVE, Kind.SHARES, SEALS[3])],
)
def test_no_byte_of_a_message_can_be_changed_dropped_or_added(session, kind, key):
    data, keys = pack(session, kind, 3, SERVER, b"some shares", key), key_of if key else None
    assert bytes(unpack(session, data, SERVER, keys).body) == bytes(body_of(data)) == b"some shares"
    for place in range(len(data)):
        for changed in (
            data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :],
            data[:place],
            data[:place] + b"\0" + data[place:],
            data[:place] + data[place + 1 :],
        ):
            with pytest.raises(SecAggError):
                unpack(session, changed, SERVER, keys)
    with pytest.raises(MalformedMessage):
        unpack(session, bytearray(data), SERVER, keys)


def test_messages_from_elsewhere_are_refused_by_name():
    def refused(error, data, receiver=SERVER):
        with pytest.raises(error) as caught:
            unpack(SESSION, data, receiver)
        assert type(caught.value) is error

    refused(ForeignMessage, pack(dataclasses.replace(SESSION, identity=bytes(32)), Kind.KEYS, 1, SERVER, b""))
    refused(ForeignMessage, pack(dataclasses.replace(SESSION, round=8), Kind.KEYS, 1, SERVER, b""))
    refused(AlteredMessage, pack(dataclasses.replace(SESSION, threshold=4, quorum=4), Kind.KEYS, 1, SERVER, b""))
    refused(ForeignMessage, pack(SESSION, Kind.ROSTER, SERVER, 1, b""), 2)
    refused(ForeignMessage, pack(SESSION, Kind.ROSTER, SERVER, SERVER, b""))
    refused(ForeignMessage, pack(SESSION, Kind.KEYS, 1, 2, b""), 2)
    refused(ForeignMessage, pack(SESSION, Kind.ROSTER, 1, 2, b""), 2)
    refused(UnknownPeer, pack(SESSION, Kind.KEYS, 77, SERVER, b""))
    good = pack(SESSION, Kind.KEYS, 1, SERVER, b"")
    refused(UnsupportedVersion, good[:4] + b"\x01" + good[5:])
    refused(MalformedMessage, good[:5] + b"\x63" + good[6:])
    refused(MalformedMessage, b"")
    refused(MalformedMessage, None)


def test_under_an_active_adversary_keys_must_be_signed_by_their_owner():
    for data in (
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[2]),
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[1])[:-64] + bytes(64),
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[1])[:-64]
        + pack(ACTIVE, Kind.KEYS, 2, SERVER, b"keys", KEYS[1])[-64:],
    ):
        with pytest.raises(BadSignature):
            unpack(ACTIVE, data, SERVER, key_of)
    with pytest.raises(MalformedMessage):
        unpack(ACTIVE, pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys"), SERVER, key_of)


def test_every_other_message_must_be_sealed_by_its_sender_for_its_place():
    good = pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shares", SEALS[1])
    for other in (
        pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shares"),
        pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shares", SEALS[2]),
        pack(ACTIVE, Kind.MASKED, 1, SERVER, b"shares", SEALS[1]),
        pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shareS", SEALS[1]),
        pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shares", seal_key(SESSION, 1, b"agreed")),
        pack(ACTIVE, Kind.SHARES, 1, SERVER, b"shares", seal_key(ACTIVE, 1, b"other")),
    ):
        with pytest.raises(AlteredMessage):
            unpack(ACTIVE, good[:-16] + other[-16:], SERVER, key_of)


def test_bodies_and_back():
    keys = {4: PublicKeys(b"c" * 32), 2: PublicKeys(b"C" * 32)}
    assert parse_roster(memoryview(roster(b"S" * 32, keys)), signed=False) == (b"S" * 32, keys)
    signed = {2: PublicKeys(b"C" * 32, b"s" * 64)}
    assert parse_roster(memoryview(roster(b"S" * 32, signed)), signed=True) == (b"S" * 32, signed)
    for session, proof in ((SESSION, {}), (ACTIVE, {"signature": b"s" * 64, "path": b"p" * 64})):
        letters = {7: Letter(b"c" * 64, b"z" * SEALED), 2**32 - 2: Letter(b"C" * 64, b"Z" * SEALED)}
        proven = {peer: dataclasses.replace(letter, **proof) for peer, letter in letters.items()}
        assert parse_mailbox(memoryview(mailbox(proven)), session) == proven
        dealing = Dealing(b"o" * 64, dict.fromkeys(letters, b"k" * 96), b"s" * 80, letters, proof.get("signature", b""))
        assert Dealing.from_bytes(memoryview(dealing.to_bytes()), signed=bool(proof)) == dealing
    words = np.array([1, 2, 3], np.uint32)
    committed, accusations, again = parse_masked(
        memoryview(before_words(b"c" * 32, {9: b"k" * 32}) + words.tobytes()), SESSION
    )
    assert (committed, accusations, again.tolist()) == (b"c" * 32, {9: b"k" * 32}, [1, 2, 3])
    assert parse_numbers(memoryview(numbers({9, 1, 70_000}))) == [1, 9, 70_000]
    said = confirmation({3, 1}, {5: b"t" * 16})
    assert parse_confirmation(memoryview(said)) == ([1, 3], {5: b"t" * 16})
    request = Request([3, 1], [2, 5], [5], {1: b"s" * 16})
    assert Request.from_bytes(memoryview(request.to_bytes())) == request
    revealed = {1: (SELF_MASK, b"a" * SHARE_BYTES), 5: (MASK_KEY, b"b" * SHARE_BYTES), 6: (PAIR_SEED, b"c" * 32)}
    assert parse_answer(memoryview(answer(revealed))) == revealed


def dealt_to(body):
    return Dealing.from_bytes(body, signed=False).letters


def dealt_to_signed(body):
    return Dealing.from_bytes(body, signed=True).letters


def test_bodies_of_a_wrong_length_or_with_a_name_twice_are_refused():
    server, own, one_seed = bytes(32), bytes(64), bytes(32)
    for parse, start, one in (
        (lambda body: parse_roster(body, signed=False)[1], server, bytes(4 + 32)),
        (lambda body: parse_roster(body, signed=True)[1], server, bytes(4 + 96)),
        (lambda body: parse_mailbox(body, SESSION), b"", bytes(4 + 64 + SEALED)),
        (lambda body: parse_mailbox(body, ACTIVE), b"", bytes(4 + 64 + SEALED + 64 + 64)),
        (dealt_to, own + bytes(16) + one_seed, bytes(4 + 96 + 64 + SEALED)),
        (dealt_to_signed, own + own + bytes(16) + one_seed, bytes(4 + 96 + 64 + SEALED)),
        (lambda body: parse_confirmation(body)[1], bytes(4), bytes(4 + 16)),
        (parse_numbers, b"", bytes(4)),
        (parse_answer, b"", bytes(5 + SHARE_BYTES)),
    ):
        assert len(parse(memoryview(start + one))) == 1
        for wrong in (one[:-1], one + b"\0"):
            with pytest.raises(MalformedMessage):
                parse(memoryview(start + wrong))
        if start:
            with pytest.raises(MalformedMessage):
                parse(memoryview(start[:-1]))
        more = one_seed if parse in (dealt_to, dealt_to_signed) else b""
        with pytest.raises(RepeatedPeer):
            parse(memoryview(start + more + one + one))
    for what, one in ((3, bytes(SHARE_BYTES)), (2, bytes(32) + b"\1")):
        with pytest.raises(MalformedMessage, match=r"does not exist|left over"):
            parse_answer(memoryview(bytes(4) + bytes([what]) + one))
    words = np.zeros(3, np.uint32)
    good = before_words(bytes(32), {}) + words.tobytes()
    for error, wrong in (
        (MalformedMessage, good[:35]),
        (BadVector, good[:-1]),
        (BadVector, good[:32] + b"\1\0\0\0" + good[36:]),
        (RepeatedPeer, good[:32] + b"\2\0\0\0" + bytes(72) + good[36:]),
    ):
        with pytest.raises(error):
            parse_masked(memoryview(wrong), SESSION)
    with pytest.raises(MalformedMessage, match="names 9"):
        parse_confirmation(memoryview(b"\x09\0\0\0" + bytes(35)))
    for lists in (([1, 1], [], []), ([], [2, 2], []), ([], [], [3, 3])):
        with pytest.raises(RepeatedPeer):
            Request.from_bytes(memoryview(Request(*lists).to_bytes()))
    for wrong in (b"", bytes(11), b"\xff" * 12, Request([1], [2]).to_bytes() + b"\0"):
        with pytest.raises(MalformedMessage):
            Request.from_bytes(memoryview(wrong))
