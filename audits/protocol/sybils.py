"""A server that plays everybody but one: keys of its own in all others' names, and the sum is the victim's vector."""

from __future__ import annotations

import secrets

import numpy as np

from audits.protocol.knowledge import Numbers
from privfl.privacy.secagg.bodies import Words
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import SecAggError
from privfl.privacy.secagg.primitives import KEY_BYTES, verification_key
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.store import MemoryStore


def impersonate(session: Session, victim: int, vector: Words) -> tuple[Words | None, str]:
    """Play the session to a real client whose peers are all the server's.

    The peers follow the protocol with keys of the server's and vectors of zeros. Under an active adversary the victim
    knows the true members' verification keys, and the server, who has not their signing keys, signs with others.

    Returns:
        what the server takes for the victim's vector, ``None`` if it gets none, and why the victim refused.
    """
    true_keys = {member: secrets.token_bytes(KEY_BYTES) for member in session.members}
    forged_keys = {member: secrets.token_bytes(KEY_BYTES) for member in session.members} | {victim: true_keys[victim]}
    active = session.adversary == "active"
    true, forged = (
        {member: verification_key(key) for member, key in keys.items()} if active else None
        for keys in (true_keys, forged_keys)
    )
    clients = {
        member: Client(
            session,
            member,
            signing_key=forged_keys[member] if active else None,
            verify_keys=true if member == victim else forged,
            store=MemoryStore(),
        )
        for member in session.members
    }
    server = Server(session, forged, take_back=False)
    inbox = dict.fromkeys(session.members, session.to_bytes())
    zeros = np.zeros_like(vector)
    while server.phase is not None:
        for member, data in inbox.items():
            try:
                sent = clients[member].answer(data, vector if member == victim else zeros)
            except SecAggError as refusal:
                if member != victim:
                    raise
                return None, str(refusal)
            server.receive(sent, member)
        inbox = server.close_phase()
    return server.result(), ""


def recovered(session: Session, vectors: dict[int, Words]) -> tuple[Numbers, Numbers]:
    """Whose vectors the server gets by playing the session to each client in turn, and who refused."""
    got, refused = set(), set()
    for victim, vector in vectors.items():
        found, refusal = impersonate(session, victim, vector)
        if found is not None and np.array_equal(found, vector):
            got.add(victim)
        if refusal:
            refused.add(victim)
    return frozenset(got), frozenset(refused)
