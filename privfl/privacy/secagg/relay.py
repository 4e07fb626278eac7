"""What the server sends to each living client when a phase is closed: a message for every one, by its number."""

from __future__ import annotations

from collections.abc import Mapping

from privfl.privacy.secagg import bodies
from privfl.privacy.secagg.blame import Ledger
from privfl.privacy.secagg.bodies import PublicKeys, Request
from privfl.privacy.secagg.cohort import Cohort
from privfl.privacy.secagg.letters import Letter
from privfl.privacy.secagg.messages import Kind, pack
from privfl.privacy.secagg.session import SERVER, Session


def rosters(session: Session, cohort: Cohort, server: bytes, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
    """The ``server``'s public key, and the ``keys`` of everybody's living neighbours."""
    following = {}
    for member in sorted(cohort.living):
        told = {peer: keys[peer] for peer in cohort.peers(member)}
        following[member] = _message(session, Kind.ROSTER, member, bodies.roster(server, told))
    return following


def mailboxes(session: Session, cohort: Cohort, ledger: Ledger) -> dict[int, bytes]:
    """The letters of all sharers to their holders."""
    letters: dict[int, dict[int, Letter]] = {member: {} for member in cohort.sharers}
    for dealer in sorted(cohort.sharers):
        sent = ledger.letters_of(dealer)
        for holder in cohort.holders(dealer, cohort.sharers) - {dealer}:
            letters[holder][dealer] = sent[holder]
    return {
        member: _message(session, Kind.MAILBOX, member, bodies.mailbox(letters[member]))
        for member in sorted(cohort.sharers)
    }


def survivors(session: Session, cohort: Cohort) -> dict[int, bytes]:
    """The list of survivors, to be confirmed."""
    body = bodies.numbers(cohort.survivors)
    return {member: _message(session, Kind.SURVIVORS, member, body) for member in sorted(cohort.living)}


def requests(session: Session, cohort: Cohort, confirmations: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
    """Whose shares of which secret are asked for, and what peers have confirmed to the member that is asked."""
    active = session.adversary == "active"
    following = {}
    for member in sorted(cohort.living):
        held = cohort.held_by(member)
        asked = Request(
            sorted(cohort.survivors if active else held & cohort.survivors),
            sorted(held - cohort.survivors),
            sorted(held & cohort.seeds_of),
            {peer: tags[member] for peer, tags in confirmations.items() if member in tags},
        )
        following[member] = _message(session, Kind.REQUEST, member, asked.to_bytes())
    return following


def _message(session: Session, kind: Kind, member: int, body: bytes) -> bytes:
    return pack(session, kind, SERVER, member, body)
