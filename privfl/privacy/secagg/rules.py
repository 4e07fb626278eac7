"""Which thresholds and quorums a session may have: what decides that one sum at most is opened, and a whole one.

The proofs are in ``docs/secure-aggregation-proof.md``; :mod:`audits.protocol` tries every strategy of small sessions
against these very functions.
"""

from __future__ import annotations

from typing import Literal

from privfl.errors import ConfigError
from privfl.privacy.secagg.parameters import least_sparse, most_corrupt

Adversary = Literal["semi-honest", "active"]

SECURITY_BITS = 40
"""On a random graph a session is as safe as it says except with probability 2^−40."""
LEAST_HONEST = 3
"""Fewest honest summands that hide each other unless a session says otherwise: of two, each knows the other's."""


def confirmations(clients: int, accomplices: int) -> int:
    """How many clients must sign one list of survivors before anybody answers an active server.

    More than half of the clients and accomplices: two lists would need more honest clients than there are, because an
    honest client signs one list.
    """
    return (clients + accomplices) // 2 + 1


def least_threshold(clients: int, degree: int, accomplices: int, adversary: Adversary) -> int:
    """The smallest threshold that keeps every sum whole.

    On the complete graph an active adversary must not reach it twice with the honest clients that there are, and one
    that follows the protocol gets half of the clients as a margin. On a sparse graph against an active adversary it is
    that of :mod:`~privfl.privacy.secagg.parameters`, for as many corrupt neighbours as chance leaves possible.
    """
    complete = degree == clients - 1
    if adversary == "active":
        if complete:
            return confirmations(clients, accomplices)
        return least_sparse(degree, most_corrupt(clients, accomplices, degree, SECURITY_BITS))
    return max(clients // 2, accomplices) + 1 if complete else 2


def check_threshold(clients: int, degree: int, threshold: int, accomplices: int, adversary: Adversary) -> None:
    """Return if the threshold is the least one or more.

    Raises:
        ConfigError: it is not, or the graph is sparse and the adversary active.
    """
    if adversary == "active" and degree < clients - 1:
        raise ConfigError(
            f"degree is {degree}, but against an active adversary every client needs all {clients - 1} others as "
            "neighbours: a client confirms survivors to its neighbours only."
        )
    if threshold >= least_threshold(clients, degree, accomplices, adversary):
        return
    if adversary == "active":
        raise ConfigError(
            f"threshold is {threshold}, but against an active adversary it must exceed (members + accomplices)/2 = "
            f"{(clients + accomplices) / 2:g}: raise it."
        )
    if threshold <= accomplices:
        raise ConfigError(f"threshold is {threshold}, but {accomplices} accomplices hold that many shares: raise it.")
    raise ConfigError(f"threshold is {threshold}, but must exceed half of the {clients} members: raise it.")


def least_quorum(clients: int, threshold: int, accomplices: int, least_honest: int, adversary: Adversary) -> int:
    """The fewest survivors whose sum holds ``least_honest`` honest vectors and can be opened at all."""
    return max(
        threshold, accomplices + least_honest, confirmations(clients, accomplices) if adversary == "active" else 0
    )


def check_quorum(
    clients: int, threshold: int, quorum: int, accomplices: int, least_honest: int, adversary: Adversary
) -> None:
    """Return if no sum of fewer honest clients than stated can be opened with this quorum.

    Raises:
        ConfigError: it can, or there are not so many clients.
    """
    if least_honest < 2:
        raise ConfigError(f"a session's least_honest is {least_honest}; a sum of one hides nobody: give 2 or more.")
    if accomplices + least_honest > clients:
        raise ConfigError(
            f"a session of {clients} members, {accomplices} of them accomplices, never opens on {least_honest} honest "
            "ones: add members, or lower accomplices or least_honest."
        )
    if quorum > clients:
        raise ConfigError(f"a session's quorum is {quorum}, but there are {clients} members: lower it.")
    if quorum < accomplices + least_honest:
        raise ConfigError(
            f"quorum is {quorum}, of whom {accomplices} may be accomplices, but a sum must hold the vectors of "
            f"{least_honest} honest clients: raise it to {accomplices + least_honest}."
        )
    if quorum < (least := least_quorum(clients, threshold, accomplices, least_honest, adversary)):
        raise ConfigError(f"quorum is {quorum}, but no sum of fewer than {least} can be opened: raise it.")
