"""What a lying server knows at the end: which linear combinations of honest vectors it can compute.

Symbols stand for everything that is random (Dolev and Yao, "On the security of public key protocols", 1983): every
instance of a client has a vector x, a self-mask b and one mask p for each honest peer, and sends y = x + b + Σ ± p over
the peers whose letters it holds. Shares are perfect: a secret is known from the threshold of shares on, and not at all
below. What remains unknown is removed by linear algebra: the server can compute a combination of the y exactly if all
unknown masks cancel in it. Masks and vectors of accomplices are known, so that only honest clients appear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Numbers = frozenset[int]


@dataclass(frozen=True)
class Setting:
    """One session on the complete graph, as far as it decides what a server may learn, and the guards of its clients.

    Args:
        honest: number of honest clients, numbered from 0.
        accomplices: number of members that share all they know with the server, sign every list and keep to no rule.
        threshold: shares that reveal a secret; letters below which a client sends no vector.
        quorum: survivors below which a client confirms and answers nothing.
        confirmed: a client answers under one list only, and only if as many as the threshold have confirmed it.
        counted: a client counts only survivors whose letters it holds.
        once: a client takes part once, also if it was made again.
        signed: a client accepts only keys that their owner has signed.
    """

    honest: int
    accomplices: int
    threshold: int
    quorum: int
    confirmed: bool = True
    counted: bool = True
    once: bool = True
    signed: bool = True


@dataclass(frozen=True)
class Told:
    """What one instance of an honest client is told.

    Args:
        letters: honest peers whose letters it gets; those of accomplices, whose masks are known anyway, always come.
        survivors: the honest clients on the list that it confirms and is asked about; ``None``: it is asked nothing.
        forged: peers whose keys the server has replaced by its own, which needs keys that are not signed.
    """

    letters: Numbers
    survivors: Numbers | None
    forged: Numbers = frozenset()


Run = Mapping[int, Told]
"""One run of the protocol by client. A server that has clients made again can have several runs of one session."""


def confirms(setting: Setting, client: int, told: Told) -> bool:
    """Whether an instance confirms, and without confirmations answers, the list that it is told."""
    if told.survivors is None or client not in told.survivors:
        return False
    held = told.letters | {client}
    if not setting.confirmed and not told.survivors <= held:
        return False
    counted = told.survivors & held if setting.counted else told.survivors
    return (
        len(told.survivors & held) + setting.accomplices >= setting.threshold
        and len(counted) + setting.accomplices >= setting.quorum
    )


def takes_part(setting: Setting, told: Told) -> bool:
    """Whether an instance gets letters enough to send its vector."""
    return len(told.letters) + 1 + setting.accomplices >= setting.threshold


def known_sums(setting: Setting, runs: Sequence[Run]) -> list[tuple[int, ...]]:
    """A basis, in echelon form, of the combinations of the honest vectors that the server can compute."""
    signers: dict[Numbers, set[int]] = {}
    for run in runs:
        for client, told in run.items():
            if takes_part(setting, told) and confirms(setting, client, told):
                signers.setdefault(_list(told), set()).add(client)
    rows: list[dict[tuple[int, ...], int]] = []
    for place, run in enumerate(runs):
        senders = {client: told for client, told in run.items() if takes_part(setting, told)}
        answering = [
            client
            for client, told in senders.items()
            if confirms(setting, client, told)
            and (not setting.confirmed or len(signers[_list(told)]) + setting.accomplices >= setting.threshold)
        ]
        alive, dead, opened = _revealed(senders, answering)
        for client, told in senders.items():
            own = setting.accomplices + len(told.forged)
            row: dict[tuple[int, ...], int] = {(-1, client): 1}
            if alive[client] + own < setting.threshold:
                row[(place, client)] = 1
            for peer in told.letters - told.forged:
                theirs = setting.accomplices + (len(senders[peer].forged) if peer in senders else 0)
                secret = dead[client] + own < setting.threshold and dead[peer] + theirs < setting.threshold
                if secret and not opened & {(client, peer), (peer, client)}:
                    row[(place, min(client, peer), max(client, peer))] = 1 if client < peer else -1
            rows.append(row)
    return _without_masks(rows, setting.honest)


def _list(told: Told) -> Numbers:
    assert told.survivors is not None
    return told.survivors


def _revealed(senders: Run, answering: Collection[int]) -> tuple[Counter[int], Counter[int], set[tuple[int, int]]]:
    """Of how many honest holders the server has a share of each client's self-mask seed and of its mask key.

    Also the pairs whose seed an answer opens at once: the server may call whoever dropped a culprit. It gets that
    instead of the share, not as well; here it gets both, which is on the safe side.
    """
    alive, dead, opened = Counter[int](), Counter[int](), set()
    for holder in answering:
        survivors = _list(senders[holder])
        for owner in senders[holder].letters | {holder}:
            (alive if owner in survivors else dead)[owner] += 1
            if owner not in survivors:
                opened.add((holder, owner))
    return alive, dead, opened


def _without_masks(rows: Sequence[Mapping[tuple[int, ...], int]], honest: int) -> list[tuple[int, ...]]:
    """The row space of ``rows`` where every mask is zero, projected to the vectors, by exact elimination."""
    masks = sorted({symbol for row in rows for symbol in row if symbol[0] >= 0})
    columns = [*masks, *((-1, client) for client in range(honest))]
    matrix = [[Fraction(row.get(symbol, 0)) for symbol in columns] for row in rows]
    rank = 0
    for column in range(len(columns)):
        pivot = next((row for row in matrix[rank:] if row[column]), None)
        if pivot is None:
            continue
        matrix.remove(pivot)
        pivot = [value / pivot[column] for value in pivot]
        matrix = [
            [value - row[column] * by for value, by in zip(row, pivot, strict=True)] if row[column] else row
            for row in matrix
        ]
        matrix.insert(rank, pivot)
        rank += 1
    kept = [row[len(masks) :] for row in matrix[:rank] if not any(row[: len(masks)])]
    return [tuple(int(value) if value.denominator == 1 else 2 for value in row) for row in kept]


def broken(setting: Setting, runs: Sequence[Run], least_honest: int) -> str:
    """What the server has that it must not have; empty if it has one sum of ``least_honest`` clients or more, or none.

    ``"vector"``: that of a single client. ``"sums"``: two different combinations, whose difference is a third.
    ``"few"``: one sum, of too few.
    """
    known = known_sums(setting, runs)
    if any(sum(map(bool, row)) == 1 for row in known):
        return "vector"
    if len(known) > 1:
        return "sums"
    if known and (set(known[0]) - {0, 1} or sum(known[0]) < least_honest):
        return "few"
    return ""
