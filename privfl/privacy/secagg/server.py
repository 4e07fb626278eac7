"""The server of secure aggregation: carries messages between clients, adds masked vectors up, unmasks the sum."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import numpy as np

from privfl.privacy.secagg import relay
from privfl.privacy.secagg.blame import Ledger, check_same
from privfl.privacy.secagg.bodies import (
    Dealing,
    PublicKeys,
    Words,
    parse_answer,
    parse_confirmation,
    parse_keys,
    parse_masked,
    reduce,
)
from privfl.privacy.secagg.cohort import Cohort
from privfl.privacy.secagg.errors import (
    AbortedSession,
    BadKey,
    BadShare,
    DroppedClient,
    EarlyMessage,
    ForeignMessage,
    InconsistentSurvivors,
    LateMessage,
    OutOfOrder,
    RepeatedMessage,
    SecAggError,
)
from privfl.privacy.secagg.masking import MaskAdder, on_threads
from privfl.privacy.secagg.messages import SENT_IN, Kind, Message, Phase, check_verify_keys, seal_key, unpack
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, KeyOperations
from privfl.privacy.secagg.recovery import Recovery
from privfl.privacy.secagg.session import SERVER, Session
from privfl.privacy.secagg.spool import Spool


class Server:
    """The server's part in one session: a state machine of phases, in each of which every living client answers once.

    ``receive`` takes the clients' messages in any order; ``close_phase`` ends a phase, counts whoever has not answered
    as dropped, and returns what each living client gets next. After the last phase ``result`` gives the sum. Masked
    vectors are added up as they arrive, so memory does not grow with clients × vector.

    A client whose neighbourhood falls below the threshold before it has masked anything is left out as if it had
    dropped; afterwards its masks could not be removed, so the session is aborted.

    A client that lies is left out and named in ``blamed``; the others go on. Contradictory keys part a pair, a bad
    letter convicts its dealer (or a false accusation its author), a false share is refused. Nobody can notice a false
    vector. What shows too late, that a dealer's shares do not fit together, aborts the session and names the dealer.

    Args:
        session: what was agreed.
        verify_keys: every member's Ed25519 verification key; with an active adversary only.
        add_masks: expands seeds and adds the masks; removing masks is the server's heavy work.
        take_back: keep the masked vectors in a temporary file until their phase is closed, so that the vector of a
            client that is convicted after it came can be taken out again; else that aborts the session.
        entropy: called with n, returns n secret bytes. Anything but the operating system's is for tests.
        operations: agrees on keys and verifies signatures; another one is for simulations.

    Raises:
        ConfigError: verification keys are missing, not wanted or not everybody's own.
    """

    def __init__(
        self,
        session: Session,
        verify_keys: Mapping[int, bytes] | None = None,
        *,
        add_masks: MaskAdder | None = None,
        take_back: bool = True,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        operations: KeyOperations | None = None,
    ) -> None:
        check_verify_keys(session, verify_keys)
        self.session = session
        self._verify_keys = None if verify_keys is None else dict(verify_keys)
        self._add_masks = add_masks or on_threads(1)
        self._phase: Phase | None = Phase.ADVERTISE
        self._aborted = False
        self._answered: set[int] = set()
        self._keys: dict[int, PublicKeys] = {}
        self._key = AgreementKey(entropy(KEY_BYTES))
        self._public = {self._key.public}
        self._seal_keys: dict[int, bytes] = {}
        self._operations = operations or KeyOperations()
        self._ledger = Ledger(session)
        self._recovery = Recovery(session, self._ledger)
        self._cohort = Cohort(session, self._ledger)
        self._refused: dict[int, str] = {}
        self._spool = Spool() if take_back else None
        self._in_sum: set[int] = set()
        self._total: Words = np.zeros(session.length, session.word)
        self._confirmations: dict[int, dict[int, bytes]] = {}

    @property
    def phase(self) -> Phase | None:
        """The phase whose messages are awaited; ``None`` once the session is over."""
        return self._phase

    @property
    def living(self) -> frozenset[int]:
        """The clients that have missed nothing so far."""
        return self._cohort.living

    @property
    def blamed(self) -> Mapping[int, str]:
        """The clients that were left out for what they sent, and for what; known during, after and without a sum."""
        return self._ledger.blamed

    @property
    def survivors(self) -> frozenset[int]:
        """The clients whose vectors are in the sum: all that sent one, whether or not they helped to unmask it.

        Raises:
            OutOfOrder: the masked vectors are not all in yet.
        """
        self._check_unaborted()
        if self._phase is not None and self._phase <= Phase.MASK:
            raise OutOfOrder("who survives is known when the masked vectors are in.")
        return self._cohort.survivors

    def result(self) -> Words:
        """The sum of the survivors' vectors, modulo the ring.

        Raises:
            OutOfOrder: the session is not over.
            AbortedSession: it was aborted.
        """
        self._check_unaborted()
        if self._phase is not None:
            raise OutOfOrder(f"the sum is masked until every phase is closed; {self._phase.name} is open.")
        return self._total

    def receive(self, data: bytes, sender: int) -> None:
        """Take a client's message.

        Args:
            data: what came.
            sender: whom it came from, as the transport knows (behind TLS, the owner of the connection's certificate);
                what the message says of itself proves nothing if the adversary is semi-honest.

        Raises:
            SecAggError: the message is refused and changes nothing; its sender may send a good one in time, and is
                blamed if it does not.
        """
        self._check_unaborted()
        message = unpack(self.session, data, SERVER, self._key_of, self._operations.verify)
        phase = SENT_IN[message.kind]
        if message.sender != sender:
            raise ForeignMessage(f"client {sender} sends a message in the name of client {message.sender}.")
        if self._phase is None or phase < self._phase:
            raise LateMessage(f"{message.kind.name} from client {sender} came after {phase.name} was closed.")
        if phase > self._phase:
            raise EarlyMessage(f"{message.kind.name} from client {sender} came in {self._phase.name}.")
        if sender not in self._cohort.living or sender in self._ledger.convicted:
            raise DroppedClient(f"client {sender} has missed an earlier phase or was convicted, and is out.")
        if sender in self._answered:
            raise RepeatedMessage(f"client {sender} has already sent its {message.kind.name}.")
        try:
            self._take(message)
        except SecAggError as error:
            self._refused[sender] = str(error)
            raise
        self._answered.add(sender)

    def close_phase(self) -> dict[int, bytes]:
        """End the phase; what each living client gets next, nothing after the last phase.

        Raises:
            TooFewClients: fewer are left than needed; the session is aborted.
            BadShare: shares do not combine to what was committed to; the session is aborted.
            AbortedSession: it was aborted before.
            OutOfOrder: every phase is closed.
        """
        self._check_unaborted()
        if (phase := self._phase) is None:
            raise OutOfOrder("every phase is closed; take the result.")
        self._cohort.living, self._answered = frozenset(self._answered - self._ledger.convicted), set()
        for member, reason in self._refused.items():
            if member not in self._cohort.living:
                self._ledger.blamed.setdefault(member, f"its {phase.name} message was refused: {reason}")
        self._refused.clear()
        try:
            following = self._following(phase)
        except SecAggError as error:
            self._abort()
            named = "; ".join(f"client {member}: {reason}" for member, reason in sorted(self.blamed.items()))
            raise type(error)(f"{error} To blame: {named}." if named else str(error)) from error
        unconfirmed = phase is Phase.MASK and self.session.adversary == "semi-honest"
        self._phase = None if phase is Phase.UNMASK else Phase(phase + 1 + unconfirmed)
        return following

    def _key_of(self, kind: Kind, sender: int) -> bytes | None:
        """What a member's message is sealed with."""
        if kind is Kind.KEYS:
            return None if self._verify_keys is None else self._verify_keys[sender]
        if (key := self._seal_keys.get(sender)) is None:
            error = EarlyMessage if self._phase is Phase.ADVERTISE else DroppedClient
            raise error(f"{kind.name} from client {sender} came without its keys.")
        return key

    def _take(self, message: Message) -> None:
        sender, body = message.sender, message.body
        if message.kind is Kind.KEYS:
            keys = parse_keys(body, message.signature)
            if keys.channel in self._public:
                raise BadKey(f"client {sender} advertises a key that is in use already; draw a fresh one.")
            agreed = self._operations.agree(self._key, keys.channel)  # refuses what would end the session of its peers
            self._seal_keys[sender] = seal_key(self.session, sender, agreed)
            self._public.add(keys.channel)
            self._keys[sender] = keys
        elif message.kind is Kind.SHARES:
            key = None if self._verify_keys is None else self._verify_keys[sender]
            dealing = Dealing.from_bytes(body, signed=key is not None)
            self._ledger.take(sender, dealing, self._cohort.around(sender, self._cohort.living) - {sender}, key)
        elif message.kind is Kind.MASKED:
            committed, accusations, words = parse_masked(body, self.session)
            self._ledger.try_accusations(sender, accusations, self._cohort.held_by(sender) - {sender})
            if self._spool is not None:
                self._spool.keep(sender, words)
            self._total += words
            self._in_sum.add(sender)
            self._recovery.commitments[sender] = committed
        elif message.kind is Kind.CONFIRMATION:
            (named, tags), survivors = parse_confirmation(body), self._cohort.survivors
            if named != sorted(survivors):
                raise InconsistentSurvivors(f"client {sender} confirms other survivors than it was sent.")
            due = (self._cohort.held_by(sender) & survivors) - {sender}
            check_same(tags.keys(), due, f"client {sender} confirms the survivors to")
            self._confirmations[sender] = tags
        else:
            revealed = parse_answer(body)
            check_same(revealed.keys(), self._cohort.held_by(sender), f"client {sender} reveals shares of")
            self._ledger.check_revealed(sender, revealed, self._cohort.asked_of)
            self._recovery.take(sender, revealed)

    def _following(self, phase: Phase) -> dict[int, bytes]:
        """What the phase that is being closed leads to."""
        session, cohort = self.session, self._cohort
        if phase is Phase.ADVERTISE:
            cohort.leave_out_lonely()
            return relay.rosters(session, cohort, self._key.public, self._keys)
        if phase is Phase.SHARE:
            cohort.living -= self._ledger.compare_keys(cohort.living)
            cohort.leave_out_lonely()
            cohort.sharers = cohort.living
            return relay.mailboxes(session, cohort, self._ledger)
        if phase is Phase.MASK:
            self._take_out_convicted()
            cohort.survive()
        cohort.check_recoverable()
        if phase is Phase.UNMASK:
            self._unmask()
            return {}
        if phase is Phase.MASK and session.adversary == "active":
            return relay.survivors(session, cohort)
        return relay.requests(session, cohort, self._confirmations)

    def _take_out_convicted(self) -> None:
        """Take the vectors of convicted clients out of the sum: their masks may be beyond recovery."""
        for member in sorted(self._ledger.convicted & self._in_sum):
            if self._spool is None:
                raise BadShare(f"client {member} was convicted after its vector came, and no vector was kept.")
            self._total -= self._spool.take(member, self._total)
            self._in_sum.discard(member)
        if self._spool is not None:
            self._spool.close()

    def _unmask(self) -> None:
        cohort, survivors = self._cohort, self._cohort.survivors
        removed = self._recovery.masks(
            survivors, cohort.sharers - survivors, cohort.seeds_of, lambda member: cohort.holders(member, survivors)
        )
        self._add_masks(self._total, removed)
        reduce(self._total, self.session)
        self._forget()

    def _check_unaborted(self) -> None:
        if self._aborted:
            raise AbortedSession("the session was aborted; start one with a new identity.")

    def _abort(self) -> None:
        self._aborted, self._phase = True, None
        self._total = self._total[:0]
        self._forget()

    def _forget(self) -> None:
        self._keys.clear()
        self._confirmations.clear()
        self._recovery.forget()
        self._ledger.forget()
        if self._spool is not None:
            self._spool.close()
