"""What the demo's studies found, in sentences; every number and every verdict comes from the runs' own files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privfl.files import read_json
from privfl.privacy.accounting.printed import round_up
from privfl.study.attacks import FOLDER as ATTACKS
from privfl.study.audits import FOLDER as AUDITS
from privfl.study.axes import NO_PRIVACY
from privfl.study.filed import filed
from privfl.study.results import Results, Row
from privfl.study.store import Member, Store

REPEAT = "repeat the demo"


def costs(results: Results) -> str:
    """What each ε costs FedAvg and FedSampling, and before whom it holds; empty if no run is done."""
    told = []
    for method, rows in _by_method(results).items():
        free = next((row for row in rows if row.level == NO_PRIVACY), None)
        private = [row for row in rows if row.level != NO_PRIVACY]
        if not private:
            continue
        parts = [f"{_share(row)} at {row.level}" for row in private]
        start = (
            f"{method} names {_share(free)} of the held-out digits right without privacy, "
            if free
            else f"{method} gets "
        )
        told.append(f"{start}{_listed(parts)}. {_before_whom(private)}")
    return " ".join(told)


def hidden(results: Results) -> str:
    """What the secure sum costs, and which cells of its statement are finite; empty if no run is done."""
    rows = results.rows() if results.done else []
    if not rows:
        return ""
    finite = all(not math.isinf(epsilon) for row in rows for epsilon in row.epsilons.values())
    parts = [
        f"{_share(row)} right at ε = {round_up(row.epsilons['client/server'])} for a client "
        f"({round_up(row.epsilons['sample/server'])} for an image)"
        for row in rows
    ]
    start = (
        "With a secure sum FedSampling's clients put the noise in themselves, a share each, before the server sees "
        "anything but the sum. "
    )
    every = (
        "Every cell of the statement is finite then, against the server too and for all that one client holds"
        if finite
        else "Some cells of the statement stay ∞ even so; its reasons are in the report"
    )
    return f"{start}{every}. To hide whole clients among so few takes much noise: {_listed(parts)}."


def attacked(results: Results, store: Store) -> str:
    """What an attack tells of one client's images without privacy, and with it; empty if no run is done."""
    parts, name = [], ""
    for one in results.done:
        for path in filed(store.path(one.run) / ATTACKS):
            told, name = read_json(path, REPEAT), path.stem
            parts.append(_attack(one, told))
    if not parts:
        return ""
    return (
        "Attack: the same images got labels that mean nothing, so that a network can only learn them by heart. From "
        f"one client's message the server guesses which images that client trained on ({name}; 0.5 is a coin's score, "
        f"1 is certainty). {' '.join(parts)}"
    )


def audited(results: Results, store: Store) -> str:
    """The claims beside what an audit certifies from below; empty if no run is done."""
    parts, confidence, refuted = [], 0.0, False
    for one in results.done:
        for path in filed(store.path(one.run) / AUDITS):
            told = read_json(path, REPEAT)
            confidence, refuted = told["confidence"], refuted or told["refuted"]
            parts.append(_audit(told))
    if not parts:
        return ""
    verdict = (
        "A CLAIM IS REFUTED: it says less than what leaked."
        if refuted
        else "No bound exceeds its claim, so none is refuted, which is no proof that they are true."
    )
    return (
        "Audit: canaries, planted by the toss of a coin each, bound from below what the server really learns, with "
        f"{100 * confidence:g} % confidence. {' '.join(parts)} {verdict}"
    )


def _attack(one: Member, told: Mapping[str, Any]) -> str:
    measure = told["metrics"][told["primary"]]
    value, low, high = (f"{measure[name]:.2f}" for name in ("value", "low", "high"))
    gain = told["advantage"][told["primary"]]["low"]
    verdict = "it succeeds" if gain > 0 else "no better than a coin, as far as these images can tell"
    where = "Without privacy" if one.level == NO_PRIVACY else f"At {one.level}"
    return f"{where} it scores {value} (95 % interval {low} to {high}): {verdict}."


def _audit(told: Mapping[str, Any]) -> str:
    bounds = [(float(one["epsilon"]), one["assumes"]) for one in told["bounds"]]
    bare = max((epsilon for epsilon, assumes in bounds if not assumes), default=0.0)
    best = max(epsilon for epsilon, _ in bounds)
    more = f", and at least {_down(best)} if the noise is of the kind that is claimed" if best > bare else ""
    return (
        f"Where the statement claims that ε is at most {round_up(float(told['claim']))}, it is at least {_down(bare)}, "
        f"with nothing assumed{more}."
    )


def _down(bound: float) -> str:
    """A lower bound as text, rounded down, so that print never certifies more than was computed."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def _before_whom(rows: list[Row]) -> str:
    """Against whom the claims of ``rows`` for one image hold, and who has none."""
    server, public = (
        all(not math.isinf(row.epsilons[f"sample/{who}"]) for row in rows) for who in ("server", "public")
    )
    if server and public:
        return "Its clients add the noise themselves, so this holds against the server too."
    if public:
        return (
            "Its noise is added once, to the sum, by the server, which sees what comes before: there is no "
            "guarantee against the server."
        )
    return "Not all of its claims are finite; the reasons are in the report."


def _by_method(results: Results) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in results.rows() if results.done else []:
        groups.setdefault(row.method, []).append(row)
    return groups


def _share(row: Row) -> str:
    return f"{100 * row.mean:.1f} %"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
