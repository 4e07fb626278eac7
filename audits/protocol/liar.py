"""A server that lies, against real clients: it plays a story found in symbols and computes the sums it promises."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from audits.protocol.knowledge import Numbers, Run, Told
from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import (
    PAIR_SEED,
    Dealing,
    Request,
    Words,
    mailbox,
    numbers,
    parse_answer,
    parse_confirmation,
    parse_mailbox,
    parse_masked,
)
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import BadShare, SecAggError
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK, open_seeds
from privfl.privacy.secagg.masking import commitment, on_threads, sign_of
from privfl.privacy.secagg.messages import Kind, body_of, pack, unpack
from privfl.privacy.secagg.primitives import KEY_BYTES, verification_key
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import SERVER, Session
from privfl.privacy.secagg.store import MemoryStore, Store

Vectors = Mapping[int, Words]


@dataclass
class Loot:
    """What a lying server holds after a session: all messages, and the secrets that the shares revealed give."""

    session: Session
    masked: dict[int, Words] = field(default_factory=dict)
    letters: dict[int, Numbers] = field(default_factory=dict)
    commitments: dict[int, bytes] = field(default_factory=dict)
    dealings: dict[int, Dealing] = field(default_factory=dict)
    shares: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)
    seeds: dict[tuple[int, int], bytes] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    def sum_of(self, members: Collection[int]) -> Words | None:
        """The bare sum of the vectors of ``members``, if all masks in theirs are known or cancel."""
        if not members or not set(members) <= self.masked.keys():
            return None
        total = np.zeros(self.session.length, self.session.word)
        known: list[tuple[bytes, int]] = []
        for member in members:
            seed = self._self_seed(member)
            if seed is None:
                return None
            total += self.masked[member]
            known.append((seed, -1))
            for peer in self.letters[member]:
                if peer in members and member in self.letters[peer]:
                    continue  # cancels
                if (between := self._pair_seed(member, peer)) is None:
                    return None
                known.append((between, -sign_of(member, peer)))
        on_threads(1)(total, known)
        total &= total.dtype.type(self.session.largest)
        return total

    def _secret(self, owner: int, which: int) -> bytes | None:
        given = self.shares.get((owner, which), {})
        if len(given) < self.session.threshold:
            return None
        try:
            return shamir.combine(dict(sorted(given.items())[: self.session.threshold]), self.session.threshold)
        except BadShare:
            return None

    def _self_seed(self, member: int) -> bytes | None:
        seed = self._secret(member, SELF_MASK)
        return seed if seed and commitment(self.session, member, seed) == self.commitments[member] else None

    def _pair_seed(self, member: int, peer: int) -> bytes | None:
        for one, other in ((member, peer), (peer, member)):
            if (one, other) in self.seeds:
                return self.seeds[one, other]
            if secret := self._secret(one, MASK_KEY):
                dealing = self.dealings[one]
                return open_seeds(self.session, one, secret, dealing.seeds, dealing.letters)[other]
        return None


def play(
    session: Session,
    vectors: Vectors,
    run: Run,
    *,
    culprits: Mapping[int, Numbers] | None = None,
    stores: Mapping[int, Store] | None = None,
    make_client: Callable[..., Client] = Client,
) -> Loot:
    """Tell real clients the stories of ``run``, and keep what they answer.

    Keys and shares are relayed as they should be; from the mailboxes on every client gets its own story. Everybody
    confirms what it is told, and gets all confirmations of its own list. Who refuses is noted with its reason.

    ``culprits``: whom of the dropped a client is told to be a culprit, so that it opens the pair's seed instead of its
    share of a mask key. ``stores``: what clients remember of earlier sessions; nothing unless given.
    """
    signing = (
        {member: secrets.token_bytes(KEY_BYTES) for member in session.members} if session.adversary == "active" else {}
    )
    verifying = {member: verification_key(key) for member, key in signing.items()} or None
    loot = Loot(session)
    clients: dict[int, Client] = {}
    for member in run:
        store = (stores or {}).get(member) or MemoryStore()
        try:
            clients[member] = make_client(
                session, member, signing_key=signing.get(member), verify_keys=verifying, store=store
            )
        except SecAggError as error:
            loot.refusals[member] = str(error)
    relay = Server(session, verifying)
    inbox: dict[int, bytes] = {}
    for member, client in clients.items():
        sent = client.answer(session.to_bytes())
        relay.receive(sent, member)
    inbox = _close(relay, loot)
    for member, roster in inbox.items():
        sent = clients[member].answer(roster)
        loot.dealings[member] = Dealing.from_bytes(body_of(sent), signed=verifying is not None)
        relay.receive(sent, member)
    inbox = _close(relay, loot)
    for member, told in run.items():
        if member in inbox:
            _mask(loot, clients[member], inbox[member], told, vectors[member])
    tags: dict[int, dict[int, bytes]] = {}
    asked = {member: told for member, told in run.items() if member in loot.masked and told.survivors is not None}
    if session.adversary == "active":
        for member, told in list(asked.items()):
            data = _say(session, member, Kind.SURVIVORS, numbers(told.survivors or ()))
            try:
                sent = clients[member].answer(data)
            except SecAggError as error:
                loot.refusals[member] = str(error)
                del asked[member]
            else:
                tags[member] = parse_confirmation(body_of(sent))[1]
    for member, told in asked.items():
        confirmed = {peer: one for peer, one in asked.items() if peer in tags}
        _ask(loot, clients[member], told, confirmed, tags, (culprits or {}).get(member, frozenset()))
    return loot


def _close(relay: Server, loot: Loot) -> dict[int, bytes]:
    try:
        return relay.close_phase()
    except SecAggError as error:
        loot.refusals[SERVER] = str(error)
        return {}


def _mask(loot: Loot, client: Client, data: bytes, told: Told, vector: Words) -> None:
    session, member = loot.session, client.number
    letters = parse_mailbox(unpack(session, data, member).body, session)
    chosen = {dealer: letter for dealer, letter in letters.items() if dealer in told.letters}
    try:
        sent = client.answer(_say(session, member, Kind.MAILBOX, mailbox(chosen)), vector)
    except SecAggError as error:
        loot.refusals[member] = str(error)
        return
    committed, _, words = parse_masked(body_of(sent), session)
    loot.masked[member], loot.commitments[member] = words.copy(), committed
    loot.letters[member] = frozenset(chosen)


def _ask(
    loot: Loot,
    client: Client,
    told: Told,
    asked: Mapping[int, Told],
    tags: Mapping[int, Mapping[int, bytes]],
    culprits: Numbers,
) -> None:
    """Ask for shares under the client's own list."""
    session, member = loot.session, client.number
    survivors = told.survivors or frozenset()
    held = loot.letters[member] | {member}
    warrant = {
        peer: tags[peer][member] for peer, one in asked.items() if one.survivors == survivors and member in tags[peer]
    }
    named = survivors if session.adversary == "active" else survivors & held
    dropped = sorted(held - survivors)
    request = Request(sorted(named), dropped, sorted(culprits), warrant)
    try:
        sent = client.answer(_say(session, member, Kind.REQUEST, request.to_bytes()))
    except SecAggError as error:
        loot.refusals[member] = str(error)
        return
    for owner, (what, one) in parse_answer(body_of(sent)).items():
        if what == PAIR_SEED:
            loot.seeds[member, owner] = one
        else:
            loot.shares.setdefault((owner, what), {})[session.points[member]] = one


def _say(session: Session, member: int, kind: Kind, body: bytes) -> bytes:
    return pack(session, kind, SERVER, member, body)
