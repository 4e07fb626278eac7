"""What the messages of the protocol carry: fixed-width entries, counted by their length.

Parsing checks form only (lengths, lists without repetition); what a list may contain is the receiver's business.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from privfl.privacy.secagg.errors import BadVector, MalformedMessage, RepeatedPeer
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK, Letter
from privfl.privacy.secagg.merkle import HASH_BYTES, depth_for
from privfl.privacy.secagg.primitives import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.shamir import SHARE_BYTES

Words = NDArray[np.uint32] | NDArray[np.uint64]
"""A vector of the ring: unsigned words of 4 or 8 bytes."""

PAIR_SEED = 2
"""What a client reveals instead of a share of a culprit's mask key: the seed of the mask that it has with it."""

COMMITMENT_BYTES = 32
CONFIRMATION_BYTES = TAG_BYTES
_NUMBER = struct.Struct("<I")
_SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES
_PAIR_BYTES = 2 * COMMITMENT_BYTES
_TRIPLE_BYTES = 3 * COMMITMENT_BYTES
_REVEALED_BYTES = {MASK_KEY: SHARE_BYTES, SELF_MASK: SHARE_BYTES, PAIR_SEED: KEY_BYTES}


@dataclass(frozen=True)
class PublicKeys:
    """A client's X25519 key, and its signature of it under an active adversary (else empty)."""

    channel: bytes
    signature: bytes = b""


@dataclass(frozen=True)
class Dealing:
    """What a client sends when it shares its secrets: a letter for every peer, and what proves a lie later.

    Args:
        own: commitments to the two shares that it keeps itself.
        keys: by peer, commitments to the key of the letter to it, of the letter from it, and to the seed of their mask.
        seeds: the seeds of the dealer's masks with these peers, sealed under the key that it shares among them.
        letters: by peer; their signatures and paths are empty here.
        signature: of the root of the letters' hash tree, empty if the adversary is semi-honest.
    """

    own: bytes
    keys: Mapping[int, bytes]
    seeds: bytes
    letters: Mapping[int, Letter]
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """The body of a SHARES message."""
        entries = (
            _NUMBER.pack(peer) + self.keys[peer] + letter.commitments + letter.sealed
            for peer, letter in self.letters.items()
        )
        return b"".join((self.own, self.signature, self.seeds, *entries))

    @classmethod
    def from_bytes(cls, body: memoryview, signed: bool) -> Dealing:
        """The body of a SHARES message; ``signed`` says whether the letters are."""
        start, commitments = _PAIR_BYTES + SIGNATURE_BYTES * signed, _TRIPLE_BYTES + _PAIR_BYTES
        width = commitments + _SEALED_BYTES
        peers, rest = divmod(len(body) - start - TAG_BYTES, _NUMBER.size + width + KEY_BYTES)
        if peers < 0 or rest:
            raise MalformedMessage(f"a dealing of shares has {len(body)} bytes; that is none for any number of peers.")
        end = start + TAG_BYTES + KEY_BYTES * peers
        entries = _entries(body[end:], width, "dealing of shares")
        return cls(
            bytes(body[:_PAIR_BYTES]),
            {peer: one[:_TRIPLE_BYTES] for peer, one in entries.items()},
            bytes(body[start:end]),
            {peer: Letter(one[_TRIPLE_BYTES:commitments], one[commitments:]) for peer, one in entries.items()},
            bytes(body[_PAIR_BYTES:start]),
        )


def parse_keys(body: memoryview, signature: bytes) -> PublicKeys:
    """The body of a KEYS message."""
    if len(body) != KEY_BYTES:
        raise MalformedMessage(f"a public key has {KEY_BYTES} bytes, not {len(body)}.")
    return PublicKeys(bytes(body), signature)


def roster(server: bytes, keys: Mapping[int, PublicKeys]) -> bytes:
    """The body of a ROSTER message: the server's public key (32 bytes), then by peer number, key and any signature."""
    return server + b"".join(_NUMBER.pack(peer) + one.channel + one.signature for peer, one in keys.items())


def parse_roster(body: memoryview, signed: bool) -> tuple[bytes, dict[int, PublicKeys]]:
    """The body of a ROSTER message: the server's key, and the peers'; ``signed`` says whether these have signatures."""
    if len(body) < KEY_BYTES:
        raise MalformedMessage(f"a roster has {len(body)} bytes; it must have {KEY_BYTES} or more.")
    entries = _entries(body[KEY_BYTES:], KEY_BYTES + SIGNATURE_BYTES * signed, "roster")
    return bytes(body[:KEY_BYTES]), {
        peer: PublicKeys(one[:KEY_BYTES], one[KEY_BYTES:]) for peer, one in entries.items()
    }


def mailbox(letters: Mapping[int, Letter]) -> bytes:
    """The body of a MAILBOX message: number of the dealer, commitments, sealed shares and, if signed, the proof."""
    return b"".join(
        _NUMBER.pack(dealer) + one.commitments + one.sealed + one.signature + one.path
        for dealer, one in letters.items()
    )


def parse_mailbox(body: memoryview, session: Session) -> dict[int, Letter]:
    """The body of a MAILBOX message: letters by dealer."""
    signature, path = 0, 0
    if session.adversary == "active":
        signature, path = SIGNATURE_BYTES, HASH_BYTES * depth_for(session.degree)
    ends = list(accumulate((_PAIR_BYTES, _SEALED_BYTES, signature, path)))
    entries = _entries(body, ends[-1], "mailbox")
    return {
        dealer: Letter(one[: ends[0]], one[ends[0] : ends[1]], one[ends[1] : ends[2]], one[ends[2] :])
        for dealer, one in entries.items()
    }


def before_words(commitment: bytes, accusations: Mapping[int, bytes]) -> bytes:
    """The body of a MASKED message without the vector's words, which follow.

    Commitment to the self-mask seed (32 bytes), number of accusations, dealer and opened key of each.
    """
    charges = b"".join(_NUMBER.pack(dealer) + key for dealer, key in accusations.items())
    return commitment + _NUMBER.pack(len(accusations)) + charges


def parse_masked(body: memoryview, session: Session) -> tuple[bytes, dict[int, bytes], Words]:
    """The body of a MASKED message; the words are a view of it.

    Raises:
        MalformedMessage: it is cut short, or its accusations are not what they should be.
        BadVector: its length is not the session's, or a number lies outside the ring.
    """
    start = COMMITMENT_BYTES + _NUMBER.size
    if len(body) < start:
        raise MalformedMessage(f"a masked vector has {len(body)} bytes; it must have more than {start}.")
    (count,) = _NUMBER.unpack_from(body, COMMITMENT_BYTES)
    end = start + count * (_NUMBER.size + KEY_BYTES)
    due = end + session.length * session.word.itemsize
    if len(body) != due:
        raise BadVector(f"a masked vector of {session.length} numbers has {due} bytes, not {len(body)}.")
    accusations = _entries(body[start:end], KEY_BYTES, "list of accusations")
    words: Words = np.frombuffer(body[end:], session.word)
    check_ring(words, session)
    return bytes(body[:COMMITMENT_BYTES]), accusations, words


def reduce(words: Words, session: Session) -> None:
    """Reduce ``words`` to the session's ring, in place; a ring of whole words needs nothing."""
    if session.bits < 8 * session.word.itemsize:
        words &= words.dtype.type(session.largest)


def check_ring(words: Words, session: Session) -> None:
    """Return if every number lies in the session's ring.

    Raises:
        BadVector: one does not.
    """
    if session.bits < 8 * session.word.itemsize and int(words.max()) > session.largest:
        # The number may be private, so the sentence does not tell it.
        raise BadVector(f"a vector holds a number outside the ring of {session.bits} bits; reduce it modulo the ring.")


def numbers(peers: Iterable[int]) -> bytes:
    """The body of a SURVIVORS message: numbers in rising order."""
    ordered = sorted(peers)
    return struct.pack(f"<{len(ordered)}I", *ordered)


def parse_numbers(body: memoryview | bytes) -> list[int]:
    """The body of a SURVIVORS message."""
    return list(_entries(body, 0, "list of survivors"))


def confirmation(survivors: Iterable[int], tags: Mapping[int, bytes]) -> bytes:
    """The body of a CONFIRMATION message: how many survivors, their numbers, and for each peer a tag (16 bytes)."""
    named = numbers(survivors)
    return b"".join(
        (_NUMBER.pack(len(named) // _NUMBER.size), named, *(_NUMBER.pack(peer) + tag for peer, tag in tags.items()))
    )


def parse_confirmation(body: memoryview) -> tuple[list[int], dict[int, bytes]]:
    """The body of a CONFIRMATION message: the survivors, and the tags by the peer they are for."""
    if len(body) < _NUMBER.size:
        raise MalformedMessage(f"a confirmation has {len(body)} bytes; it must have {_NUMBER.size} or more.")
    (count,) = _NUMBER.unpack_from(body)
    end = _NUMBER.size * (1 + count)
    if len(body) < end:
        raise MalformedMessage(f"a confirmation names {count} survivors in {len(body)} bytes.")
    return parse_numbers(body[_NUMBER.size : end]), _entries(body[end:], CONFIRMATION_BYTES, "list of confirmations")


@dataclass(frozen=True)
class Request:
    """What the server asks for to unmask the sum, and its warrant.

    Args:
        survivors: of whose self-masks it asks shares.
        dropped: of whose mask keys it asks shares.
        culprits: those among the dropped of whom it asks the pair's seed instead, because too few hold good shares.
        confirmations: what the survivors have confirmed to this client, by member; none if the adversary is
            semi-honest.
    """

    survivors: Sequence[int]
    dropped: Sequence[int]
    culprits: Sequence[int] = ()
    confirmations: Mapping[int, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The body of a REQUEST message: three lengths, three lists, number and tag of every confirmation."""
        lists = (self.survivors, self.dropped, self.culprits)
        tags = b"".join(_NUMBER.pack(peer) + one for peer, one in self.confirmations.items())
        named = [number for one in lists for number in one]
        return struct.pack(f"<III{len(named)}I", *map(len, lists), *named) + tags

    @classmethod
    def from_bytes(cls, body: memoryview) -> Request:
        """The body of a REQUEST message; each list is free of repetitions, but several may name the same peer."""
        if len(body) < 12:
            raise MalformedMessage(f"a request has {len(body)} bytes; it must have 12 or more.")
        ends = list(accumulate(struct.unpack_from("<III", body), initial=0))
        first, second, third, fourth = (12 + 4 * end for end in ends)
        if len(body) < fourth:
            raise MalformedMessage(f"a request names {ends[-1]} peers in {len(body)} bytes.")
        return cls(
            list(_entries(body[first:second], 0, "list of survivors")),
            list(_entries(body[second:third], 0, "list of dropped clients")),
            list(_entries(body[third:fourth], 0, "list of culprits")),
            _entries(body[fourth:], CONFIRMATION_BYTES, "list of confirmations"),
        )


def answer(revealed: Mapping[int, tuple[int, bytes]]) -> bytes:
    """The body of an ANSWER message: peer, what is revealed, and the share (33 bytes) or seed (32 and a zero)."""
    return b"".join(
        _NUMBER.pack(peer) + bytes([what]) + one.ljust(SHARE_BYTES, b"\0") for peer, (what, one) in revealed.items()
    )


def parse_answer(body: memoryview) -> dict[int, tuple[int, bytes]]:
    """The body of an ANSWER message."""
    revealed = {}
    for peer, one in _entries(body, 1 + SHARE_BYTES, "answer").items():
        if (width := _REVEALED_BYTES.get(one[0])) is None:
            raise MalformedMessage("an answer holds a share of a secret that does not exist.")
        if any(one[1 + width :]):
            raise MalformedMessage("an answer has something left over.")
        revealed[peer] = one[0], one[1 : 1 + width]
    return revealed


def _entries(body: memoryview | bytes, width: int, what: str) -> dict[int, bytes]:
    """Peer and ``width`` bytes, again and again.

    Raises:
        MalformedMessage: the length is no multiple of an entry's.
        RepeatedPeer: a peer has two entries.
    """
    step = _NUMBER.size + width
    if len(body) % step:
        raise MalformedMessage(f"a {what} has {len(body)} bytes, which is no multiple of {step}.")
    entry = f"<I{width}s"
    entries: dict[int, bytes] = dict(struct.iter_unpack(entry, body))
    if len(entries) * step < len(body):
        twice = [
            peer for peer, times in Counter(peer for peer, _ in struct.iter_unpack(entry, body)).items() if times > 1
        ]
        raise RepeatedPeer(f"a {what} names {', '.join(map(str, twice[:5]))} twice.")
    return entries
