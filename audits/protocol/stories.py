"""All stories that a lying server can tell the clients of a small session.

Left out is only what cannot help the server: a shorter roster (keeping the letters back does the same), keeping
accomplices' letters back (their masks are known, and they count towards the threshold), a list without accomplices
(they count towards the quorum), and asking for anything else than what was confirmed (the client refuses). Honest
clients are exchangeable on the complete graph, so of stories that differ in their names one is enough: clients come in
the order of how much they are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, product

from audits.protocol.knowledge import Numbers, Run, Setting, Told, broken, confirms, takes_part


def subsets(numbers: Numbers) -> Iterator[Numbers]:
    """All of them, the empty one included."""
    for size in range(len(numbers) + 1):
        yield from map(frozenset, combinations(sorted(numbers), size))


def options(setting: Setting, client: int) -> list[Told]:
    """All that one client can be told, without what it refuses with the same effect as being told nothing."""
    others = frozenset(range(setting.honest)) - {client}
    found = [Told(frozenset(), None)]  # left out from the start
    for forged in [frozenset()] if setting.signed else subsets(others):
        for letters in subsets(others):
            told = Told(letters, None, forged)
            if not takes_part(setting, told) or (letters, forged) == (frozenset(), frozenset()):
                continue
            found.append(told)
            for survivors in subsets(others):
                told = Told(letters, survivors | {client}, forged)
                if confirms(setting, client, told):
                    found.append(told)
    return found


def stories(setting: Setting) -> Iterator[tuple[Run, ...]]:
    """All stories of one run and, where clients take part again when they are made again, of two.

    Of two runs the second is left to stories in which everybody gets all letters and is told one list: there the
    clients do what they should, so that two of them are one break already.
    """
    everybody = range(setting.honest)
    # Sorted by how much each client gets, which some renaming of the clients always achieves.
    for told in product(*(options(setting, client) for client in everybody)):
        sizes = [(len(one.letters), len(one.survivors or ())) for one in told]
        if sizes == sorted(sizes):
            yield (dict(zip(everybody, told, strict=True)),)
    if not setting.once:
        for first, second in combinations_with_replacement(list(subsets(frozenset(everybody))), 2):
            yield tuple({client: Told(run - {client}, run) for client in sorted(run)} for run in (first, second) if run)


def breaks(setting: Setting, least_honest: int) -> dict[str, tuple[int, tuple[Run, ...] | None]]:
    """By kind of break (empty: none), how many stories end in it and the first that does."""
    found: dict[str, tuple[int, tuple[Run, ...] | None]] = {"": (0, None)}
    for story in stories(setting):
        kind = broken(setting, story, least_honest)
        count, first = found.get(kind, (0, story))
        found[kind] = (count + 1, first)
    return found
