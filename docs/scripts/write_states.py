"""Write into `docs/results.md` the state of every experiment, as `docs/results/verdicts.md` has it.

`python docs/scripts/write_states.py`
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
PAGE, VERDICTS = DOCS / "results.md", DOCS / "results" / "verdicts.md"
MARKS = "<!-- table: written by docs/scripts/write_states.py -->", "<!-- end of table -->"


def states(verdicts: str) -> list[tuple[str, str, str]]:
    """System, experiment and state of every row of the pages' tables that has a state."""
    found, system = [], ""
    for line in verdicts.splitlines():
        if line.startswith("## "):
            system = line.removeprefix("## ").split(" (")[0]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] not in ("experiment", "---"):
            found.append((system, *(re.sub(r"\]\((?=[a-z])", "](results/", cell) for cell in (cells[0], cells[3]))))
    return found


def table(verdicts: str) -> str:
    """One row for each experiment."""
    rows = [("system", "experiment", "state"), ("---",) * 3, *states(verdicts)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(page: str, verdicts: str) -> str:
    """``page`` with the table of the day between its marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{table(verdicts)}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    page, verdicts = (path.read_text(encoding="utf-8") for path in (PAGE, VERDICTS))
    PAGE.write_text(written(page, verdicts), encoding="utf-8")
