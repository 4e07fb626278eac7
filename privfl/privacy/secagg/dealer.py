"""What one client of a session shares with its peers: keys, masks, and shares of its secrets in letters."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from privfl.errors import ConfigError
from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import Dealing, PublicKeys
from privfl.privacy.secagg.errors import BadCiphertext, BadKey, BadShare, OwnNameListed, UnknownPeer
from privfl.privacy.secagg.letters import (
    Letter,
    PairKeys,
    Shares,
    check_letter,
    key_commitment,
    letter_tree,
    open_letter,
    pair_keys,
    share_commitments,
    sign_letters,
    write_letter,
)
from privfl.privacy.secagg.masking import Seeds, pair_seed, sign_of
from privfl.privacy.secagg.messages import Kind, check_signature, check_verify_keys, seal_key
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, KeyOperations, verification_key
from privfl.privacy.secagg.session import Session


class Dealer:
    """The secrets of one client in one session; :class:`~privfl.privacy.secagg.client.Client` says when they are used.

    Args:
        session: what was agreed.
        number: the client's number among the members.
        signing_key: 32 bytes, its Ed25519 key; with an active adversary only.
        verify_keys: every member's verification key; ditto.
        entropy: called with n, returns n secret bytes.
        operations: agrees on keys and verifies signatures.

    Raises:
        ConfigError: the number is no member, or keys are missing, not wanted or not everybody's own.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        signing_key: bytes | None = None,
        verify_keys: Mapping[int, bytes] | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        operations: KeyOperations | None = None,
    ) -> None:
        if number not in session.points:
            raise ConfigError(f"client {number} is no member of the session; give one of its members' numbers.")
        check_verify_keys(session, verify_keys)
        if (signing_key is None) != (session.adversary == "semi-honest"):
            raise ConfigError("a signing key is for an active adversary, and needed there: give one, or none.")
        if signing_key and verify_keys and verification_key(signing_key) != verify_keys[number]:
            raise ConfigError(f"client {number}'s signing key does not belong to its verification key; give the pair.")
        self.session = session
        self.number = number
        self._signing_key = signing_key
        self._verify_keys = None if verify_keys is None else dict(verify_keys)
        self._entropy = entropy
        self._operations = operations or KeyOperations()
        self._channel: AgreementKey | None = None
        self._mask: AgreementKey | None = None
        self._self_seed = b""
        self._seal_key = b""
        self._keys: dict[int, PairKeys] = {}
        self._pair_seeds: dict[int, bytes] = {}
        self._shares: dict[int, Shares] = {}
        self._accused: frozenset[int] = frozenset()

    def _draw_keys(self) -> PublicKeys:
        """Draw both key pairs; their public halves."""
        self._channel = AgreementKey(self._entropy(KEY_BYTES))
        self._mask = AgreementKey(self._entropy(KEY_BYTES))
        return PublicKeys(self._channel.public, self._mask.public)

    def _agree(self, server: bytes, peers: Mapping[int, PublicKeys]) -> None:
        """Derive what this client shares with the server and with each of the peers.

        Raises:
            BadKey: a key is unusable.
        """
        assert self._channel is not None
        assert self._mask is not None
        session, own, agree = self.session, self.number, self._operations.agree
        self._seal_key = seal_key(session, own, agree(self._channel, server))
        for peer, keys in peers.items():
            self._keys[peer] = pair_keys(session, own, peer, agree(self._channel, keys.channel))
            self._pair_seeds[peer] = pair_seed(session, own, peer, agree(self._mask, keys.mask))

    def _deal(self, holders: list[int]) -> Dealing:
        """Keep one pair of shares, and write a letter to each of the other holders."""
        session, own = self.session, self.number
        shares = self._split(holders)
        self._shares[own] = shares.pop(own)
        letters = {
            peer: write_letter(session, own, peer, self._keys[peer].outgoing, pair, self._entropy)
            for peer, pair in shares.items()
        }
        keys = {
            peer: key_commitment(session, own, peer, pair.outgoing) + key_commitment(session, peer, own, pair.incoming)
            for peer, pair in self._keys.items()
        }
        signature = b""
        if self._signing_key is not None:
            signature = sign_letters(session, own, letter_tree(session, letters).root, self._signing_key)
        return Dealing(share_commitments(session, own, own, self._shares[own]), keys, letters, signature)

    def _split(self, holders: list[int]) -> dict[int, Shares]:
        """Shares of both secrets for every holder, this client among them."""
        assert self._mask is not None
        points = [self.session.points[holder] for holder in holders]
        keys, seeds = (
            shamir.split(secret, self.session.threshold, points, self._entropy)
            for secret in (self._mask.secret, self._self_seed)
        )
        return {holder: Shares(keys[point], seeds[point]) for holder, point in zip(holders, points, strict=True)}

    def _read(self, letters: Mapping[int, Letter]) -> dict[int, bytes]:
        """Keep the shares of all good letters; the keys of the bad ones, whose dealers are accused.

        Raises:
            BadSignature: a bad letter is not the one that its dealer signed: the server has altered it.
        """
        accusations = {}
        for dealer, letter in letters.items():
            try:
                self._shares[dealer] = open_letter(
                    self.session, dealer, self.number, self._keys[dealer].incoming, letter
                )
            except (BadCiphertext, BadShare):
                if self._verify_keys is not None:
                    check_letter(self.session, dealer, self.number, letter, self._verify_keys[dealer])
                accusations[dealer] = self._keys[dealer].incoming
        self._accused = frozenset(accusations)
        return accusations

    def _masks(self) -> Seeds:
        """The seeds of this client's masks: its own, and one for each peer whose shares it holds."""
        pairs = ((peer, self._pair_seeds[peer]) for peer in self._shares if peer != self.number)
        return [(self._self_seed, 1), *((seed, sign_of(self.number, peer)) for peer, seed in pairs)]

    def _check_roster(self, server: bytes, peers: Mapping[int, PublicKeys]) -> None:
        """Return if these may be the peers, and every key is its owner's own.

        Raises:
            SecAggError: it names a stranger or this client; a key is used twice; a signature is wrong.
        """
        assert self._channel is not None
        assert self._mask is not None
        seen = {self._channel.public, self._mask.public}
        if server in seen:
            raise BadKey(f"the server's key is client {self.number}'s; every key must be its owner's own.")
        seen.add(server)
        for peer, keys in peers.items():
            if peer == self.number:
                raise OwnNameListed(f"the roster of client {self.number} names itself.")
            if peer not in self.session.holders[self.number]:
                raise UnknownPeer(f"the roster names {peer}, who is no neighbour of client {self.number}.")
            if keys.channel in seen or keys.mask in seen or keys.channel == keys.mask:
                raise BadKey(f"a key of client {peer} is used twice in the roster; every key must be its owner's own.")
            seen |= {keys.channel, keys.mask}
            if self._verify_keys is not None:
                check_signature(
                    self.session,
                    Kind.KEYS,
                    peer,
                    keys.body(),
                    keys.signature,
                    self._verify_keys[peer],
                    self._operations.verify,
                )

    def _forget(self) -> None:
        """Go back to knowing no secret of the session."""
        self._channel = self._mask = None
        self._self_seed = self._seal_key = b""
        for kept in (self._keys, self._pair_seeds, self._shares):
            kept.clear()
