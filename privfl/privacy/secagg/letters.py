"""Letters: a dealer's two shares for one holder, sealed, and what it commits to so that a lie can be proven.

A dealer commits to every share it deals, and both ends of a pair commit to the keys of their letters. A holder whose
letter is bad can then open that one letter's key to the server, which convicts the dealer or the holder, whoever lies.
What this opens is a letter of the dealer's to the holder who accuses it, no more: there is a key for each direction.

Under an active adversary the dealer also signs its letters (one signature under a hash tree of all). Without that a
server could garble good letters, have their holders open the keys, and open the true letters by them.

The commitments are hashes without a salt: a share is a uniform number of 264 bits to everybody who holds fewer than the
threshold of them, so there is nothing to try out.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from privfl.privacy.secagg import merkle, shamir
from privfl.privacy.secagg.errors import BadShare, BadSignature
from privfl.privacy.secagg.primitives import KEY_BYTES, NONCE_BYTES, SigningKey, derive, seal, unseal, verify
from privfl.privacy.secagg.session import VERSION, Session
from privfl.privacy.secagg.shamir import SHARE_BYTES

MASK_KEY, SELF_MASK = 0, 1
"""The two secrets that a client shares; of one peer a client reveals its share of one of them.

The mask key is that under which the client has deposited the seeds of its masks with the server (:func:`seal_seeds`).
"""

_MASK_KEY, _SELF_MASK = bytes([MASK_KEY]), bytes([SELF_MASK])
_PAIR = struct.Struct("<II")
_PRIME = shamir.PRIME.to_bytes(SHARE_BYTES, "big")  # of one length, bytes are in the order of their numbers
_SIGNED = b"privfl secure aggregation, letters"


@dataclass(frozen=True)
class Shares:
    """One holder's shares of one client's mask key and self-mask seed."""

    mask_key: bytes = field(repr=False)
    self_mask: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Both, one after the other."""
        return self.mask_key + self.self_mask

    @classmethod
    def from_bytes(cls, data: bytes) -> Shares:
        """The two shares in ``data``.

        Raises:
            BadShare: the length is not that of two shares, or one is no element of the field.
        """
        if len(data) != 2 * SHARE_BYTES:
            raise BadShare(f"a sealed pair of shares has {len(data)} bytes; it must have {2 * SHARE_BYTES}.")
        pair = cls(data[:SHARE_BYTES], data[SHARE_BYTES:])
        if max(pair.mask_key, pair.self_mask) >= _PRIME:
            raise BadShare("a sealed share is no element of the field.")
        return pair


@dataclass(frozen=True)
class PairKeys:
    """What two clients share: a key for letters in either direction, one to confirm under, and their mask's seed."""

    outgoing: bytes = field(repr=False)
    incoming: bytes = field(repr=False)
    confirming: bytes = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(slots=True)  # not frozen, which would take three times as long to make, a few times for every pair
class Letter:
    """A letter as it travels: two share commitments, the sealed shares and, if signed, signature and path to its root.

    The signature (64 bytes) is the dealer's, of the root of the hash tree of all its letters.
    """

    commitments: bytes
    sealed: bytes
    signature: bytes = b""
    path: bytes = b""

    def leaf(self, holder: int) -> bytes:
        """This letter's leaf in the dealer's hash tree."""
        return merkle.leaf(struct.pack("<I", holder) + self.commitments + self.sealed)


def pair_keys(session: Session, client: int, peer: int, agreed: bytes) -> PairKeys:
    """The keys that ``client`` shares with ``peer``, of what their channel keys agree on.

    Each says nothing of the others (RFC 5869), and they are bound to the session, so that neither another round nor
    another session could repeat one even with the same channel keys.
    """
    pair = _PAIR.pack(min(client, peer), max(client, peer))
    drawn = derive(agreed, session.fingerprint, b"pair" + pair, 4 * KEY_BYTES)
    upward, downward = drawn[:KEY_BYTES], drawn[KEY_BYTES : 2 * KEY_BYTES]
    both = drawn[2 * KEY_BYTES : 3 * KEY_BYTES], drawn[3 * KEY_BYTES :]
    return PairKeys(upward, downward, *both) if client < peer else PairKeys(downward, upward, *both)


def seal_seeds(session: Session, client: int, mask_key: bytes, seeds: Mapping[int, bytes]) -> bytes:
    """The ``seeds`` of ``client``'s masks by peer, for the server to keep: it can open them with ``mask_key`` only.

    The key seals nothing else, so its nonce is fixed.
    """
    plain = b"".join(seeds[peer] for peer in sorted(seeds))
    return seal(mask_key, bytes(NONCE_BYTES), plain, b"mask seeds" + session.fingerprint + struct.pack("<I", client))


def open_seeds(
    session: Session, client: int, mask_key: bytes, sealed: bytes, peers: Collection[int]
) -> dict[int, bytes]:
    """By peer the seeds that :func:`seal_seeds` has sealed.

    Raises:
        BadCiphertext: the key is not the one, or they were sealed for somebody else.
    """
    bound = b"mask seeds" + session.fingerprint + struct.pack("<I", client)
    plain = unseal(mask_key, bytes(NONCE_BYTES), sealed, bound)
    return {peer: plain[place * KEY_BYTES :][:KEY_BYTES] for place, peer in enumerate(sorted(peers))}


def seed_commitment(session: Session, client: int, peer: int, seed: bytes) -> bytes:
    """32 bytes that fix the seed of the mask of two clients without showing it; the same from either side."""
    pair = _PAIR.pack(min(client, peer), max(client, peer))
    return sha256(b"mask seed" + session.fingerprint + pair + seed).digest()


def pair_commitments(session: Session, client: int, peer: int, keys: PairKeys) -> bytes:
    """``client``'s commitments to what it shares with ``peer``, 96 bytes: its letter's key, the peer's, the seed."""
    return (
        key_commitment(session, client, peer, keys.outgoing)
        + key_commitment(session, peer, client, keys.incoming)
        + seed_commitment(session, client, peer, keys.seed)
    )


def key_commitment(session: Session, dealer: int, holder: int, key: bytes) -> bytes:
    """32 bytes that fix the key of ``dealer``'s letter to ``holder`` without showing it."""
    return sha256(b"letter key" + session.fingerprint + _PAIR.pack(dealer, holder) + key).digest()


def share_commitment(session: Session, dealer: int, holder: int, secret: int, share: bytes) -> bytes:
    """32 bytes that fix ``holder``'s share of one of ``dealer``'s secrets without showing it."""
    return sha256(_share_of(session, dealer, holder) + bytes([secret]) + share).digest()


def share_commitments(session: Session, dealer: int, holder: int, shares: Shares) -> bytes:
    """The commitments (64 bytes) to both of ``holder``'s shares of ``dealer``'s secrets."""
    head = _share_of(session, dealer, holder)
    return sha256(head + _MASK_KEY + shares.mask_key).digest() + sha256(head + _SELF_MASK + shares.self_mask).digest()


def write_letter(
    session: Session, dealer: int, holder: int, key: bytes, shares: Shares, entropy: Callable[[int], bytes]
) -> Letter:
    """``shares`` sealed under ``key`` for ``holder``, with their commitments; not signed yet."""
    nonce = entropy(NONCE_BYTES)
    sealed = nonce + seal(key, nonce, shares.to_bytes(), _bound_to(session, dealer, holder))
    return Letter(share_commitments(session, dealer, holder, shares), sealed)


def open_letter(session: Session, dealer: int, holder: int, key: bytes, letter: Letter) -> Shares:
    """The shares in ``letter``: its holder and, once the key is open, the server find the same.

    Raises:
        BadCiphertext: it does not open.
        BadShare: what is in it is no pair of shares, or not that which the dealer committed to.
    """
    nonce, rest = letter.sealed[:NONCE_BYTES], letter.sealed[NONCE_BYTES:]
    shares = Shares.from_bytes(unseal(key, nonce, rest, _bound_to(session, dealer, holder)))
    if not hmac.compare_digest(share_commitments(session, dealer, holder, shares), letter.commitments):
        raise BadShare(f"client {dealer} sends client {holder} other shares than it has committed to.")
    return shares


def letter_tree(session: Session, letters: Mapping[int, Letter]) -> merkle.Tree:
    """The hash tree of a dealer's letters by holder, in their rising order."""
    leaves = [letters[holder].leaf(holder) for holder in sorted(letters)]
    return merkle.Tree(leaves, merkle.depth_for(session.degree))


def with_proofs(letters: Mapping[int, Letter], tree: merkle.Tree, signature: bytes) -> Mapping[int, Letter]:
    """A dealer's letters by holder, each with the proof that the dealer signed it: the root's signature, and a path."""
    paths = tree.paths()
    return {
        holder: Letter(letters[holder].commitments, letters[holder].sealed, signature, paths[place])
        for place, holder in enumerate(sorted(letters))
    }


def sign_letters(session: Session, dealer: int, root: bytes, signing_key: SigningKey) -> bytes:
    """``dealer``'s signature (64 bytes) of the root of all its letters."""
    return signing_key.sign(_signed_content(session, dealer, root))


def check_letters(session: Session, dealer: int, root: bytes, signature: bytes, verify_key: bytes) -> None:
    """Return if ``dealer`` has signed the letters under ``root``.

    Raises:
        BadSignature: it has not.
    """
    try:
        verify(verify_key, signature, _signed_content(session, dealer, root))
    except BadSignature as error:
        raise BadSignature(f"client {dealer} has not signed the letters that are said to be its own.") from error


def check_letter(session: Session, dealer: int, holder: int, letter: Letter, verify_key: bytes) -> None:
    """Return if ``dealer`` has signed this very ``letter`` to ``holder``.

    Raises:
        BadSignature: it has not, so whoever handed it on has altered it.
    """
    check_letters(session, dealer, merkle.root_over(letter.leaf(holder), letter.path), letter.signature, verify_key)


def _share_of(session: Session, dealer: int, holder: int) -> bytes:
    return b"share" + session.fingerprint + _PAIR.pack(dealer, holder)


def _signed_content(session: Session, dealer: int, root: bytes) -> bytes:
    return _SIGNED + session.fingerprint + struct.pack("<I", dealer) + root


def _bound_to(session: Session, dealer: int, holder: int) -> bytes:
    """The data that sealed shares are bound to: version, session, round, dealer and holder."""
    place = struct.pack("<BIII", VERSION, session.round, dealer, holder)
    return b"privfl shares" + place + session.identity + session.fingerprint
