"""A message counts where it was meant to: its session, its round, its receiver, whole and unaltered."""

import dataclasses

import pytest

from privfl.privacy.secagg.bodies import (
    MASK_KEY,
    SELF_MASK,
    PublicKeys,
    Request,
    Shares,
    answer,
    mailbox,
    numbers,
    parse_answer,
    parse_mailbox,
    parse_numbers,
    parse_roster,
    roster,
)
from privfl.privacy.secagg.errors import (
    AlteredMessage,
    BadShare,
    BadSignature,
    ForeignMessage,
    MalformedMessage,
    RepeatedPeer,
    SecAggError,
    UnknownPeer,
    UnsupportedVersion,
)
from privfl.privacy.secagg.messages import SERVER, Kind, pack, unpack
from privfl.privacy.secagg.shamir import SHARE_BYTES
from tests.privacy.secagg.staging import Stage, a_session

SESSION = a_session()
ACTIVE = a_session(adversary="active")
KEYS = Stage(ACTIVE).signing
VERIFY = Stage(ACTIVE).verifying


def test_what_is_packed_is_unpacked():
    message = unpack(SESSION, pack(SESSION, Kind.MASKED, 3, SERVER, b"words"), SERVER)
    assert (message.kind, message.sender, bytes(message.body), message.signature) == (Kind.MASKED, 3, b"words", b"")
    message = unpack(SESSION, pack(SESSION, Kind.ROSTER, SERVER, 2, b""), 2)
    assert (message.kind, message.sender, bytes(message.body)) == (Kind.ROSTER, SERVER, b"")
    signed = unpack(ACTIVE, pack(ACTIVE, Kind.KEYS, 3, SERVER, b"keys", KEYS[3]), SERVER, VERIFY)
    assert len(signed.signature) == 64


@pytest.mark.parametrize("session", [SESSION, ACTIVE])
def test_no_byte_of_a_message_can_be_changed_dropped_or_added(session):
    active = session.adversary == "active"
    data = pack(session, Kind.SHARES, 3, SERVER, b"some shares", KEYS[3] if active else None)
    for place in range(len(data)):
        for changed in (
            data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :],
            data[:place],
            data[:place] + b"\0" + data[place:],
            data[:place] + data[place + 1 :],
        ):
            with pytest.raises(SecAggError):
                unpack(session, changed, SERVER, VERIFY if active else None)
    with pytest.raises(MalformedMessage):
        unpack(session, bytearray(data), SERVER, VERIFY if active else None)


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
    refused(UnsupportedVersion, good[:4] + b"\x02" + good[5:])
    refused(MalformedMessage, good[:5] + b"\x63" + good[6:])
    refused(MalformedMessage, b"")
    refused(MalformedMessage, None)


def test_under_an_active_adversary_a_message_must_be_signed_by_its_sender():
    for data in (
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[2]),
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[1])[:-64] + bytes(64),
        pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys", KEYS[1])[:-64]
        + pack(ACTIVE, Kind.SHARES, 1, SERVER, b"keys", KEYS[1])[-64:],
    ):
        with pytest.raises(BadSignature):
            unpack(ACTIVE, data, SERVER, VERIFY)
    with pytest.raises(MalformedMessage):
        unpack(ACTIVE, pack(ACTIVE, Kind.KEYS, 1, SERVER, b"keys"), SERVER, VERIFY)


def test_bodies_and_back():
    keys = {4: PublicKeys(b"c" * 32, b"m" * 32), 2: PublicKeys(b"C" * 32, b"M" * 32)}
    assert parse_roster(memoryview(roster(keys)), signed=False) == keys
    signed = {2: PublicKeys(b"C" * 32, b"M" * 32, b"s" * 64)}
    assert parse_roster(memoryview(roster(signed)), signed=True) == signed
    sealed = {7: bytes(12 + 2 * SHARE_BYTES + 16), 2**32 - 2: b"z" * (12 + 2 * SHARE_BYTES + 16)}
    assert parse_mailbox(memoryview(mailbox(sealed))) == sealed
    assert parse_numbers(memoryview(numbers({9, 1, 70_000}))) == [1, 9, 70_000]
    request = Request([3, 1], [2], {1: b"s" * 64})
    assert Request.from_bytes(memoryview(request.to_bytes())) == request
    shares = {1: (SELF_MASK, b"a" * SHARE_BYTES), 5: (MASK_KEY, b"b" * SHARE_BYTES)}
    assert parse_answer(memoryview(answer(shares))) == shares
    pair = Shares(b"a" * SHARE_BYTES, b"b" * SHARE_BYTES)
    assert Shares.from_bytes(pair.to_bytes()) == pair
    assert "aaaa" not in repr(pair)


def test_bodies_of_a_wrong_length_or_with_a_name_twice_are_refused():
    entry = bytes(4 + 12 + 2 * SHARE_BYTES + 16)
    for parse, one in (
        (lambda body: parse_roster(body, signed=False), bytes(4 + 64)),
        (lambda body: parse_roster(body, signed=True), bytes(4 + 128)),
        (parse_mailbox, entry),
        (parse_numbers, bytes(4)),
        (parse_answer, bytes(5 + SHARE_BYTES)),
    ):
        assert len(parse(memoryview(one))) == 1
        for wrong in (one[:-1], one + b"\0"):
            with pytest.raises(MalformedMessage):
                parse(memoryview(wrong))
        with pytest.raises(RepeatedPeer):
            parse(memoryview(one + one))
    with pytest.raises(MalformedMessage, match="does not exist"):
        parse_answer(memoryview(bytes(4) + b"\x02" + bytes(SHARE_BYTES)))
    for lists in (([1, 1], []), ([], [2, 2])):
        with pytest.raises(RepeatedPeer):
            Request.from_bytes(memoryview(Request(*lists).to_bytes()))
    for wrong in (b"", bytes(7), b"\xff" * 8, Request([1], [2]).to_bytes() + b"\0"):
        with pytest.raises(MalformedMessage):
            Request.from_bytes(memoryview(wrong))
    with pytest.raises(BadShare):
        Shares.from_bytes(bytes(2 * SHARE_BYTES - 1))
