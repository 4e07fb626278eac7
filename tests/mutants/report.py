"""What became of the mutants: the raw results, and a page with a table of the rooms and every survivor."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.mutants.catalogue import ROOT, Mutant

PAGE = ROOT / "docs" / "results" / "mutants.md"
RAW = PAGE.with_suffix(".jsonl")


@dataclass(frozen=True)
class Result:
    """What the tests said of one mutant.

    ``file`` and ``tests`` are digests of the mutated file's code and of all tests; ``by`` is the first failure.
    """

    mutant: str
    file: str
    tests: str
    status: str
    by: str
    seconds: float


def read(listed: Sequence[Mutant], tests: str, mutated: Callable[[Mutant], str]) -> dict[str, Result]:
    """The latest result of each mutant that still holds, by the mutant's key."""
    known = {one.key: one for one in listed}
    latest: dict[str, Result] = {}
    for line in RAW.read_text(encoding="utf-8").splitlines() if RAW.exists() else []:
        fields = json.loads(line)
        result = Result(**{name: fields[name] for name in Result.__dataclass_fields__})
        latest[result.mutant] = result
    return {
        key: result
        for key, result in latest.items()
        if key in known and result.file == mutated(known[key]) and (result.status == "killed" or result.tests == tests)
    }


def write(listed: Sequence[Mutant], results: dict[str, Result]) -> None:
    """Write the page, and the raw results without those that no longer hold."""
    rooms = sorted({one.room for one in listed})
    killed = {key for key, result in results.items() if result.status == "killed"}
    lines = [
        "# Mutants of the privacy code",
        "",
        "One deliberate mistake each, in a copy of the tree, and the tests that should see it. Written by",
        "`python -m tests.mutants`; the list is in `tests/mutants/rooms`, the raw results in `mutants.jsonl` beside.",
        "",
        "| room | mutants | killed | survived | not run |",
        "|---|---:|---:|---:|---:|",
    ]
    rows = [(room, [one for one in listed if one.room == room]) for room in rooms]
    for room, ones in [*rows, ("**all**", list(listed))]:
        dead = sum(one.key in killed for one in ones)
        run = sum(one.key in results for one in ones)
        lines.append(f"| {room} | {len(ones)} | {dead} | {run - dead} | {len(ones) - run} |")
    share, left = 100 * len(killed) / max(len(listed), 1), len(listed) - len(results)
    lines += ["", f"{len(killed)} of {len(listed)} are killed ({share:.1f} %); {left} have no result yet."]
    lines += ["", "## Survivors", ""]
    survivors = [one for one in listed if one.key in results and one.key not in killed]
    for one in survivors:
        because = one.equivalent or "**not explained: a test is missing**"
        lines.append(f"- `{one.path}`: {one.breaks} ({results[one.key].status}). {because}")
    if not survivors:
        lines.append("None.")
    unexpected = [one for one in listed if one.equivalent and one.key in killed]
    if unexpected:
        lines += ["", "## Taken for equivalent, and killed", ""]
        lines += [f"- `{one.path}`: {one.breaks}, by `{results[one.key].by}`" for one in unexpected]
    lines += ["", "## Killed", "", "| what was broken | where | seen by |", "|---|---|---|"]
    for one in listed:
        if one.key in killed:
            by = results[one.key].by.split("[")[0].split(" (")[0].replace("tests/", "", 1)
            lines.append(f"| {one.breaks} | `{one.path}` | `{by}` |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    order = {one.key: (place, one) for place, one in enumerate(listed)}
    kept = sorted((result for result in results.values()), key=lambda result: order[result.mutant][0])
    text = "".join(
        json.dumps({**vars(result), "path": order[result.mutant][1].path, "breaks": order[result.mutant][1].breaks})
        + "\n"
        for result in kept
    )
    RAW.write_text(text, encoding="utf-8")
