"""The envelope that every message of the protocol travels in.

Layout, little-endian: start ``PVSA``, version (1 byte), kind (1), session identity (32), round (4), sender (4),
receiver (4), length of the body (8), body, seal. The seal of a client's message under an active adversary is its
Ed25519 signature (64 bytes); of every other message it is 16 bytes of a digest that also covers the whole session. The
digest catches accidents, not attackers: as in the papers, clients and server talk over channels that are authenticated
already (TLS). Kind and sender tell the phase, so no message stands for another.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import (
    AlteredMessage,
    ForeignMessage,
    MalformedMessage,
    UnknownPeer,
    UnsupportedVersion,
)
from privfl.privacy.secagg.primitives import SIGNATURE_BYTES, sign, verify
from privfl.privacy.secagg.session import IDENTITY_BYTES, SERVER, VERSION, Session

_START = b"PVSA"
_HEADER = struct.Struct(f"<4sBB{IDENTITY_BYTES}sIIIQ")
_DIGEST_BYTES = 16
_SIGNED = b"privfl secure aggregation, signed message"


Body = bytes | tuple[bytes, memoryview]


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
    session: Session, kind: Kind, sender: int, receiver: int, body: Body, signing_key: bytes | None = None
) -> bytes:
    """``body``, whole or in parts, in its envelope, signed if a signing key (32 bytes) is given."""
    parts = (body,) if isinstance(body, bytes) else body
    header = _header(session, kind, sender, receiver, sum(map(len, parts)))
    digest = _digest(session, header, *parts)
    seal = digest[:_DIGEST_BYTES] if signing_key is None else sign(signing_key, _SIGNED + digest)
    return b"".join((header, *parts, seal))


def unpack(session: Session, data: bytes, receiver: int, verify_keys: dict[int, bytes] | None = None) -> Message:
    """The message in ``data``, if it is one of this session for this receiver, whole and unaltered.

    Args:
        session: the receiver's session.
        data: bytes from anywhere.
        receiver: the member's number, or ``SERVER``.
        verify_keys: every member's verification key, for the server under an active adversary.

    Raises:
        MalformedMessage: it is no message; also its kinds UnsupportedVersion and AlteredMessage.
        ForeignMessage: another session, round or receiver, or sent by a side that sends no such message.
        UnknownPeer: the sender is no member.
        BadSignature: the signature is not the sender's.
    """
    if not isinstance(data, bytes) or len(data) < _HEADER.size or not data.startswith(_START):
        raise MalformedMessage("these bytes are no message; they are too short or start otherwise.")
    _, version, number, identity, round, sender, addressee, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(f"the message is of version {version}, and this is version {VERSION}.")
    signed = verify_keys is not None
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
    digest = _digest(session, data[: _HEADER.size], body)
    if verify_keys is not None:
        verify(verify_keys[sender], seal, _SIGNED + digest)
    elif not hmac.compare_digest(seal, digest[:_DIGEST_BYTES]):
        raise AlteredMessage(f"the digest of a {kind.name} message is wrong; it was altered, or the sessions differ.")
    return Message(kind, sender, body, seal if signed else b"")


def check_signature(session: Session, kind: Kind, sender: int, body: bytes, signature: bytes, key: bytes) -> None:
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


def _digest(session: Session, header: bytes, *parts: bytes | memoryview) -> bytes:
    digest = sha256(session.fingerprint + header)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _name(number: int) -> str:
    return "the server" if number == SERVER else f"client {number}"
