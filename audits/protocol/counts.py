"""Strategies on the complete graph by counting clients: exhaustive at any size, since honest clients are exchangeable.

A strategy that wants the sum of some honest clients alone splits the honest into three: those *inside*, those who are
on the same list but *outside*, and those who are declared *dropped*. The rest follows, each choice the best for the
server. Who is inside gets the letters of all that are inside or dropped, whose masks count as known, and none from
outside; who is outside gets all letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from audits.protocol.knowledge import Setting


@dataclass(frozen=True)
class Split:
    """How many honest clients are where."""

    inside: int
    outside: int
    dropped: int


def splits(setting: Setting) -> Iterator[Split]:
    """All of them with somebody inside."""
    for inside in range(1, setting.honest + 1):
        for outside in range(setting.honest - inside + 1):
            yield Split(inside, outside, setting.honest - inside - outside)


def opens(setting: Setting, split: Split) -> bool:
    """Whether the sum of those inside opens to a server whose clients confirm lists."""
    accomplices, threshold = setting.accomplices, setting.threshold
    if split.inside + split.dropped + accomplices < threshold:
        return False  # those inside have too few letters and send no vector
    listed = split.inside + split.outside
    counted = (split.inside if setting.counted else listed) + accomplices
    inside = split.inside if split.inside + accomplices >= threshold and counted >= setting.quorum else 0
    outside = split.outside if listed + accomplices >= max(threshold, setting.quorum) else 0
    return inside + outside + accomplices >= threshold


def sums_of_too_few(setting: Setting, least_honest: int) -> list[Split]:
    """The splits whose sum opens although fewer than ``least_honest`` are inside."""
    return [split for split in splits(setting) if split.inside < least_honest and opens(setting, split)]


def two_sums(setting: Setting) -> list[tuple[int, int]]:
    """The sizes of two disjoint groups whose sums both open: under one list, or under two that both get confirmed."""
    least = max(setting.threshold, setting.quorum if setting.counted else 0) - setting.accomplices
    first = range(max(least, 1), setting.honest + 1)
    return [(one, other) for one in first for other in first if one <= other and one + other <= setting.honest]


def two_lists(setting: Setting) -> bool:
    """Whether two lists can both be confirmed, by honest clients who sign one each and accomplices who sign both."""
    return 2 * max(setting.threshold - setting.accomplices, 0) <= setting.honest


def split_victim(setting: Setting) -> bool:
    """Without confirmations: whether both secrets of one client can be had, from holders who are told two stories."""
    holders = setting.threshold - setting.accomplices
    return 2 * holders <= setting.honest and setting.honest + setting.accomplices - 1 >= max(
        setting.threshold, setting.quorum
    )


def lonely_victim(setting: Setting, culprits: bool) -> bool:
    """Without confirmations: whether one client's masks can be had from its mates, of whom it is given the fewest.

    Its mailbox holds the letters of all accomplices and of so many mates as it asks for. Where ``culprits`` can be
    named, some mates are told that the victim is one, and open the mask they share with it. Each other mate is declared
    dropped to as many holders as reveal its mask key; a client takes so many as dropped as leave it survivors enough,
    and itself never. Everybody else says that the victim survived.
    """
    honest, holders = setting.honest, setting.threshold - setting.accomplices
    mates = holders - 1
    if mates <= 0:
        return True
    if mates >= honest:
        return False
    each = honest + setting.accomplices - max(setting.threshold, setting.quorum)
    for telling in range(min(mates, honest - holders, each and mates) * culprits + 1):
        rest = mates - telling
        tellable = telling * min(each - 1, rest) + rest * min(each, rest - 1) + (honest - mates - 1) * min(each, rest)
        if tellable >= rest * holders:
            return True
    return False
