"""A client: holds its data, keys, noise and budget, and answers what its own copy of the agreement allows."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np

from privfl.algorithms.base import Tensors
from privfl.deploy.agreement import Federation, Policy, PolicyDiffers
from privfl.deploy.budget import BudgetSpent, OwnSettings, afford, over_all_runs
from privfl.deploy.diary import (
    ANSWERED_BEFORE,
    NO_LONGER_KEPT,
    ROUNDS_KEPT,
    AnsweredOtherwise,
    Books,
    CameOutOtherwise,
    Diary,
    NoLongerKept,
)
from privfl.deploy.local import LEFT_BEHIND, LeftBehind, Training
from privfl.deploy.messages import BadMessage, Message, Unsigned, as_bytes, as_tensor, digest, opened
from privfl.deploy.secure import MASKED, OwnVector, Unencodable, member
from privfl.errors import ConfigError, PrivflError, brief
from privfl.experiment import Experiment
from privfl.files import CannotWrite
from privfl.privacy.accounting.release import Unit
from privfl.privacy.accounting.tracker import Planned
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.client import Client as SecureClient
from privfl.privacy.secagg.messages import Phase as Leg
from privfl.privacy.secagg.primitives import SigningKey
from privfl.privacy.secagg.session import Session
from privfl.privacy.sizes.known_sizes import EXACT_SIZE, EXACT_SUM
from privfl.privacy.sizes.mechanism import size_release


class BegunBefore(BadMessage):
    """A secure sum was begun by a process that has ended, and its secrets with it."""


REASONS: dict[type[Exception], str] = {
    BudgetSpent: "refused: its own budget is spent",
    PolicyDiffers: "refused: it agreed to another policy",
    NoLongerKept: NO_LONGER_KEPT,
    AnsweredOtherwise: ANSWERED_BEFORE,
    CameOutOtherwise: "refused: its answer was lost, and came out otherwise under the same noise",
    Unsigned: "refused: the request was not signed by the server it knows",
    BegunBefore: "was started anew during the secure sum",
    BadMessage: "refused: the request is not what was agreed",
    LeftBehind: LEFT_BEHIND,
    Unencodable: "sent a number beyond the range of the secure sum",
}
"""What the server is told, of a refusal whose sentence is for the client's own log; the first kind that fits."""
KEY_MEND = (
    "restore the folder if it is damaged or another party's, and only if this is the key that `privfl deploy key` "
    "printed put it into the federation file of every party"
)
SESSIONS_KEPT = 4
"""Secure sums at a time: that of a round, those of its surveys, and the next one, whose keys are asked for early."""
OTHERWISE = "refused, for a reason in its own log"


def sentence_of(error: Exception) -> str:
    """What ``error`` says to whoever runs a client, which goes on by being started again."""
    if isinstance(error, CannotWrite):
        return f"{error.what}, {'make room' if error.full else 'mend that'} and start the client again"
    return str(error)


@dataclass
class _Run:
    """A run that was agreed to, with what this client has made ready for it."""

    key: str
    training: Training
    noise: NoiseSource
    sessions: dict[bytes, SecureClient] = field(default_factory=dict)
    keys: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    sums: dict[bytes, tuple[int, str, int, bytes]] = field(default_factory=dict)


class FederationClient:
    """One client of a federation: :meth:`answer` takes the server's signed bytes and gives signed bytes back.

    Args:
        folder: its memory (:class:`~privfl.deploy.diary.Diary`), of which there must be one only.
        own: its number and budget.
        experiment, federation: its own copies of what was agreed.
        data: the file with its rows.
        say: told one sentence about everything that is refused, and about what earlier runs gave away if no budget
            holds it.

    Raises:
        ConfigError: its key is not the one that the federation lists for it, or noise that everybody knows is to keep
            its budget.
    """

    def __init__(
        self,
        folder: Path,
        own: OwnSettings,
        experiment: Experiment,
        federation: Federation,
        data: Path,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.diary, self.own, self._say = Diary(folder), own, say
        self.experiment, self.federation = experiment, federation
        self._secret = self.diary.store.signing_key()
        self.key = SigningKey(self._secret)
        if federation.keys.get(own.number) != self.key.public:
            raise ConfigError(
                f"the federation lists another key for client {own.number} than {self.key.public.hex()}, which is the "
                f"key in this folder; {KEY_MEND}"
            )
        if own.epsilon is not None and experiment.privacy.noise_key is not None:
            raise ConfigError(
                f"this client sets a budget of epsilon = {own.epsilon:g}, but the experiment fixes noise_key, which "
                "the server knows too, so that no noise hides anything from it; leave one of them out"
            )
        task = federation.task.of_client(own.number, len(federation.clients), data)
        self._build: Callable[[], Training] = lambda: Training.prepare(task, experiment, own.number)
        self._run: _Run | None = None
        self._lock = Lock()
        self.ended = False

    def answer(self, request: bytes) -> bytes:
        """The answer to ``request``; the same request is answered alike, also by a process that was started anew."""
        with self._lock:
            mark = digest(request)
            try:
                reply = self._answer(request, mark)
            except Exception as error:  # whatever a request does here, the client stays, and says what happened
                self._say(f"refused: {brief(sentence_of(error) or type(error).__name__, 400)}")
                reason = next((said for kind, said in REASONS.items() if isinstance(error, kind)), OTHERWISE)
                return self._seal({"kind": "refused", "reason": reason}, {}, mark)
            return reply

    def _answer(self, request: bytes, mark: str) -> bytes:
        message = opened(request, bytes.fromhex(self.federation.server))
        meta = message.meta
        if meta.get("to") != self.own.number:
            raise Unsigned(f"a request is for client {meta.get('to')}, and this is client {self.own.number}")
        if message.kind == "policy":
            agreed = self._agree(meta.get("policy"))
            ahead = self.diary.newest(agreed) > int(meta.get("round", 0))
            return self._seal({"kind": "agreed", "policy": agreed, "ahead": ahead}, {}, mark)
        run = self._of(str(meta.get("run")))
        if (before := self.diary.answer(run.key, mark)) is not None:
            return before
        if message.kind == "end":
            self.ended = True
            return self._seal({"kind": "ended"}, {}, mark)
        round, rounds = int(meta["round"]), run.training.plan.schedule.rounds
        if not 0 <= round < rounds:
            raise BadMessage(f"the server asks for round {round}, and this experiment has {rounds}; it is not answered")
        after: Tensors = {}
        if message.kind == "size":
            reply = self._seal({"kind": "size", "size": self._size(run, round, mark)}, {}, mark)
        elif message.kind == "secure":
            reply = self._seal({"kind": "secure"}, self._secure(run, message), mark)
        elif message.kind == "train":
            told, tensors, after = self._train(run, message, mark)
            reply = self._seal(told, tensors, mark)
        else:
            raise BadMessage(f"a request is of the kind '{brief(message.kind)}', which this version does not know")
        self.diary.settle(run.key, round, mark, reply)
        if after:
            self.diary.keep(run.key, round, int(meta["kept"]), after)
        self.diary.keep_answer(run.key, round, mark, reply)
        return reply

    def _seal(self, meta: dict[str, object], tensors: Tensors, mark: str) -> bytes:
        return Message({**meta, "from": self.own.number, "request": mark}, tensors).sealed(self.key)

    def _agree(self, told: object) -> str:
        """The digest of the policy, once it was compared with this client's own copy."""
        policy = Policy.from_dict(told)
        policy.check(self.experiment, self.federation)
        self.diary.agree(policy.digest, policy.to_dict())
        return policy.digest

    def _of(self, key: str) -> _Run:
        """The run of this policy.

        Raises:
            PolicyDiffers: it was not agreed to, or the client's own files have changed since.
        """
        if self._run is None or not hmac.compare_digest(self._run.key, key):
            if not self.diary.knows(key):
                raise PolicyDiffers("a request is for a run whose policy this client has not agreed to")
            policy = Policy.from_dict(self.diary.policy(key))
            policy.check(self.experiment, self.federation)
            training = self._build()
            self.diary.bind(key, training.prepared)
            fixed = training.plan.source
            source = self.diary.noise(key, fixed.for_run(policy.run) if fixed.reproducible else None)
            self._run = _Run(key, training, source)
            if self.own.epsilon is None and not source.reproducible and self.diary.others(key):
                self._say(over_all_runs(self.diary.ledger, self.own, self._units))
        return self._run

    @property
    def _units(self) -> dict[Unit, int]:
        """How many of each unit are protected in the whole federation."""
        return {"sample": self.federation.task.examples, "client": len(self.federation.clients)}

    def _afford(self, run: _Run, what: str, planned: list[Planned]) -> Books:
        """The ledgers with the ``planned`` releases of this client.

        Raises:
            BudgetSpent: they would cost more than its budget, or in this run more than the experiment's target.
        """
        every, this = self.diary.books(run.key)
        target = run.training.target or OwnSettings(self.own.number)
        return afford(every, self.own, self._units, what, planned), afford(this, target, self._units, what, planned)

    def _size(self, run: _Run, round: int, mark: str) -> float:
        """This client's answer about its size, charged if it is a fresh one."""
        plan, number = run.training.plan, self.own.number
        what, true = f"size {round}", len(run.training.rows)
        mechanism = plan.privacy.size
        if not plan.needs_sizes:
            raise BadMessage("the server asks for sizes, which this experiment does not need; it is not answered")
        if mechanism is None:
            if self.diary.begun(run.key, what) is None:
                cost: list[Planned] = [] if self._told_size(run) else [(EXACT_SIZE, [0], 1)]
                self.diary.begin(run.key, what, mark, self._afford(run, "telling the size", cost))
            return float(true)
        table = self.diary.sizes(run.key)
        answers = table.answers(round, [number], np.array([true]), mechanism, run.noise)
        charged: list[Planned] = [(size_release(mechanism), [0], 1)] if table.fresh else []
        fresh = self.diary.begun(run.key, what) is None
        books = self._afford(run, "answering about the size", charged) if fresh else self.diary.books(run.key)
        self.diary.begin(run.key, what, mark, books, table)
        return float(answers[0])

    def _told(self, run: _Run) -> float | None:
        """What this client last answered about its size; ``None`` if nothing."""
        _, answers = self.diary.sizes(run.key).latest()
        return float(answers[0]) if len(answers) else None

    def _told_size(self, run: _Run) -> bool:
        return self.diary.begun(run.key, "size 0") is not None

    def _secure(self, run: _Run, message: Message) -> Tensors:
        """This client's part in a leg of a secure sum in which no vector is sent, and its keys for the next sum."""
        found: Tensors = {}
        if message.meta["leg"] is not None:
            content = as_bytes(message.tensors["message"])
            leg = Leg(int(message.meta["leg"]))
            if leg is Leg.MASK:
                raise BadMessage("a vector is sent with its training only")
            keys = leg is Leg.ADVERTISE
            answer = self._keys(run, message, content) if keys else self._session(run, message).answer(content)
            found["message"] = as_tensor(answer)
        if "next" in message.tensors:
            following = Message(message.meta["next"])
            try:
                found["next"] = as_tensor(self._keys(run, following, as_bytes(message.tensors["next"])))
            except PrivflError as error:  # the sum before it has been opened, and is answered all the same
                self._say(f"refused: {brief(str(error), 400)}")
        return found

    def _keys(self, run: _Run, message: Message, content: bytes) -> bytes:
        """This client's keys for the session in ``content``; the same ones for as long as the process lives."""
        session = Session.from_bytes(content)
        if session.identity in run.keys:
            if run.keys[session.identity][0] != content:
                raise PolicyDiffers("the server proposes two secure sums of the same identity; the second is refused")
            return run.keys[session.identity][1]
        own = run.training.round(message, {})
        own.check_members(session.members)
        part = member(own.phase, session, self.own.number, self._secret, self.federation.keys, self.diary.store)
        keys = part.answer(content)
        run.sessions[session.identity], run.keys[session.identity] = part, (content, keys)
        run.sums[session.identity] = own.sum
        for old in list(run.sessions)[:-SESSIONS_KEPT]:
            del run.sessions[old], run.keys[old], run.sums[old]
        return keys

    @staticmethod
    def _session(run: _Run, message: Message) -> SecureClient:
        identity = bytes.fromhex(str(message.meta["session"]))
        if identity not in run.sessions:
            raise BegunBefore(
                "the secure sum was begun before this process was started; it goes on without this client"
            )
        return run.sessions[identity]

    def _train(self, run: _Run, message: Message, mark: str) -> tuple[dict[str, object], Tensors, Tensors]:
        """What one phase of a round comes to, and what is kept after it: priced, charged and written down before it is
        computed."""
        meta = message.meta
        factor, kept = float(meta["factor"]), self.diary.kept(run.key, int(meta["kept"]))
        own = run.training.round(message, kept)
        what = f"round {own.number}{own.phase.label}"
        costs = own.costs()
        if run.training.plan.hides_weights and self.diary.begun(run.key, "sum of sizes") is None:
            books = self._afford(run, "opening a sum of sizes", [(EXACT_SUM, [0], 1)])
            self.diary.begin(run.key, "sum of sizes", "", books)
        if own.phase.channel.secure is not None:
            own.check_factor(factor, self._told(run))
            session = self._session(run, message)
            if run.sums[session.session.identity] != own.sum:
                raise PolicyDiffers(
                    "the server asks for a vector of another round, phase or cohort than its secure sum is for; no "
                    "noise share is sized for that"
                )
        fresh = self.diary.begun(run.key, what) is None
        if not fresh and own.number <= self.diary.newest(run.key) - ROUNDS_KEPT:
            raise NoLongerKept(f"{what} was answered before, and its answer is no longer kept")
        for name, value in own.told.items():
            if (first := self.diary.told(run.key).get(name, value)) != value:
                raise PolicyDiffers(
                    f"the server tells a {name} of {value}, and began this run with {first}; what is chosen anew in "
                    "every round may follow from earlier answers, and no budget would hold"
                )
        books = self._afford(run, what, costs) if fresh else self.diary.books(run.key)
        self.diary.begin(run.key, what, mark, books, told=own.told)
        result = own.train(run.noise)
        if result.upload is None:
            return {"kind": "dropped", "reason": result.dropped}, {}, {}
        if result.zeroed:
            self._say(f"{what}: the upload counts as zeros, because it {result.zeroed}")
        after = {**kept, **result.client_state} if result.client_state else {}
        if own.phase.channel.secure is None:
            return {"kind": "upload"}, result.upload, after
        if own.phase.channel.hides_weights:
            factor *= len(run.training.rows)
        vector = OwnVector(own.phase, own.received["parameters"], run.noise).of(self.own.number, result.upload, factor)
        masked = session.answer(as_bytes(message.tensors["letters"]), vector)
        return {"kind": "upload"}, {MASKED: as_tensor(masked)}, after
