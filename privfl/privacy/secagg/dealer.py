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
    letter_tree,
    open_letter,
    pair_commitments,
    pair_keys,
    seal_seeds,
    share_commitments,
    sign_letters,
    write_letter,
)
from privfl.privacy.secagg.masking import Seeds, sign_of
from privfl.privacy.secagg.messages import Kind, check_signature, check_verify_keys, seal_key
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, KeyOperations, SigningKey
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
        signing = None if signing_key is None else SigningKey(signing_key)
        if signing and verify_keys and signing.public != verify_keys[number]:
            raise ConfigError(f"client {number}'s signing key does not belong to its verification key; give the pair.")
        self.session = session
        self.number = number
        self._signing_key = signing
        self._verify_keys = None if verify_keys is None else dict(verify_keys)
        self._entropy = entropy
        self._operations = operations or KeyOperations()
        self._channel: AgreementKey | None = None
        self._mask_key = b""
        self._self_seed = b""
        self._seal_key = b""
        self._keys: dict[int, PairKeys] = {}
        self._pair_seeds: dict[int, bytes] = {}
        self._shares: dict[int, Shares] = {}
        self._accused: frozenset[int] = frozenset()

    def _draw_keys(self) -> PublicKeys:
        """Draw a key pair and both secrets; the pair's public half."""
        self._channel = AgreementKey(self._entropy(KEY_BYTES))
        self._mask_key, self._self_seed = self._entropy(KEY_BYTES), self._entropy(KEY_BYTES)
        return PublicKeys(self._channel.public)

    def _agree(self, server: bytes, peers: Mapping[int, PublicKeys]) -> None:
        """Derive what this client shares with the server and with each of the peers.

        Raises:
            BadKey: a key is unusable.
        """
        assert self._channel is not None
        session, own, agree = self.session, self.number, self._operations.agree
        self._seal_key = seal_key(session, own, agree(self._channel, server))
        for peer, keys in peers.items():
            self._keys[peer] = pair_keys(session, own, peer, agree(self._channel, keys.channel))
            self._pair_seeds[peer] = self._keys[peer].seed

    def _deal(self, holders: list[int]) -> Dealing:
        """Keep one pair of shares, and write a letter to each of the other holders."""
        session, own = self.session, self.number
        shares = self._split(holders)
        self._shares[own] = shares.pop(own)
        letters = {
            peer: write_letter(session, own, peer, self._keys[peer].outgoing, pair, self._entropy)
            for peer, pair in shares.items()
        }
        keys = {peer: pair_commitments(session, own, peer, pair) for peer, pair in self._keys.items()}
        seeds = seal_seeds(session, own, self._mask_key, self._pair_seeds)
        signature = b""
        if self._signing_key is not None:
            signature = sign_letters(session, own, letter_tree(session, letters).root, self._signing_key)
        return Dealing(share_commitments(session, own, own, self._shares[own]), keys, seeds, letters, signature)

    def _split(self, holders: list[int]) -> dict[int, Shares]:
        """Shares of both secrets for every holder, this client among them."""
        points = [self.session.points[holder] for holder in holders]
        keys, seeds = (
            shamir.split(secret, self.session.threshold, points, self._entropy)
            for secret in (self._mask_key, self._self_seed)
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
        if server == self._channel.public:
            raise BadKey(f"the server's key is client {self.number}'s; every key must be its owner's own.")
        seen, neighbours = {self._channel.public, server}, self.session.holders[self.number]
        for peer, keys in peers.items():
            if peer == self.number:
                raise OwnNameListed(f"the roster of client {self.number} names itself.")
            if peer not in neighbours:
                raise UnknownPeer(f"the roster names {peer}, who is no neighbour of client {self.number}.")
            if keys.channel in seen:
                raise BadKey(f"client {peer}'s key is used twice in the roster; every key must be its owner's own.")
            seen.add(keys.channel)
            if self._verify_keys is not None:
                check_signature(
                    self.session,
                    Kind.KEYS,
                    peer,
                    keys.channel,
                    keys.signature,
                    self._verify_keys[peer],
                    self._operations.verify,
                )

    def _forget(self) -> None:
        """Go back to knowing no secret of the session."""
        self._channel = None
        self._mask_key = self._self_seed = self._seal_key = b""
        for kept in (self._keys, self._pair_seeds, self._shares):
            kept.clear()
