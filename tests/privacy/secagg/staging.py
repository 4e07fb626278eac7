"""A session played by hand: every client, the server, what each gets next, and everything that was sent."""

import copy
import hashlib
import itertools

import numpy as np

from privfl.privacy.secagg.blame import Ledger
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.cohort import Cohort
from privfl.privacy.secagg.messages import SERVER, Kind, Phase, pack
from privfl.privacy.secagg.primitives import SigningKey, verification_key
from privfl.privacy.secagg.recovery import Recovery
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.spool import Spool
from privfl.privacy.secagg.store import MemoryStore

SENDER = slice(44, 48)
"""Where a message names its sender."""
SERVER_SENDS = {
    Phase.SHARE: Kind.ROSTER,
    Phase.MASK: Kind.MAILBOX,
    Phase.CONFIRM: Kind.SURVIVORS,
    Phase.UNMASK: Kind.REQUEST,
}


def a_session(n=5, threshold=3, *, length=3, bits=32, adversary="semi-honest", degree=None, **rest):
    identity = hashlib.sha256(f"{n} {threshold} {length} {bits} {adversary} {degree} {rest}".encode()).digest()
    rest.setdefault("round", 7)
    members = rest.pop("members", tuple(range(n)))
    rest.setdefault("least_honest", 2)
    return Session(identity, rest.pop("round"), members, degree or n - 1, threshold, length, bits, adversary, **rest)


def entropy_of(*labels):
    """Bytes that look random and are the same in every run."""
    counter = itertools.count()
    return lambda n: hashlib.shake_256(f"{labels} {next(counter)}".encode()).digest(n)


def vectors_for(session, seed=0):
    random = np.random.default_rng([seed, session.bits, session.length])
    draw = lambda: random.integers(0, session.largest, session.length, session.word.newbyteorder("="), endpoint=True)  # noqa: E731
    return {member: draw() for member in session.members}


def sum_of(session, vectors, members):
    """The sum in Python's integers, reduced at the end."""
    columns = zip(*(vectors[member].tolist() for member in members), strict=True)
    return [sum(column) % 2**session.bits for column in columns]


def twin(client):
    """The client as it is now, to go on from here by itself."""
    other = copy.copy(client)
    for name in ("_keys", "_confirming", "_pair_seeds", "_shares"):
        setattr(other, name, getattr(client, name).copy())
    return other


def own_copy(part):
    """A part of a server that goes on by itself: its dictionaries, and what they hold, are its own."""
    part = copy.copy(part)
    for name, kept in vars(part).items():
        if isinstance(kept, dict):
            inner = {key: copy.copy(one) if isinstance(one, set | dict) else one for key, one in kept.items()}
            setattr(part, name, inner)
    return part


class Kept:
    """A spool that goes on from another, so that a fork does not write where its origin does."""

    def __init__(self, origin):
        self.origin, self.vectors = origin, {}

    def keep(self, member, words):
        self.vectors[member] = words.copy()

    def take(self, member, like):
        return self.vectors[member] if member in self.vectors else self.origin.take(member, like)

    def close(self):
        self.vectors.clear()


class Stage:
    """Clients and server of one session; ``inbox`` is what each living client has to answer next."""

    def __init__(self, session, vectors=None, *, label="stage", make_client=Client, add_masks=None):
        self.session = session
        self.vectors = vectors if vectors is not None else vectors_for(session)
        self.signing = {}
        if session.adversary == "active":
            self.signing = {m: hashlib.sha256(f"signing {m}".encode()).digest() for m in session.members}
        self.verifying = {m: verification_key(key) for m, key in self.signing.items()} or None
        self.clients = {
            m: make_client(
                session,
                m,
                signing_key=self.signing.get(m),
                verify_keys=self.verifying,
                entropy=entropy_of(label, m),
                store=MemoryStore(),
                add_masks=add_masks,
            )
            for m in session.members
        }
        self.server = Server(session, self.verifying, add_masks=add_masks, entropy=entropy_of(label, "server"))
        self.inbox = dict.fromkeys(session.members, session.to_bytes())
        self.sent = {}

    def answer(self, phase, member):
        assert self.clients[member]._due in (phase, None)
        return self.clients[member].answer(self.inbox[member], self.vectors[member])

    def play(self, silent=()):
        """Everybody but the silent answers in the open phase."""
        phase = self.server.phase
        for member in sorted(self.inbox.keys() - set(silent)):
            self.sent[phase, member] = self.answer(phase, member)
            self.server.receive(self.sent[phase, member], member)
        return self

    def receive(self, data):
        """Hand a message to the server as coming from whom it names, like a transport on which nobody lies."""
        self.server.receive(data, int.from_bytes((data or b"")[SENDER], "little"))

    def close(self):
        self.inbox = self.server.close_phase()
        return self

    def until(self, phase, lost=None):
        """Play and close every phase before ``phase``; ``lost`` says who is silent in which phase."""
        while self.server.phase != phase:
            self.play((lost or {}).get(self.server.phase, ())).close()
        return self

    def fork(self):
        """A stage that goes on from here by itself; what nobody changes is shared."""
        other = copy.copy(self)
        other.clients = {member: twin(client) for member, client in self.clients.items()}
        other.inbox, other.sent = dict(self.inbox), dict(self.sent)
        other.server = copy.copy(self.server)
        for name, value in vars(self.server).items():
            if isinstance(value, Spool | Kept):
                value = Kept(value)
            elif isinstance(value, dict):
                value = {key: dict(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
            elif isinstance(value, set | np.ndarray):
                value = value.copy()
            elif isinstance(value, Cohort | Ledger | Recovery):
                value = own_copy(value)
            setattr(other.server, name, value)
        other.server._recovery._ledger = other.server._cohort._ledger = other.server._ledger
        return other

    def from_server(self, member, body, kind=None):
        """A message of the server's with any body, for the phase that is open."""
        return pack(self.session, kind or SERVER_SENDS[self.server.phase], SERVER, member, body)

    def from_client(self, member, kind, body):
        signing = self.signing.get(member)
        key = (signing and SigningKey(signing)) if kind is Kind.KEYS else self.server._seal_keys.get(member, bytes(32))
        return pack(self.session, kind, member, SERVER, body, key)
