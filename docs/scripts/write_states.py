"""Write into `docs/results.md` the state of every experiment, as `docs/results/verdicts.md` has it.

Pages of single systems begin with its rows of those that were run. `python docs/scripts/write_states.py`
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
PAGE, VERDICTS = DOCS / "results.md", DOCS / "results" / "verdicts.md"
SYSTEMS = {"grpfed": "GRP-FED", "rebafl": "ReBaFL", "superfed": "SuPerFed", "fedevg": "FedEvg"}
"""Pages that begin with the rows of their system; the others' own tables say it."""
MARKS = "<!-- table: written by docs/scripts/write_states.py -->", "<!-- end of table -->"


def rows_of(verdicts: str) -> list[tuple[str, list[str]]]:
    """System and the five cells of every row that has a state."""
    found, system = [], ""
    for line in verdicts.splitlines():
        if line.startswith("## "):
            system = line.removeprefix("## ").split(" (")[0]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] not in ("experiment", "---"):
            found.append((system, cells))
    return found


def states(verdicts: str) -> list[tuple[str, str, str]]:
    """System, experiment and state of every row of the pages' tables that has a state."""
    return [
        (system, *(re.sub(r"\]\((?=[a-z])", "](results/", cell) for cell in (cells[0], cells[3])))
        for system, cells in rows_of(verdicts)
    ]


def table(verdicts: str) -> str:
    """One row for each experiment."""
    rows = [("system", "experiment", "state"), ("---",) * 3, *states(verdicts)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table_of(system: str, verdicts: str) -> str:
    """The rows of one ``system`` that were run, and how many were not."""
    every = [cells for name, cells in rows_of(verdicts) if name == system]
    run = [cells for cells in every if cells[3] != "not run"]
    rows = [["experiment", "the paper's claim", "here", "state", "why"], ["---"] * 5, *run]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\nOf the paper's other experiments {len(every) - len(run)} were not run: [verdicts](verdicts.md)."


def between(page: str, content: str) -> str:
    """``page`` with ``content`` between its marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{content}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def pages() -> dict[Path, str]:
    """Every page that this writes, as it should be."""
    verdicts = VERDICTS.read_text(encoding="utf-8")
    found = {PAGE: between(PAGE.read_text(encoding="utf-8"), table(verdicts))}
    for name, system in SYSTEMS.items():
        path = VERDICTS.with_name(f"{name}.md")
        found[path] = between(path.read_text(encoding="utf-8"), table_of(system, verdicts))
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
