"""All strategies with up to three different stories, at any size: who is told the same is counted, not told apart.

Honest clients are exchangeable on the complete graph, so a strategy is a multiset of stories. Here the clients fall
into at most three *blocks*. The members of a block are told the same: of which blocks they get the letters, and which
blocks are on the list of survivors that they confirm and are asked about, if they are asked. Everything else is tried:
several lists at once, letters that only one side gets, lists that name whose letters were kept back. Nothing is left to
an argument of what would be best for the server; that one says why three stories are enough
(``docs/secure-aggregation-proof.md``).

Accomplices only shift what is counted: they sign every list and give every share, so a session with c of them,
threshold t and quorum q is one without any, with t − c and q − c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from audits.protocol.knowledge import Numbers, Setting, Told

MOST_BLOCKS = 3
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Strategies:
    """All of them for so many blocks, side by side.

    ``letters[a, b]`` says in which a member of block a gets the letters of block b (of the others, if it is its own),
    ``lists[a, b]`` in which block b is on the list that block a is told, ``told[a]`` in which it is told any.
    """

    letters: Flags
    lists: Flags
    told: Flags

    @classmethod
    def of(cls, blocks: int) -> Strategies:
        """Every block gets any letters, and any list that it is on, or none: it would refuse another one."""
        subsets = [np.array(bits, bool) for bits in product((False, True), repeat=blocks)]
        options = [
            [(letters, listed, bool(listed[block])) for letters in subsets for listed in subsets if _may(listed, block)]
            for block in range(blocks)
        ]
        chosen = np.indices([len(one) for one in options]).reshape(blocks, -1)

        def pick(part: int) -> Flags:
            tables = [np.array([option[part] for option in one]) for one in options]
            return np.stack([table[rows].T for table, rows in zip(tables, chosen, strict=True)])

        return cls(pick(0), pick(1), pick(2))

    def __len__(self) -> int:
        return len(self.told.T)

    def run(self, place: int, sizes: Sequence[int]) -> dict[int, Told]:
        """One strategy as the stories of single clients, block after block."""
        block_of = [block for block, size in enumerate(sizes) for _ in range(size)]
        clients = range(len(block_of))
        run = {}
        for client in clients:
            own = block_of[client]
            letters = {peer for peer in clients if peer != client and self.letters[own, block_of[peer], place]}
            listed = {peer for peer in clients if self.lists[own, block_of[peer], place]}
            run[client] = Told(frozenset(letters), frozenset(listed) if self.told[own, place] else None)
        return run


def three_stories(setting: Setting, survivors: Numbers, inside: Numbers) -> dict[int, Told]:
    """The stories that open the sum over ``inside`` if any do under the list ``survivors``, which enough confirm.

    Those inside do not get the letters of other survivors, and everybody else gets all.
    """
    everybody = frozenset(range(setting.honest))
    run = {}
    for client in everybody:
        letters = everybody - (survivors - inside if client in inside else frozenset()) - {client}
        run[client] = Told(letters, survivors if client in survivors else None)
    return run


def partitions(clients: int) -> Iterator[tuple[int, ...]]:
    """Sizes of one to three blocks that hold all ``clients``, the largest first."""
    for blocks in range(1, MOST_BLOCKS + 1):
        for sizes in product(range(1, clients + 1), repeat=blocks):
            if sum(sizes) == clients and list(sizes) == sorted(sizes, reverse=True):
                yield sizes


def openings(setting: Setting, sizes: Sequence[int], all_of_them: Strategies) -> tuple[NDArray[np.int64], Flags]:
    """By strategy, of how many clients the smallest sum is that opens (0: none does), and whether several open."""
    blocks, letters, lists = range(len(sizes)), all_of_them.letters, all_of_them.lists
    threshold, quorum = setting.threshold - setting.accomplices, setting.quorum - setting.accomplices
    others = np.array(sizes)[None, :] - np.eye(len(sizes), dtype=int)
    held = 1 + np.einsum("abs,ab->as", letters, others)
    on_list = 1 + np.einsum("abs,ab->as", letters & lists, others)
    listed = np.einsum("abs,b->as", lists, np.array(sizes))
    sends = held >= threshold
    counted = on_list if setting.counted else listed
    confirms = all_of_them.told & sends & (on_list >= threshold) & (counted >= quorum)
    if not setting.confirmed:
        confirms &= on_list == listed
    signers = sum(((lists == lists[b]).all(axis=1) & confirms[b]) * sizes[b] for b in blocks)
    answers = confirms & (signers >= threshold) if setting.confirmed else confirms
    alive, dead = np.zeros_like(held), np.zeros_like(held)
    for holder, owner in product(blocks, blocks):
        shares = letters[holder, owner] * others[owner, holder] + (holder == owner)
        alive[owner] += shares * (answers[holder] & lists[holder, owner])
        dead[owner] += shares * (answers[holder] & ~lists[holder, owner])
    key_known = dead >= threshold
    uses = np.zeros_like(letters)  # masks that are not known
    for one, other in product(blocks, blocks):
        opened = answers[one] & letters[one, other] & ~lists[one, other]
        opened |= answers[other] & letters[other, one] & ~lists[other, one]
        there = others[one, other] > 0
        uses[one, other] = sends[one] & letters[one, other] & ~key_known[one] & ~key_known[other] & ~opened & there
    return _closed(sizes, sends & (alive >= threshold), uses)


def _closed(sizes: Sequence[int], bare: Flags, uses: Flags) -> tuple[NDArray[np.int64], Flags]:
    """The smallest set whose masks all cancel, among blocks whose self-masks are known, and whether there are several.

    A mask cancels if both its ends use it and both are in the set, so a set holds whoever uses a mask with its members.
    """
    blocks = range(len(sizes))
    linked = uses & uses.transpose(1, 0, 2)
    for _ in blocks:
        bare = bare & np.stack([(~uses[a] | (linked[a] & bare)).all(axis=0) for a in blocks])
    together = linked | np.eye(len(sizes), dtype=bool)[:, :, None]
    for _ in blocks:
        together = together | np.einsum("abs,bcs->acs", together, together)
    whole = np.einsum("abs,b->as", together, np.array(sizes))
    single = ~linked.any(axis=1)  # members of such a block have no mask with anybody, so each is a set by itself
    size = np.where(single, 1, whole)
    smallest = np.where(bare, size, np.iinfo(np.int64).max).min(axis=0)
    opened = bare.any(axis=0)
    covered = np.einsum("as,a->s", bare, np.array(sizes))
    return np.where(opened, smallest, 0), opened & (covered > smallest)


def tried(honest: int, threshold: int, quorum: int, prepared: Sequence[Strategies]) -> tuple[int, int, int]:
    """For honest clients alone: how many strategies there are, in how many a sum opens, in how many a wrong one does.

    Wrong is a sum of fewer clients than the quorum, or a second one. ``prepared`` holds the strategies of one block, of
    two and of three.
    """
    setting = Setting(honest, 0, threshold, quorum)
    count = opened = wrong = 0
    for sizes in partitions(honest):
        smallest, several = openings(setting, sizes, prepared[len(sizes) - 1])
        count += len(smallest)
        opened += int((smallest > 0).sum())
        wrong += int((((smallest > 0) & (smallest < quorum)) | several).sum())
    return count, opened, wrong


def _may(listed: Flags, block: int) -> bool:
    return bool(listed[block]) or not listed.any()
