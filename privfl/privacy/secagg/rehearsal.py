"""Whole sessions in one process: every client, the server, and the bytes that pass between them."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from privfl.errors import ConfigError
from privfl.privacy.secagg.bodies import Words
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import DroppedClient, OutOfOrder, RepeatedMessage, UnknownPeer
from privfl.privacy.secagg.masking import on_threads
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, KeyOperations, verification_key, verify
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.store import MemoryStore

Side = Literal["clients", "server"]


@dataclass(frozen=True)
class Outcome:
    """A session that went through.

    ``total`` is the sum of the survivors' vectors in the ring; ``sent`` and ``seconds`` are bytes sent and time spent
    by phase and side, all clients taken together. What the server does when it closes a phase counts for that phase.
    """

    total: Words
    survivors: tuple[int, ...]
    sent: Mapping[tuple[Phase, Side], int]
    seconds: Mapping[tuple[Phase, Side], float]


class _Together:
    """Key operations of parties that share a process: what several of them would compute alike is computed once.

    Agreements are symmetric, and a signature of a client's keys is checked by the server and by every peer. Neither
    depends on anything but its arguments, so that sessions go as they would; each party's own secrets are in one place
    here, which is why only a rehearsal may do this.
    """

    def __init__(self) -> None:
        self._agreed: dict[frozenset[bytes], bytes] = {}
        self._verified: set[tuple[bytes, bytes, bytes]] = set()

    def agree(self, key: AgreementKey, public: bytes) -> bytes:
        """See :meth:`AgreementKey.agree`; what two agree on is forgotten when both have asked."""
        pair = frozenset((key.public, public))
        if (agreed := self._agreed.pop(pair, None)) is None:
            agreed = self._agreed[pair] = key.agree(public)
        return agreed

    def verify(self, key: bytes, signature: bytes, content: bytes) -> None:
        """See :func:`~privfl.privacy.secagg.primitives.verify`."""
        if (key, signature, content) not in self._verified:
            verify(key, signature, content)
            self._verified.add((key, signature, content))


class Rehearsal:
    """One session in one process, its clients' vectors given one by one, so that memory stays O(vector).

    ``open`` exchanges keys and shares among all clients; ``submit`` takes one client's vector, in any order and from
    any thread, masks it and hands it to the server, which adds it at once; ``close`` unmasks the sum. Clients that
    submit nothing have dropped out before masking.

    ``sent`` and ``seconds`` hold bytes and time by phase and side, as in :class:`Outcome`.

    Args:
        session: what is agreed. Under an active adversary signing keys are drawn for all members.
        lost: the phase before whose message each named client goes silent.
        workers: threads that clients are served on before and after masking, and that the server unmasks with.
        alone: every party computes all it needs by itself, as in a deployment: to measure what that costs. Otherwise
            what several parties would compute alike is computed once.

    Raises:
        ConfigError: somebody lost is no member, or there are fewer workers than one.
    """

    def __init__(
        self, session: Session, *, lost: Mapping[int, Phase] | None = None, workers: int = 1, alone: bool = False
    ) -> None:
        self.session = session
        self._lost = dict(lost or {})
        if strangers := self._lost.keys() - session.points.keys():
            raise ConfigError(f"client {min(strangers)} is to be lost, but is no member of the session.")
        if workers < 1:
            raise ConfigError(f"workers is {workers}; give 1 or more.")
        self._workers = workers
        signing: dict[int, bytes] = {}
        if session.adversary == "active":
            signing = {member: secrets.token_bytes(KEY_BYTES) for member in session.members}
        verifying = {member: verification_key(key) for member, key in signing.items()} or None
        together = _Together()
        operations = KeyOperations() if alone else KeyOperations(together.agree, together.verify)
        self._clients = {
            member: Client(
                session,
                member,
                signing_key=signing.get(member),
                verify_keys=verifying,
                store=MemoryStore(),
                operations=operations,
            )
            for member in session.members
        }
        self._server = Server(session, verifying, add_masks=on_threads(workers), take_back=False, operations=operations)
        self._mailboxes: dict[int, bytes] = {}
        self.sent: dict[tuple[Phase, Side], int] = defaultdict(int)
        self.seconds: dict[tuple[Phase, Side], float] = defaultdict(float)
        self._lock, self._clock = Lock(), Lock()
        self._opened = False
        self._submitted: set[int] = set()

    def open(self) -> tuple[int, ...]:
        """Exchange keys and shares; the clients that may submit a vector, in rising order.

        Raises:
            TooFewClients: too few are left; the session is aborted.
            OutOfOrder: the session is open already.
        """
        if self._opened:
            raise OutOfOrder("the session is open already; submit vectors, then close it.")
        self._opened = True
        self._answer(Phase.ADVERTISE, dict.fromkeys(self.session.members, self.session.to_bytes()))
        self._answer(Phase.SHARE, self._close_phase(Phase.ADVERTISE))
        self._mailboxes = self._close_phase(Phase.SHARE)
        return tuple(member for member in sorted(self._mailboxes) if not self._silent(member, Phase.MASK))

    def submit(self, number: int, vector: Words) -> None:
        """Have client ``number`` mask its vector (see :meth:`Client.answer`) and the server add it.

        Raises:
            OutOfOrder: the session is not open.
            UnknownPeer: the client is no member.
            DroppedClient: the client has dropped out.
            RepeatedMessage: the client has submitted before.
            BadVector: the vector is not as the session says; the client has dropped out by this.
        """
        if not self._opened:
            raise OutOfOrder("the session is not open; open it first.")
        if number not in self.session.points:
            raise UnknownPeer(f"client {number} is no member of the session.")
        with self._lock:
            if number in self._submitted:
                raise RepeatedMessage(f"client {number} has submitted its vector before.")
            if number not in self._mailboxes or self._silent(number, Phase.MASK):
                raise DroppedClient(f"client {number} has dropped out before masking.")
            self._submitted.add(number)
            letters = self._mailboxes.pop(number)
        with self._timed(Phase.MASK, "clients"):
            sent = self._clients[number].answer(letters, vector)
        with self._lock:
            self._receive(Phase.MASK, number, sent)

    def close(self) -> tuple[Words, tuple[int, ...]]:
        """Unmask the sum of what was submitted; the sum modulo the ring, and whose vectors are in it.

        Raises:
            TooFewClients: too few are left; the session is aborted and nothing was revealed.
        """
        following = self._close_phase(Phase.MASK)
        if self.session.adversary == "active":
            self._answer(Phase.CONFIRM, following)
            following = self._close_phase(Phase.CONFIRM)
        self._answer(Phase.UNMASK, following)
        self._close_phase(Phase.UNMASK)
        return self._server.result(), tuple(sorted(self._server.survivors))

    def _silent(self, member: int, phase: Phase) -> bool:
        return member in self._lost and self._lost[member] <= phase

    def _answer(self, phase: Phase, given: Mapping[int, bytes]) -> None:
        """Every member that is not lost answers what it is ``given``, and the server takes the answers as they come."""

        def timed(member: int) -> bytes:
            with self._timed(phase, "clients"):
                return self._clients[member].answer(given[member])

        heard = [member for member in given if not self._silent(member, phase)]
        if self._workers == 1:
            for member in heard:
                self._receive(phase, member, timed(member))
            return
        with ThreadPoolExecutor(self._workers) as pool:
            for member, sent in zip(heard, pool.map(timed, heard), strict=True):
                self._receive(phase, member, sent)

    def _receive(self, phase: Phase, member: int, sent: bytes) -> None:
        with self._timed(phase, "server"):
            self._server.receive(sent, member)
        self.sent[phase, "clients"] += len(sent)

    def _close_phase(self, phase: Phase) -> dict[int, bytes]:
        with self._timed(phase, "server"):
            following = self._server.close_phase()
        self.sent[phase, "server"] += sum(map(len, following.values()))
        return following

    @contextmanager
    def _timed(self, phase: Phase, side: Side) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        with self._clock:
            self.seconds[phase, side] += spent


def aggregate(
    session: Session,
    vectors: Mapping[int, Words] | Callable[[int], Words],
    *,
    lost: Mapping[int, Phase] | None = None,
    workers: int = 1,
    alone: bool = False,
) -> Outcome:
    """Run a whole session over ``vectors`` (by member, or made when a member's turn comes).

    Members without a vector are lost before masking; ``lost`` says who else goes silent before which phase, and
    ``alone`` whether parties compute everything by themselves (:class:`Rehearsal`).

    Raises:
        TooFewClients: too few are left; the session is aborted and nothing was revealed.
        BadVector: a vector is not as the session says.
        ConfigError: see :class:`Rehearsal`.
    """
    rehearsal = Rehearsal(session, lost=lost, workers=workers, alone=alone)
    waiting = rehearsal.open()
    if not callable(vectors):
        given, vectors = vectors, vectors.__getitem__
        waiting = tuple(member for member in waiting if member in given)

    def submit(member: int) -> None:
        rehearsal.submit(member, vectors(member))

    if workers == 1:
        for member in waiting:
            submit(member)
    else:
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(submit, waiting):
                continue
    total, survivors = rehearsal.close()
    return Outcome(total, survivors, dict(rehearsal.sent), dict(rehearsal.seconds))
