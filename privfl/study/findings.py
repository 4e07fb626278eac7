"""What the numbers of a run or a study say, in sentences that are computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privfl.privacy.accounting.release import Observer
from privfl.privacy.accounting.statement import Statement
from privfl.study.grid import Summary
from privfl.study.plots import finite


def claim(statement: Statement, observer: Observer) -> str:
    """What the statement says against one observer, in a sentence."""
    who = {"server": "the server, which sees every message", "public": "whoever sees the released models"}[observer]
    parts = []
    for unit, thing in (("sample", "one example"), ("client", "a whole client")):
        cell = next(c for c in statement.cells if (c.unit, c.observer) == (unit, observer))
        because = f" ({'; '.join(cell.reasons)})" if cell.reasons else ""
        parts.append(f"for {thing} {'nothing' if because else 'ε = ' + finite(cell.epsilon)} is claimed{because}")
    return f"Against {who}, {', and '.join(parts)}; δ = {statement.delta:g}."


def percent(row: Summary) -> str:
    """Accuracy as ``91.2 ± 0.4 %``, or ``91.2 %`` where one seed tells no spread."""
    if math.isnan(row.deviation):
        return f"{100 * row.accuracy:.1f} %"
    return f"{100 * row.accuracy:.1f} ± {100 * row.deviation:.1f} %"


def findings(rows: Sequence[Summary], cell: str = "sample/public") -> list[str]:
    """What the numbers say: one sentence for each method, and who is ahead at each level, if the seeds can tell."""
    sentences = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        bare = next((row for row in mine if row.epsilons[cell] is None), None)
        private = [(value, row) for row in mine if (value := row.epsilons[cell]) is not None]
        if not private:
            continue
        parts = [f"{percent(row)} at ε = {finite(value)}" for value, row in sorted(private, key=lambda pair: -pair[0])]
        start = f"{method} reaches {percent(bare)} with nothing claimed, and " if bare else f"{method} reaches "
        server = all(row.epsilons[cell.replace("public", "server")] is not None for _, row in private)
        where = "its claims hold against the server too" if server else "its claims hold for the public only"
        sentences.append(f"{start}{', '.join(parts)} ({where}).")
    for level in dict.fromkeys(row.level for row in rows):
        group = sorted((row for row in rows if row.level == level), key=lambda row: -row.accuracy)
        if len(group) > 1 and not math.isnan(group[0].deviation) and not math.isnan(group[1].deviation):
            gap, spread = group[0].accuracy - group[1].accuracy, math.hypot(group[0].deviation, group[1].deviation)
            clear = "more than" if gap > 2 * spread else "not more than"
            settled = "" if gap > 2 * spread else ", so these seeds do not settle it"
            ahead, behind = (row.epsilons[cell.replace("public", "server")] for row in group[:2])
            trust = ", but claims nothing against the server" if ahead is None and behind is not None else ""
            sentences.append(
                f"At '{level}' {group[0].method} is {100 * gap:.1f} points ahead of {group[1].method}, {clear} twice "
                f"the spread over seeds{settled}{trust}."
            )
    return sentences
