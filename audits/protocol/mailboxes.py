"""All ways to hand letters out in a session of up to six honest clients, all at once.

On the complete graph one list of survivors at most gathers confirmations enough (two would need more honest clients
than there are), so a story is that list and every client's mailbox. Which sums open is decided without algebra, since
masks between two clients cancel only if both are in with the same factor: a set of clients opens if its members'
self-masks are known and each mask of theirs has both ends inside.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from audits.protocol.knowledge import Setting

Masks = NDArray[np.uint8]
"""Sets of clients, a bit each; one for every story."""


def openings(setting: Setting, listed: int, block: int = 1 << 20) -> tuple[int, list[int], int]:
    """What opens over all mailboxes while the first ``listed`` honest clients are on the list and the rest is dropped.

    The masks with whoever is dropped count as known. Only mailboxes with letters enough to send a vector are tried.

    Returns:
        how many stories there are; by number of clients, in how many of them some set of that size opens and no smaller
        set does; in how many two sets open.
    """
    n, whole = setting.honest, (1 << setting.honest) - 1
    boxes = [
        [box for box in range(whole + 1) if not box >> client & 1 and _enough(setting, box)] for client in range(listed)
    ]
    stories = int(np.prod([len(one) for one in boxes]))
    by_size, twice = [0] * (n + 1), 0
    for start in range(0, stories, block):
        index = np.arange(start, min(start + block, stories))
        letters: list[Masks] = []
        for one in boxes:
            index, digit = np.divmod(index, len(one))
            letters.append(np.array(one, np.uint8)[digit])
        sizes = _opened(setting, letters, listed)
        count = np.sum(sizes > 0, axis=0)
        twice += int(np.sum(count > 1))
        smallest = np.where(sizes > 0, sizes, n + 1).min(axis=0)
        for size in range(1, n + 1):
            by_size[size] += int(np.sum(smallest == size))
    return stories, by_size, twice


def _enough(setting: Setting, box: int) -> bool:
    return box.bit_count() + 1 + setting.accomplices >= setting.threshold


def _opened(setting: Setting, letters: list[Masks], listed: int) -> NDArray[np.uint8]:
    """[sets, stories] the number of clients in each set of listed clients that opens and has no smaller one in it."""
    everybody = np.uint8((1 << listed) - 1)
    held = [np.bitwise_count(box & everybody) + 1 + setting.accomplices for box in letters]
    counted = held if setting.counted else [np.full_like(one, listed + setting.accomplices) for one in held]
    confirming = [(one >= setting.threshold) & (two >= setting.quorum) for one, two in zip(held, counted, strict=True)]
    signed = reduce(np.add, (one.astype(np.uint8) for one in confirming)) + setting.accomplices >= setting.threshold
    known = []  # whose self-mask seed the server has
    for client in range(listed):
        shares = np.full(len(letters[0]), setting.accomplices, np.uint8)
        for holder in range(listed):
            has = (letters[holder] >> client & 1).astype(bool) if holder != client else True
            shares += (confirming[holder] & has).astype(np.uint8)
        known.append(signed & (shares >= setting.threshold))
    opened: dict[int, NDArray[np.bool_]] = {}
    for chosen in sorted(range(1, 1 << listed), key=int.bit_count):
        inside = [client for client in range(listed) if chosen >> client & 1]
        ok = np.logical_and.reduce([known[client] for client in inside])
        for client in inside:
            ok &= (letters[client] & everybody & np.uint8(~chosen & 0xFF)) == 0
            for peer in inside:
                if peer < client:
                    ok &= (letters[client] >> peer & 1) == (letters[peer] >> client & 1)
        for smaller, where in opened.items():
            if smaller & chosen == smaller:
                ok &= ~where  # a union of two that open, counted as these
        opened[chosen] = ok
    return np.stack([np.where(ok, np.uint8(chosen.bit_count()), np.uint8(0)) for chosen, ok in opened.items()])
