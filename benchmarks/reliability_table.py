"""The table of docs/reliability.md, from the raw results: ``python benchmarks/reliability_table.py``.

A new campaign writes its rows to benchmarks/results/reliability/NAME.jsonl and says in :data:`FAULTS` what they mean.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
START, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"
Row = dict[str, Any]
Told = tuple[str, int, str]
"""A fault, how often it was tried, and what became of it."""


def points(rows: list[Row]) -> list[Told]:
    """One line for each piece of work and each way of stopping it."""
    told = []
    for row in rows:
        differing = Counter(one[0] for one in row["differing"])
        for how, count in row["states"].items():
            told.append((f"{row['work']}, {row['steps']} steps: {how}", count, _same(count, differing[how])))
    return told


def kills(rows: list[Row]) -> list[Told]:
    """One line for each piece of work."""
    counts = Counter(row["work"] for row in rows)
    differing = Counter(row["work"] for row in rows if not row["same"])
    return [
        (f"{work}: SIGKILL at a random moment", count, _same(count, differing[work])) for work, count in counts.items()
    ]


def damage(rows: list[Row]) -> list[Told]:
    """One line for each kind of run directory."""
    told = []
    for kind in dict.fromkeys(row["run"] for row in rows):
        outcomes = Counter(row["outcome"] for row in rows if row["run"] == kind)
        words = ", ".join(f"{count:,} {_OUTCOMES.get(name, name)}" for name, count in sorted(outcomes.items()))
        told.append((f"a run directory ({kind}), one file damaged", outcomes.total(), words))
    return told


_OUTCOMES = {"sentence": "refused in one sentence"}


def starts(rows: list[Row]) -> list[Told]:
    """One line."""
    good = sum(row["good"] for row in rows)
    told = f"{good} times one wins, and the other one says who it is"
    return [("two processes begin on one directory at one instant", len(rows), told)]


FAULTS: dict[str, tuple[str, Callable[[list[Row]], list[Told]]]] = {
    "points": ("python benchmarks/reliability.py points", points),
    "kills": ("python benchmarks/reliability.py kills", kills),
    "damage": ("python benchmarks/reliability.py damage", damage),
    "starts": ("python benchmarks/reliability.py starts", starts),
}
"""For each file of raw results the command that makes it, and its lines."""
MUTATE = "python benchmarks/mutated_files.py"


def mutated_files() -> list[Told]:
    """One line for each kind of file, of all campaigns together; the JSON files of a grid, which were a study's
    before it had a store, count as a study's."""
    counts: dict[str, Counter[str]] = {}
    for path in sorted(RESULTS.parent.glob("mutated-files*.json")):
        for kind, outcomes in json.loads(path.read_text(encoding="utf-8"))["by kind"].items():
            file, how = kind.replace("grid", "study").split()
            counts.setdefault(
                f"{file} files, mutated {'as text' if how == 'text' else 'when parsed'}", Counter()
            ).update(outcomes)
    return [
        (kind, outcomes.total(), ", ".join(f"{count:,} {_MUTANTS[name]}" for name, count in sorted(outcomes.items())))
        for kind, outcomes in sorted(counts.items())
    ]


_MUTANTS = {
    "taken": "taken",
    "refused": "refused in one sentence",
    "cut off": "cut off after 1.5 s of processor time",
    "traceback": "ended in a traceback",
    "no sentence": "refused in other words",
}


def table() -> str:
    """The table in Markdown."""
    lines = ["| fault | tried | outcome | made by |", "|---|---:|---|---|"]
    for name, (command, told) in FAULTS.items():
        path = RESULTS / f"{name}.jsonl"
        if path.exists():
            for fault, count, outcome in told(
                [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            ):
                lines.append(f"| {fault} | {count:,} | {outcome} | `{command}` |")
    lines += [f"| {kind} | {count:,} | {outcome} | `{MUTATE}` |" for kind, count, outcome in mutated_files()]
    return "\n".join(lines) + "\n"


def _same(count: int, differing: int) -> str:
    return "all came to the same" if not differing else f"{differing} of {count} came to something else"


def main() -> None:
    """Put the table into the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(before + START + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
