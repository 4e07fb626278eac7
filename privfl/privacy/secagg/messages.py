"""The envelope that every message of the protocol travels in.

Layout, little-endian: start ``PVSA``, version (1 byte), kind (1), two zeros, session identity (32), round (4), sender
(4), receiver (4), length of the body (8), body, seal. The seal

* of a client's keys under an active adversary is its Ed25519 signature (64 bytes), which its peers check as well;
* of what it sends after them is 16 bytes of Poly1305 under a key that it has agreed on with the server (of its channel
  key and the server's, which comes with the roster), and that is another one for every header;
* of every other message is 16 bytes of a digest that also covers the whole session.

The digest catches accidents, not attackers: as in the papers, clients and server talk over channels that are
authenticated already (TLS). Kind and sender tell the phase, so no message stands for another.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from io import BytesIO

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import (
    AlteredMessage,
    ForeignMessage,
    MalformedMessage,
    UnknownPeer,
    UnsupportedVersion,
)
from privfl.privacy.secagg.primitives import SIGNATURE_BYTES, SigningKey, derive, one_time_tag, verify
from privfl.privacy.secagg.session import IDENTITY_BYTES, SERVER, VERSION, Session

_START = b"PVSA"
_HEADER = struct.Struct(
    f"<4sBBxx{IDENTITY_BYTES}sIIIQ"
)  # a multiple of four, so that words lie where they are added fast
_DIGEST_BYTES = 16
_SIGNED = b"privfl secure aggregation, signed message"


Verify = Callable[[bytes, bytes, bytes], None]
"""Checks a signature: verification key, signature, content."""


class Phase(IntEnum):
    """The five phases in their order; ``CONFIRM`` takes place under an active adversary only."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONFIRM = 3
    UNMASK = 4


class Kind(IntEnum):
    """What a message is. Clients send in a phase; the server's message opens the next one."""

    KEYS = 1
    ROSTER = 2
    SHARES = 3
    MAILBOX = 4
    MASKED = 5
    SURVIVORS = 6
    CONFIRMATION = 7
    REQUEST = 8
    ANSWER = 9


SENT_IN = {
    Kind.KEYS: Phase.ADVERTISE,
    Kind.SHARES: Phase.SHARE,
    Kind.MASKED: Phase.MASK,
    Kind.CONFIRMATION: Phase.CONFIRM,
    Kind.ANSWER: Phase.UNMASK,
}
"""The kinds that clients send, and the phase each belongs to."""


@dataclass(frozen=True)
class Message:
    """A message out of its envelope; ``signature`` is empty where none is due."""

    kind: Kind
    sender: int
    body: memoryview
    signature: bytes = field(repr=False)


def pack(
    session: Session, kind: Kind, sender: int, receiver: int, body: bytes, key: SigningKey | bytes | None = None
) -> bytes:
    """``body`` in its envelope.

    ``key`` is the sender's signing key if the kind is KEYS and the adversary active, its :func:`seal_key` (32 bytes) of
    any other kind that clients send, and nothing otherwise.
    """
    header = _header(session, kind, sender, receiver, len(body))
    if key is None:
        seal = _digest(session, header, body)[:_DIGEST_BYTES]
    elif isinstance(key, SigningKey):
        seal = key.sign(_SIGNED + _digest(session, header, body))
    else:
        seal = _tag(key, header, body)
    return b"".join((header, body, seal))


def pack_in_place(
    session: Session,
    kind: Kind,
    sender: int,
    start: bytes,
    room: int,
    fill: Callable[[memoryview], None],
    key: bytes,
) -> bytes:
    """What :func:`pack` makes for the server of ``start`` and of ``room`` more bytes, which ``fill`` writes.

    They are written where they are sent from: a vector is more than all else, and out of cache before it is copied.
    """
    header = _header(session, kind, sender, SERVER, len(start) + room)
    front = header + start
    message = BytesIO(bytes(len(front) + room + _DIGEST_BYTES))
    with message.getbuffer() as data, data[: len(front) + room] as sealed:
        sealed[: len(front)] = front
        fill(sealed[len(front) :])
        data[len(sealed) :] = _tag(key, header, sealed[len(header) :])
    return message.getvalue()


def seal_key(session: Session, client: int, agreed: bytes) -> bytes:
    """The 32-byte key that ``client`` seals its messages with, of what its channel key and the server's agree on."""
    return derive(agreed, session.fingerprint, b"seal" + struct.pack("<I", client))


def unpack(
    session: Session,
    data: bytes,
    receiver: int,
    key_of: Callable[[Kind, int], bytes | None] | None = None,
    verify: Verify = verify,
) -> Message:
    """The message in ``data``, if it is one of this session for this receiver, whole and unaltered.

    Args:
        session: the receiver's session.
        data: bytes from anywhere.
        receiver: the member's number, or ``SERVER``.
        key_of: for the server: what a kind of message from a member is sealed with (:func:`pack`), its verification key
            instead of its signing key.
        verify: checks signatures.

    Raises:
        MalformedMessage: it is no message; also its kinds UnsupportedVersion and AlteredMessage.
        ForeignMessage: another session, round or receiver, or sent by a side that sends no such message.
        UnknownPeer: the sender is no member.
        BadSignature: the signature is not the sender's.
        SecAggError: what ``key_of`` raises if there is no key.
    """
    if not isinstance(data, bytes) or len(data) < _HEADER.size or not data.startswith(_START):
        raise MalformedMessage("these bytes are no message; they are too short or start otherwise.")
    _, version, number, identity, round, sender, addressee, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(f"the message is of version {version}, and this is version {VERSION}.")
    signed = number == Kind.KEYS and session.adversary == "active"
    seal_bytes = SIGNATURE_BYTES if signed else _DIGEST_BYTES
    if len(data) != _HEADER.size + length + seal_bytes:
        raise MalformedMessage(
            f"a message of {len(data)} bytes says that its body has {length}; it is cut or too long."
        )
    if identity != session.identity:
        raise ForeignMessage("the message belongs to another session; a replay does not count.")
    if round != session.round:
        raise ForeignMessage(f"the message belongs to round {round}, and this is round {session.round}.")
    if addressee != receiver:
        raise ForeignMessage(f"the message is meant for {_name(addressee)}, not for {_name(receiver)}.")
    if number not in Kind._value2member_map_:
        raise MalformedMessage(f"a message is of kind {number}, which does not exist.")
    kind = Kind(number)
    if (kind in SENT_IN) != (receiver == SERVER) or (receiver != SERVER and sender != SERVER):
        raise ForeignMessage(f"{_name(sender)} may not send {kind.name} to {_name(receiver)}.")
    if receiver == SERVER and sender not in session.points:
        raise UnknownPeer(f"the message is from number {sender}, who is no member of the session.")
    body = memoryview(data)[_HEADER.size : _HEADER.size + length]
    seal = data[_HEADER.size + length :]
    key = None if receiver != SERVER or key_of is None else key_of(kind, sender)
    header = data[: _HEADER.size]
    if key is None:
        good = hmac.compare_digest(seal, _digest(session, header, body)[:_DIGEST_BYTES])
    elif kind is Kind.KEYS:
        verify(key, seal, _SIGNED + _digest(session, header, body))
        good = True
    else:
        good = hmac.compare_digest(seal, _tag(key, header, body))
    if not good:
        raise AlteredMessage(f"the seal of a {kind.name} message is wrong; it was altered, or the sessions differ.")
    return Message(kind, sender, body, seal if signed else b"")


def body_of(data: bytes) -> memoryview:
    """The body of a message that is known to be good; nothing is checked."""
    return memoryview(data)[_HEADER.size :][: _HEADER.unpack_from(data)[-1]]


def check_signature(
    session: Session, kind: Kind, sender: int, body: bytes, signature: bytes, key: bytes, verify: Verify = verify
) -> None:
    """Return if ``signature`` is that of ``sender``'s message to the server, handed on without its envelope.

    Raises:
        BadSignature: it is not.
    """
    digest = _digest(session, _header(session, kind, sender, SERVER, len(body)), body)
    verify(key, signature, _SIGNED + digest)


def check_verify_keys(session: Session, keys: Mapping[int, bytes] | None) -> None:
    """Return if there is one verification key for every member under an active adversary, and none else.

    Raises:
        ConfigError: there is not; or two members have the same key, so one person could sign as two.
    """
    if (keys is None) != (session.adversary == "semi-honest"):
        raise ConfigError("verification keys are for an active adversary, and needed there: give all of them, or none.")
    if keys is not None:
        if keys.keys() != set(session.members):
            raise ConfigError("verification keys must be given for the session's members, all and only them.")
        if len(set(keys.values())) < len(keys):
            raise ConfigError("two members have the same verification key; everybody needs an own one.")


def _header(session: Session, kind: Kind, sender: int, receiver: int, length: int) -> bytes:
    return _HEADER.pack(_START, VERSION, kind, session.identity, session.round, sender, receiver, length)


def _digest(session: Session, header: bytes, body: bytes | memoryview) -> bytes:
    digest = sha256(session.fingerprint + header)
    digest.update(body)
    return digest.digest()


def _tag(key: bytes, header: bytes, body: bytes | memoryview) -> bytes:
    """A tag whose key serves this header only, and a client sends one message under a header."""
    return one_time_tag(hmac.digest(key, header, "sha256"), body)


def _name(number: int) -> str:
    return "the server" if number == SERVER else f"client {number}"
