"""What a lying server gets from secure aggregation: by every strategy of small sessions, by search, from real clients.

    python benchmarks/secagg_attacks.py OUT.json [PART ...]

All parts take about ten minutes on one quiet core; what OUT.json holds of other parts is kept. The raw results are
those of docs/results/secagg-attacks.json.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audits.protocol import blocks, circles, counts, mailboxes
from audits.protocol.attacks import divide, maroon
from audits.protocol.knowledge import Setting
from audits.protocol.liar import play
from audits.protocol.stories import breaks
from audits.protocol.sybils import recovered as recovered_by_sybils
from privfl.errors import ConfigError
from privfl.privacy.secagg.parameters import ThreatModel, find
from privfl.privacy.secagg.rules import Adversary, check_quorum, check_threshold, least_quorum, least_threshold
from privfl.privacy.secagg.session import Session

LENGTH = 3
CORRUPT, DROPOUT = 0.1, 0.3
"""The default of SecureSum."""
SIZES = (10, 20, 30, 50, 100, 200)
LARGE = (20, 50, 100, 200)
SYBILS = (10, 20)
"""A session for every victim, so larger cohorts only take longer."""
ADVERSARIES: tuple[Adversary, ...] = ("semi-honest", "active")
GUARDS: dict[str, tuple[Setting, int]] = {
    "all guards, 3 honest": (Setting(3, 0, threshold=2, quorum=3), 3),
    "all guards, 4 honest": (Setting(4, 0, threshold=3, quorum=3), 3),
    "all guards, 3 honest and 1 accomplice": (Setting(3, 1, threshold=3, quorum=4), 3),
    "all guards, 2 honest and 2 accomplices": (Setting(2, 2, threshold=4, quorum=4), 2),
    "no confirmations": (Setting(3, 0, threshold=2, quorum=2, confirmed=False), 2),
    "threshold (members + accomplices)/2": (Setting(3, 1, threshold=2, quorum=2), 2),
    "quorum of 2 where 3 honest are stated": (Setting(3, 0, threshold=2, quorum=2), 3),
    "names count towards the quorum": (Setting(3, 0, threshold=2, quorum=3, counted=False), 3),
    "clients made again take part again": (Setting(3, 0, threshold=2, quorum=2, once=False), 2),
    "keys are not signed": (Setting(3, 0, threshold=2, quorum=2, signed=False), 2),
}


def from_real_clients() -> Iterator[dict[str, Any]]:
    """Vectors that two attacks recover, from sessions as they were by default and as they are."""
    random = np.random.default_rng(0)
    for n in SIZES:
        vectors = {member: random.integers(0, 1 << 32, LENGTH, np.uint32) for member in range(n)}
        degree, threshold = find(n, ThreatModel(CORRUPT, DROPOUT))
        sessions = {
            "former default": Session(
                secrets.token_bytes(32), 0, tuple(range(n)), degree, threshold, LENGTH, accomplices=n // 10
            ),
            "semi-honest": Session.between(range(n), ThreatModel(CORRUPT, DROPOUT), length=LENGTH),
            "default": Session.between(range(n), ThreatModel(CORRUPT, DROPOUT, "active"), length=LENGTH),
        }
        for name, session in sessions.items():
            attacks: dict[str, Callable[[], Any]] = {"divide": lambda session=session: divide(session)}
            if session.complete:
                attacks["maroon"] = lambda session=session: maroon(session, 0)
            for attack, make in attacks.items():
                run, culprits = make()
                loot = play(session, vectors, run, culprits=culprits)
                recovered = sum(np.array_equal(loot.sum_of({member}), vectors[member]) for member in vectors)
                yield {
                    "session": name,
                    "clients": n,
                    "degree": session.degree,
                    "threshold": session.threshold,
                    "attack": attack,
                    "recovered": recovered,
                    "refused": len(loot.refusals),
                }


def from_sybils() -> Iterator[dict[str, Any]]:
    """Vectors that a server gets by playing everybody else, each client being the victim in turn."""
    random = np.random.default_rng(0)
    for n in SYBILS:
        vectors = {member: random.integers(0, 1 << 32, LENGTH, np.uint32) for member in range(n)}
        for adversary in ADVERSARIES:
            session = Session.between(range(n), ThreatModel(CORRUPT, DROPOUT, adversary), length=LENGTH)
            got, refusing = recovered_by_sybils(session, vectors)
            yield {"session": adversary, "clients": n, "recovered": len(got), "refused": len(refusing)}


def by_every_story() -> Iterator[dict[str, Any]]:
    """Stories of up to four clients, with each guard on and off."""
    for name, (setting, least_honest) in GUARDS.items():
        found = breaks(setting, least_honest)
        yield {"guards": name, "stories": {kind or "none": count for kind, (count, _) in found.items()}}


def by_three_stories() -> Iterator[dict[str, Any]]:
    """Every strategy with up to three different stories, for every legal setting of up to twelve members.

    A setting with accomplices is one without: members, threshold and quorum all less by their number.
    """
    prepared = [blocks.Strategies.of(number) for number in range(1, blocks.MOST_BLOCKS + 1)]
    for honest in range(2, 13):
        row = {"honest": honest, "settings": 0, "strategies": 0, "opened": 0, "wrong": 0}
        below = dict(row)
        for threshold in range(honest // 2 + 1, honest + 1):
            for quorum in range(max(threshold, 2), honest + 1):
                found = blocks.tried(honest, threshold, quorum, prepared)
                row["settings"] += 1
                for name, number in zip(("strategies", "opened", "wrong"), found, strict=True):
                    row[name] += number
        for quorum in range(max(honest // 2, 2), honest + 1):
            found = blocks.tried(honest, honest // 2, quorum, prepared)
            below["settings"] += 1
            below["wrong"] += found[2]
        yield {**row, "settings, one below": below["settings"], "wrong, one below": below["wrong"]}


def by_every_mailbox() -> Iterator[dict[str, Any]]:
    """All mailboxes of up to six members, for every legal setting with the least quorum."""
    for n in range(3, 7):
        for accomplices in range(n - 1):
            for threshold in range(least_threshold(n, n - 1, accomplices, "active"), n + 1):
                quorum = least_quorum(n, threshold, accomplices, 2, "active")
                setting = Setting(n - accomplices, accomplices, threshold, quorum)
                stories = twice = 0
                smallest = n
                for listed in range(quorum - accomplices, setting.honest + 1):
                    tried, by_size, both = mailboxes.openings(setting, listed)
                    stories, twice = stories + tried, twice + both
                    smallest = min([smallest, *(size for size, found in enumerate(by_size) if found)])
                yield {
                    "members": n,
                    "accomplices": accomplices,
                    "threshold": threshold,
                    "quorum": quorum,
                    "stories": stories,
                    "two_sums": twice,
                    "smallest_sum": smallest,
                    "promised": quorum - accomplices,
                }


def by_counting() -> Iterator[dict[str, Any]]:
    """All legal settings of up to twelve members, and of larger sessions those at the edges."""
    for n in range(2, 13):
        yield {"members": n, **_counted(n, range(n - 1), lambda least, n=n: range(least, n + 1))}
    for n in LARGE:
        shares = sorted({0, n // 10, n // 4, n // 3, n // 2, n - 2})
        yield {"members": n, **_counted(n, shares, lambda least, n=n: sorted({least, (least + n) // 2, n}))}


def _counted(n: int, accomplices: Any, from_least: Callable[[int], Any]) -> dict[str, int]:
    legal = broken = 0
    for corrupt in accomplices:
        for threshold in from_least(least_threshold(n, n - 1, corrupt, "active")):
            for quorum in from_least(least_quorum(n, threshold, corrupt, 2, "active")):
                least_honest = quorum - corrupt
                try:
                    check_threshold(n, n - 1, threshold, corrupt, "active")
                    check_quorum(n, threshold, quorum, corrupt, least_honest, "active")
                except ConfigError:
                    continue
                setting = Setting(n - corrupt, corrupt, threshold, quorum)
                legal += 1
                broken += bool(
                    counts.sums_of_too_few(setting, least_honest)
                    or counts.two_sums(setting)
                    or counts.two_lists(setting)
                )
    return {"legal": legal, "broken": broken}


def without_confirmations() -> Iterator[dict[str, Any]]:
    """The largest thresholds at which one victim is exposed on the complete graph to a server that lies."""
    for n in (10, *LARGE):
        for corrupt in (0, n // 4):
            row: dict[str, Any] = {"members": n, "accomplices": corrupt}
            for name, exposed in (
                ("two stories", counts.split_victim),
                ("few letters", lambda setting: counts.lonely_victim(setting, culprits=False)),
                ("few letters and culprits", lambda setting: counts.lonely_victim(setting, culprits=True)),
            ):
                settings = (
                    (threshold, Setting(n - corrupt, corrupt, threshold, threshold, confirmed=False))
                    for threshold in range(corrupt + 1, n)
                )
                row[name] = max((threshold for threshold, setting in settings if exposed(setting)), default=0)
            yield row


def by_every_cut() -> Iterator[dict[str, Any]]:
    """Labelled circles with part of a confirmed list inside, and larger ones by search."""
    for n in range(5, 11):
        for degree in range(2, n - 1, 2):
            row: dict[str, Any] = {"clients": n, "degree": degree}
            for below in (0, 1, 2):
                row[f"tried, {below} below"], row[f"opened, {below} below"] = circles.cuts(n, degree, below)
            yield row
    random = np.random.default_rng(0)
    for n in LARGE:
        degree, _ = find(n, ThreatModel(0.05, 0.1, "active"))
        tried = opened = 0
        for _ in range(20):
            more = circles.searched(n, degree, 0.05, 2000, random)
            tried, opened = tried + more[0], opened + more[1]
        yield {"clients": n, "degree": degree, "searched, 0 below": tried, "opened, 0 below": opened}


PARTS = (
    by_every_story,
    by_counting,
    by_three_stories,
    without_confirmations,
    by_every_cut,
    by_every_mailbox,
    from_real_clients,
    from_sybils,
)


def main(out: Path, names: Sequence[str]) -> None:
    """Run the named parts (all unless any is), show what they find, and keep it."""
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for part in PARTS:
        if names and part.__name__ not in names:
            continue
        began, results[part.__name__] = time.process_time(), []
        for row in part():
            print(part.__name__, row, flush=True)
            results[part.__name__].append(row)
        results[f"processor seconds of {part.__name__}"] = round(time.process_time() - began, 1)
        out.write_text(json.dumps(results, indent=1, default=_plain) + "\n", encoding="utf-8")


def _plain(value: NDArray[Any]) -> Any:
    return value.item()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
