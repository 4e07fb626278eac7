"""A client of secure aggregation: masks its vector, and helps to unmask the sum of those who stayed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from privfl.privacy.secagg.bodies import (
    PAIR_SEED,
    Request,
    Words,
    answer,
    before_words,
    check_ring,
    confirmation,
    parse_mailbox,
    parse_numbers,
    parse_roster,
    reduce,
)
from privfl.privacy.secagg.dealer import Dealer
from privfl.privacy.secagg.errors import BadVector, MalformedMessage, OutOfOrder, OwnNameListed, SpentClient
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK
from privfl.privacy.secagg.masking import MaskAdder, commitment, on_threads
from privfl.privacy.secagg.messages import Kind, Phase, pack, pack_in_place, unpack
from privfl.privacy.secagg.policy import Policy
from privfl.privacy.secagg.primitives import KeyOperations
from privfl.privacy.secagg.session import SERVER, Session
from privfl.privacy.secagg.standing import Standing
from privfl.privacy.secagg.store import Store


class Client(Dealer):
    """One client's part in one session: a state machine that answers each of the server's messages once.

    :meth:`answer` takes what comes from the server, the session first, and returns what goes back: keys, shares of its
    secrets, its masked vector, a confirmation of the survivors (active adversary only), shares of its peers' secrets.
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
        operations: agrees on keys and verifies signatures; another one is for simulations.

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
        operations: KeyOperations | None = None,
    ) -> None:
        super().__init__(session, number, signing_key, verify_keys, entropy, operations)
        if policy is not None:
            policy.check(session)
        store.serve(session.identity)
        self._add_masks = add_masks or on_threads(1)
        self._due: Phase | None = Phase.ADVERTISE
        self._store, self._policy = store, policy
        self._confirming: dict[int, bytes] = {}
        self._roster: frozenset[int] = frozenset()
        self._confirmed: frozenset[int] = frozenset()

    def answer(self, data: bytes, vector: Words | None = None) -> bytes:
        """What to send back for ``data``, which must be the server's next message; the first is the session itself.

        Args:
            data: ``session.to_bytes()``, then a message of each phase.
            vector: this client's vector, needed when the masked one is due: the session's number of unsigned words, of
                its type and within its ring; it is not changed.

        Raises:
            SpentClient: this client has served its session, or met an error in it.
            MalformedMessage: the message is none, or the first is another session than this client's.
            OutOfOrder: a message of another phase came.
            BadPeerList: a list names somebody twice, a stranger, one who had dropped out, or this client where it
                cannot be; it leaves somebody out; a request names somebody as survivor and as dropped; the survivors
                are not those confirmed.
            BadKey: a key is unusable, or used twice.
            BadSignature: keys, or a letter that does not open, are not signed by their owner.
            TooFewClients: fewer holders than the threshold, or fewer survivors than the quorum; too few have confirmed
                the survivors to this client.
            BadVector: the vector is not as the session says.
            PolicyRefused: the policy does not allow the sum.
            SecAggError: any other error of the protocol, by its name.
        """
        with self._answering() as phase:
            if phase is Phase.ADVERTISE:
                return self._advertise(data)
            if phase is Phase.SHARE:
                return self._share_keys(data)
            if phase is Phase.MASK:
                return self._mask_vector(data, vector)
            return self._confirm(data) if phase is Phase.CONFIRM else self._unmask(data)

    def _advertise(self, data: bytes) -> bytes:
        """Draw a key pair and send its public half, under an active adversary signed."""
        if data != self.session.to_bytes():
            raise MalformedMessage("the server begins another session than this client's; both need the same.")
        return self._message(Kind.KEYS, self._draw_keys().channel)

    def _share_keys(self, data: bytes) -> bytes:
        """Share the mask key and the self-mask seed among the peers of the roster, sealed for each."""
        server, peers = parse_roster(self._open(Kind.ROSTER, data), signed=self._verify_keys is not None)
        self._check_roster(server, peers)
        self._standing.check_enough(len(peers) + 1, "advertised keys")
        self._agree(server, peers)
        dealing = self._deal([*peers, self.number])
        self._roster = frozenset([*peers, self.number])
        self._channel, self._mask_key = None, b""  # everything they were for is done
        return self._message(Kind.SHARES, dealing.to_bytes())

    def _mask_vector(self, data: bytes, vector: Words | None) -> bytes:
        """Keep the shares that the peers sent, and send ``vector`` under the self-mask and a mask for each such peer.

        A peer whose letter is bad gets no mask; the key of that letter is opened to the server, to convict the peer.
        """
        letters = parse_mailbox(self._open(Kind.MAILBOX, data), self.session)
        for dealer in letters:
            if dealer == self.number:
                raise OwnNameListed(f"the mailbox of client {self.number} holds shares from itself.")
            if dealer not in self._keys:
                self._standing.refuse_stranger(dealer)
        accusations = self._read(letters)
        self._standing.check_enough(len(self._shares), "shared its keys")
        session, given, masks = self.session, self._check_vector(vector), self._masks()

        def fill(room: memoryview) -> None:
            words: Words = np.frombuffer(room, session.word)
            words[:] = given
            self._add_masks(words, masks)
            reduce(words, session)

        start = before_words(commitment(session, self.number, self._self_seed), accusations)
        sent = pack_in_place(session, Kind.MASKED, self.number, start, given.nbytes, fill, self._seal_key)
        self._self_seed = b""
        self._confirming = {peer: keys.confirming for peer, keys in self._keys.items()}
        self._keys.clear()
        return sent

    def _confirm(self, data: bytes) -> bytes:
        """Confirm the list of survivors to each of the peers; only under an active adversary."""
        survivors = frozenset(parse_numbers(self._open(Kind.SURVIVORS, data)))
        self._standing.check_survivors(survivors)
        self._check_cohort(survivors)
        self._confirmed = survivors
        tags = self._standing.tags(survivors, self._confirming)
        return self._message(Kind.CONFIRMATION, confirmation(survivors, tags))

    def _unmask(self, data: bytes) -> bytes:
        """Reveal a share of each survivor's self-mask seed and of each dropped peer's mask key, never both of one."""
        request = Request.from_bytes(self._open(Kind.REQUEST, data))
        survivors, culprits = frozenset(request.survivors), set(request.culprits)
        standing = self._standing
        standing.check_request(request)
        if self._verify_keys is not None:
            standing.check_confirmations(survivors, self._confirmed, request.confirmations, self._confirming)
        self._check_cohort(survivors)
        if self._policy is not None and self.session.complete:
            self._store.open(self.session.identity, survivors)
            self._check_cohort(survivors)  # again: two sessions may open at once, and each has now noted its own
        held = survivors & self._shares.keys()
        revealed = {peer: (SELF_MASK, self._shares[peer].self_mask) for peer in sorted(held)}
        for peer in sorted(request.dropped):
            seed = peer in culprits
            revealed[peer] = (PAIR_SEED, self._pair_seeds[peer]) if seed else (MASK_KEY, self._shares[peer].mask_key)
        return self._message(Kind.ANSWER, answer(revealed))

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
    def _answering(self) -> Iterator[Phase]:
        """Answer in the phase that is due, go on to the next one, and end for good at any error."""
        phase, self._due = self._due, None
        try:
            if phase is None:
                raise SpentClient(
                    f"client {self.number} has served its session, or met an error in it: take a new one."
                )
            yield phase
        except BaseException:
            self._forget()
            raise
        if phase is Phase.UNMASK:
            self._forget()
        elif phase is Phase.MASK and self._verify_keys is None:
            self._due = Phase.UNMASK
        else:
            self._due = Phase(phase + 1)

    def _forget(self) -> None:
        """Go back to knowing no secret of the session."""
        super()._forget()
        self._confirming.clear()

    def _open(self, kind: Kind, data: bytes) -> memoryview:
        message = unpack(self.session, data, self.number)
        if message.kind is not kind:
            raise OutOfOrder(f"client {self.number} waits for {kind.name}, and {message.kind.name} came.")
        return message.body

    def _message(self, kind: Kind, body: bytes) -> bytes:
        key = self._signing_key if kind is Kind.KEYS else self._seal_key
        return pack(self.session, kind, self.number, SERVER, body, key)
