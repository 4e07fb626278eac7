"""A client of secure aggregation: masks its vector, and helps to unmask the sum of those who stayed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from privfl.errors import ConfigError
from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import (
    PAIR_SEED,
    Dealing,
    PublicKeys,
    Request,
    Words,
    answer,
    check_ring,
    confirmation,
    masked,
    parse_mailbox,
    parse_numbers,
    parse_roster,
)
from privfl.privacy.secagg.errors import (
    BadCiphertext,
    BadKey,
    BadShare,
    BadVector,
    MalformedMessage,
    OutOfOrder,
    OwnNameListed,
    SpentClient,
    UnknownPeer,
)
from privfl.privacy.secagg.letters import (
    MASK_KEY,
    SELF_MASK,
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
from privfl.privacy.secagg.masking import MaskAdder, commitment, on_threads, pair_seed, sign_of
from privfl.privacy.secagg.messages import SENT_IN, Body, Kind, Phase, check_signature, check_verify_keys, pack, unpack
from privfl.privacy.secagg.policy import Policy
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, verification_key
from privfl.privacy.secagg.session import SERVER, Session
from privfl.privacy.secagg.standing import Standing
from privfl.privacy.secagg.store import Store


class Client:
    """One client's part in one session: a state machine that answers each of the server's messages once.

    :meth:`answer` takes what comes from the server, the session first, and returns what goes back; it calls
    ``advertise``, ``share_keys``, ``masked_input``, ``confirm`` (active adversary only) and ``unmask`` in this order.
    Keys and seeds are drawn afresh, so two clients never repeat a mask. After any error the client is spent: it forgets
    its secrets and refuses everything that follows.

    Guarantee: of the honest clients' vectors the server learns the sum over the survivors and nothing else, as long as
    the adversary is as the session says (Bonawitz et al. 2017, section 6; Bell et al. 2020, section 3, for k-regular
    graphs). Who takes part and who drops out is not hidden, and a sum over few tells much about each. A member that
    lies can spoil the sum by its vector, which nobody can notice; any other lie names it (see ``Server.blamed``).

    ========================================  ===================================================================
    edge case                                 what happens
    ========================================  ===================================================================
    a peer is lost before sharing its keys    it has no part in the session: no mask is shared with it
    a peer is lost before its vector came     its masks are taken off by means of its mask key; it is not in the sum
    a peer is lost after its vector came      it is in the sum; its self-mask is taken off by means of its seed
    its vector comes late                     refused; its self-mask is revealed to nobody, so it stays masked
    fewer holders than the threshold          ``TooFewClients``: nothing is revealed, the session ends
    a peer named as survivor *and* dropped    ``AliveAndDead``: nothing is revealed, this client is spent
    the server tells two different stories    none gets both secrets of a peer on the complete graph; on a k-regular
                                              graph it may, so the claim is against a server that keeps to the protocol
    a peer's letter of shares is bad          this client leaves the peer out and opens the letter's key to the server
    the server says so, but altered it        ``BadSignature`` (active adversary): nothing is opened, this client ends
    any message altered, repeated, foreign    refused by its name; this client is spent
    ========================================  ===================================================================

    Args:
        session: what was agreed; under an active adversary it must not come from the server.
        number: this client's number among the members.
        signing_key: 32 bytes, this client's Ed25519 key; with an active adversary only.
        verify_keys: every member's verification key, from a source that the server does not control; ditto.
        store: what this client remembers of earlier sessions; one that it has served is refused.
        policy: this client's own terms; needed as soon as the session comes from the server.
        entropy: called with n, returns n secret bytes. Anything but the operating system's is for tests.
        add_masks: expands seeds and adds the masks.

    Raises:
        ConfigError: the number is no member, or keys are missing, not wanted or not everybody's own.
        PolicyRefused: the session is not what the policy allows.
        SpentClient: the session was served before.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        *,
        signing_key: bytes | None = None,
        verify_keys: Mapping[int, bytes] | None = None,
        store: Store,
        policy: Policy | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        add_masks: MaskAdder | None = None,
    ) -> None:
        if number not in session.points:
            raise ConfigError(f"client {number} is no member of the session; give one of its members' numbers.")
        check_verify_keys(session, verify_keys)
        if (signing_key is None) != (session.adversary == "semi-honest"):
            raise ConfigError("a signing key is for an active adversary, and needed there: give one, or none.")
        if signing_key and verify_keys and verification_key(signing_key) != verify_keys[number]:
            raise ConfigError(f"client {number}'s signing key does not belong to its verification key; give the pair.")
        if policy is not None:
            policy.check(session)
        store.serve(session.identity)
        self.session = session
        self.number = number
        self._signing_key = signing_key
        self._verify_keys = None if verify_keys is None else dict(verify_keys)
        self._entropy = entropy
        self._add_masks = add_masks or on_threads(1)
        self._due: Phase | None = Phase.ADVERTISE
        self._channel: AgreementKey | None = None
        self._mask: AgreementKey | None = None
        self._self_seed = b""
        self._store, self._policy = store, policy
        self._keys: dict[int, PairKeys] = {}
        self._confirming: dict[int, bytes] = {}
        self._pair_seeds: dict[int, bytes] = {}
        self._shares: dict[int, Shares] = {}
        self._accused: frozenset[int] = frozenset()
        self._roster: frozenset[int] = frozenset()
        self._confirmed: frozenset[int] = frozenset()

    def answer(self, data: bytes, vector: Words | None = None) -> bytes:
        """What to send back for ``data``, which must be the server's next message; the first is the session itself.

        Args:
            data: ``session.to_bytes()``, then a message of each phase.
            vector: this client's vector, needed when the masked one is due.

        Raises:
            SecAggError: see the method of the phase.
            MalformedMessage: the first message is another session than this client's.
        """
        if self._due is Phase.MASK:
            return self.masked_input(data, vector)
        later = {Phase.SHARE: self.share_keys, Phase.CONFIRM: self.confirm, Phase.UNMASK: self.unmask}
        if self._due in later:
            return later[self._due](data)
        if self._due is Phase.ADVERTISE and data != self.session.to_bytes():
            self._due = None
            raise MalformedMessage("the server begins another session than this client's; both need the same.")
        return self.advertise()

    def advertise(self) -> bytes:
        """Draw two key pairs and send their public halves (and, under an active adversary, their signature)."""
        with self._answering(Phase.ADVERTISE):
            self._channel = AgreementKey(self._entropy(KEY_BYTES))
            self._mask = AgreementKey(self._entropy(KEY_BYTES))
            return self._message(Kind.KEYS, PublicKeys(self._channel.public, self._mask.public).body())

    def share_keys(self, data: bytes) -> bytes:
        """Share the secret mask key and a fresh self-mask seed among the peers of the roster, sealed for each.

        Raises:
            SecAggError: the roster names somebody twice, a stranger or this client; a key is unusable, or used twice;
                a signature is wrong; there are fewer holders than the threshold.
        """
        with self._answering(Phase.SHARE):
            active = self._signing_key is not None
            peers = parse_roster(self._open(Kind.ROSTER, data), signed=active)
            self._check_roster(peers)
            assert self._channel is not None
            assert self._mask is not None
            session, own = self.session, self.number
            for peer, keys in peers.items():
                self._keys[peer] = pair_keys(session, self._channel, own, peer, keys.channel)
                self._pair_seeds[peer] = pair_seed(session, self._mask, own, peer, keys.mask)
            self._self_seed = self._entropy(KEY_BYTES)
            dealing = self._deal([*peers, own])
            self._roster = frozenset([*peers, own])
            self._channel = self._mask = None  # everything they were for is done
            return self._message(Kind.SHARES, dealing.to_bytes())

    def masked_input(self, data: bytes, vector: Words | None) -> bytes:
        """Keep the shares that the peers sent, and send ``vector`` under the self-mask and a mask for each such peer.

        A peer whose letter is bad gets no mask; the key of that letter is opened to the server, to convict the peer.

        Args:
            data: the server's mailbox.
            vector: the session's number of unsigned words, of its type and within its ring; it is not changed.

        Raises:
            SecAggError: the mailbox names somebody twice, a stranger or this client; a bad letter is not as its dealer
                signed it; fewer holders than the threshold are left; the vector is not as the session says.
        """
        with self._answering(Phase.MASK):
            letters = parse_mailbox(self._open(Kind.MAILBOX, data), self.session)
            for dealer in letters:
                if dealer == self.number:
                    raise OwnNameListed(f"the mailbox of client {self.number} holds shares from itself.")
                if dealer not in self._keys:
                    self._standing.refuse_stranger(dealer)
            accusations = self._read(letters)
            self._standing.check_enough(len(self._shares), "shared its keys")
            words = self._check_vector(vector).copy()
            self._add_masks(words, self._masks())
            words &= words.dtype.type(self.session.largest)
            sent = masked(commitment(self.session, self.number, self._self_seed), accusations, words)
            self._self_seed = b""
            self._confirming = {peer: keys.confirming for peer, keys in self._keys.items()}
            self._keys.clear()
            return self._message(Kind.MASKED, sent)

    def confirm(self, data: bytes) -> bytes:
        """Confirm the list of survivors to each of the peers; only under an active adversary.

        Raises:
            SecAggError: the list names somebody twice, a stranger, one who had dropped out or been convicted, or leaves
                this client out; it is shorter than the threshold.
            PolicyRefused: the policy does not allow the sum.
        """
        with self._answering(Phase.CONFIRM):
            survivors = frozenset(parse_numbers(self._open(Kind.SURVIVORS, data)))
            self._standing.check_survivors(survivors)
            self._check_cohort(survivors)
            self._confirmed = survivors
            tags = self._standing.tags(survivors, self._confirming)
            return self._message(Kind.CONFIRMATION, confirmation(survivors, tags))

    def unmask(self, data: bytes) -> bytes:
        """Reveal a share of each survivor's self-mask seed and of each dropped peer's mask key, never both of one.

        Raises:
            SecAggError: the request names somebody twice, or as survivor and as dropped, a stranger, one who had
                dropped out before masking, or this client as dropped; it leaves somebody out; fewer survivors than the
                threshold are left; under an active adversary, the survivors are not those confirmed, or fewer than
                the threshold have confirmed them to this client.
            PolicyRefused: the policy does not allow the sum.
        """
        with self._answering(Phase.UNMASK):
            request = Request.from_bytes(self._open(Kind.REQUEST, data))
            survivors, culprits = frozenset(request.survivors), set(request.culprits)
            standing = self._standing
            standing.check_request(request)
            if self._verify_keys is not None:
                standing.check_confirmations(survivors, self._confirmed, request.confirmations, self._confirming)
            self._check_cohort(survivors)
            if self._policy is not None and self.session.complete:
                self._store.open(self.session.identity, survivors)
            held = survivors & self._shares.keys()
            revealed = {peer: (SELF_MASK, self._shares[peer].self_mask) for peer in sorted(held)}
            for peer in sorted(request.dropped):
                seed = peer in culprits
                revealed[peer] = (
                    (PAIR_SEED, self._pair_seeds[peer]) if seed else (MASK_KEY, self._shares[peer].mask_key)
                )
            return self._message(Kind.ANSWER, answer(revealed))

    def _masks(self) -> list[tuple[bytes, int]]:
        """The seeds of this client's masks: its own, and one for each peer whose shares it holds."""
        pairs = ((peer, self._pair_seeds[peer]) for peer in self._shares if peer != self.number)
        return [(self._self_seed, 1), *((seed, sign_of(self.number, peer)) for peer, seed in pairs)]

    def _split(self, holders: list[int]) -> dict[int, Shares]:
        """Shares of both secrets for every holder, this client among them."""
        assert self._mask is not None
        points = [self.session.points[holder] for holder in holders]
        keys, seeds = (
            shamir.split(secret, self.session.threshold, points, self._entropy)
            for secret in (self._mask.secret, self._self_seed)
        )
        return {holder: Shares(keys[point], seeds[point]) for holder, point in zip(holders, points, strict=True)}

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

    def _check_roster(self, peers: Mapping[int, PublicKeys]) -> None:
        assert self._channel is not None
        assert self._mask is not None
        seen = {self._channel.public, self._mask.public}
        for peer, keys in peers.items():
            if peer == self.number:
                raise OwnNameListed(f"the roster of client {self.number} names itself.")
            if peer not in self.session.holders[self.number]:
                raise UnknownPeer(f"the roster names {peer}, who is no neighbour of client {self.number}.")
            if keys.channel in seen or keys.mask in seen or keys.channel == keys.mask:
                raise BadKey(f"a key of client {peer} is used twice in the roster; every key must be its owner's own.")
            seen |= {keys.channel, keys.mask}
            if self._verify_keys is not None:
                check_signature(self.session, Kind.KEYS, peer, keys.body(), keys.signature, self._verify_keys[peer])
        self._standing.check_enough(len(peers) + 1, "advertised keys")

    def _check_vector(self, vector: Words | None) -> Words:
        session = self.session
        if not isinstance(vector, np.ndarray) or vector.dtype != session.word or vector.shape != (session.length,):
            shape = f"{vector.dtype}{list(vector.shape)}" if isinstance(vector, np.ndarray) else type(vector).__name__
            raise BadVector(f"the vector is {shape}; the session is over {session.word.name}[{session.length}].")
        check_ring(vector, session)
        return vector

    @property
    def _standing(self) -> Standing:
        held = frozenset(self._shares)
        return Standing(self.session, self.number, held, self._roster - self._accused if self._verify_keys else held)

    def _check_cohort(self, survivors: frozenset[int]) -> None:
        """Return if the policy allows the sum over ``survivors`` beside those that were opened before."""
        if self._policy is not None and self._policy.binds_cohorts:
            self._standing.check_all_held(survivors)
            self._policy.check_sum(survivors, self._store.opened())

    @contextmanager
    def _answering(self, phase: Phase) -> Iterator[None]:
        """Answer in ``phase`` if that is due, go on to the next phase, and end for good at any error."""
        due, self._due = self._due, None
        try:
            if due is None:
                raise SpentClient(
                    f"client {self.number} has served its session, or met an error in it: take a new one."
                )
            if due is not phase:
                raise OutOfOrder(f"client {self.number} is due for {due.name}, not for {phase.name}.")
            yield
        except BaseException:
            self._forget()
            raise
        if phase is Phase.UNMASK:
            self._forget()
        elif phase is Phase.MASK and self._signing_key is None:
            self._due = Phase.UNMASK
        else:
            self._due = Phase(phase + 1)

    def _forget(self) -> None:
        """Go back to knowing no secret of the session."""
        self._channel = self._mask = None
        self._self_seed = b""
        for kept in (self._keys, self._confirming, self._pair_seeds, self._shares):
            kept.clear()

    def _open(self, kind: Kind, data: bytes) -> memoryview:
        message = unpack(self.session, data, self.number)
        if message.kind is not kind:
            raise OutOfOrder(f"client {self.number} waits for {kind.name}, and {message.kind.name} came.")
        return message.body

    def _message(self, kind: Kind, body: Body) -> bytes:
        assert kind in SENT_IN
        return pack(self.session, kind, self.number, SERVER, body, self._signing_key)
