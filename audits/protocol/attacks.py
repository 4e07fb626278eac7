"""The attacks of a server that tells different neighbours different stories, as stories for real clients."""

from __future__ import annotations

from collections import Counter

from audits.protocol.knowledge import Numbers, Run, Told
from privfl.privacy.secagg.session import Session

Culprits = dict[int, Numbers]


def divide(session: Session) -> tuple[Run, Culprits]:
    """Tell as many of every client's neighbours as the threshold that it dropped, and the others that it survived.

    On a sparse graph whose threshold is at most half of the holders this gives both secrets of everybody in one round.
    """
    dropped: dict[int, set[int]] = {member: set() for member in session.members}
    for victim in session.members:
        tellers = sorted(session.holders[victim] - {victim}, key=lambda peer: (len(dropped[peer]), peer))
        for teller in tellers[: session.threshold]:
            dropped[teller].add(victim)
    run = {}
    for member in session.members:
        held = session.holders[member]
        run[member] = Told(held - {member}, held - dropped[member])
    return run, {}


def maroon(session: Session, victim: int) -> tuple[Run, Culprits]:
    """Give one client the fewest letters, and have its few mates declared dropped, or it to them as a culprit."""
    others = [member for member in session.members if member != victim]
    mates = others[: session.threshold - 1]
    most = len(session.members) - max(session.threshold, session.quorum)
    telling = mates[:most]
    dropped: dict[int, set[int]] = {member: set() for member in session.members}
    for mate in telling:
        dropped[mate].add(victim)
    load = Counter({member: len(names) for member, names in dropped.items()})
    for mate in mates[most:]:
        able = sorted(
            (member for member in others if member != mate and load[member] < most), key=lambda one: load[one]
        )
        for teller in able[: session.threshold]:
            dropped[teller].add(mate)
            load[teller] += 1
    everybody = frozenset(session.members)
    run = {member: Told(everybody - {member}, everybody - dropped[member]) for member in others}
    run[victim] = Told(frozenset(mates), frozenset(mates) | {victim})
    return run, {mate: frozenset({victim}) for mate in telling}
