"""``privfl list``: what there is, with one line and the settings of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from privfl.commands.catalogue import Kind, Row, shipped_rows
from privfl.commands.papers import bibtex
from privfl.commands.printing import UNLIMITED, console, print_json
from privfl.errors import ConfigError, unknown

if TYPE_CHECKING:
    from rich.table import Table

MANY = (Kind.algorithms, Kind.attacks)
"""Kinds with so many members that each gets a line, and its settings only where it is asked for by name."""
HEADS = {"reads": "uses", "has": "attacker knowledge", "summary": "description"}
"""What the columns are called on the screen, where JSON calls them otherwise."""
ELSEWHERE = ("name", "summary", "settings", "choices")
"""What of a row has no column of its own."""
WIDEST = 26
"""Characters of a column before it is cut on a terminal."""


def show_list(kind: Kind, name: str | None, as_json: bool, as_bibtex: bool = False) -> None:
    """Print the rows of ``kind``, or the one called ``name`` in full, as a table, as JSON or as BibTeX.

    Attacks are found by the names of their choices as well, ``grnn`` as ``prototype-inversion``.

    Raises:
        ConfigError: there is no such name, or no BibTeX of it.
    """
    rows = shipped_rows(kind)
    if name is not None:
        rows = [_named(kind, name, rows)]
    if as_bibtex:
        if kind is not Kind.algorithms or as_json:
            raise ConfigError("--bibtex belongs to `privfl list algorithms` without --json; leave one of them out")
        typer.echo(bibtex([row["name"] for row in rows]))
        return
    if as_json:
        print_json(rows)
        return
    page = console()
    if name is not None:
        page.print(_in_full(rows[0]))
    elif kind in MANY:
        page.print("\n".join(overview(rows, page.width)), markup=False, highlight=False, no_wrap=True, soft_wrap=True)
        page.print(f"\nSettings of one, and the reasons where it says no: privfl list {kind.value} NAME")
    else:
        page.print(_table(kind, rows))


def _named(kind: Kind, name: str, rows: list[Row]) -> Row:
    """The row of this ``name``, or the one that has a choice of this name, with that choice alone."""
    asked = _plain(name)
    for row in rows:
        if row["name"] == name:
            return row
    for row in rows:
        found = [one for one in row.get("choices", ()) if asked in (_plain(one["value"]), *_titles(one["title"]))]
        if found:
            return {**row, "choices": found}
    raise unknown(kind.value.removesuffix("s"), name, [row["name"] for row in rows])


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "")


def _titles(title: str) -> tuple[str, str]:
    """A title whole, and up to its first comma."""
    return _plain(title), _plain(title.partition(",")[0])


def overview(rows: list[Row], width: int) -> list[str]:
    """One line of at most ``width`` characters for each row and each of its choices, and one that heads them."""
    more = [name for name in rows[0] if name not in ELSEWHERE]
    cells = [["name", *(HEADS.get(name, name) for name in more), "description"]]
    for row in rows:
        cells.append([row["name"], *("no" if row[name].startswith("no:") else row[name] for name in more)])
        cells[-1].append(row["summary"])
    widest = WIDEST if width < UNLIMITED else UNLIMITED
    widths = [min(max(map(len, column)), widest) for column in zip(*cells, strict=True)][:-1]
    what = max(width - sum(widths) - 2 * len(widths), 12)
    head, *body = [
        "  ".join(_cut(cell, room) for cell, room in zip(line[:-1], widths, strict=True)) + f"  {_cut(line[-1], what)}"
        for line in cells
    ]
    lines = [head.rstrip()]
    for line, row in zip(body, rows, strict=True):
        lines.append(line.rstrip())
        lines += [_cut(f"  {_choice(one)}", width).rstrip() for one in row.get("choices", ())]
    return lines


def _choice(one: dict[str, str]) -> str:
    return f'{one["setting"]} = "{one["value"]}": {one["title"]} ({one["source"]})'


def _cut(text: str, width: int) -> str:
    if width >= UNLIMITED // 2:
        return text
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _table(kind: Kind, rows: list[Row]) -> Table:
    """A table of ``rows`` with their settings."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("name", "description", "settings", title=kind.value, title_justify="left", show_lines=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in (row["name"], row["summary"], _settings(row, ", "))))
    return table


def _in_full(row: Row) -> Table:
    """Everything about one row, from top to bottom."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "", show_header=False, box=None)
    for name, value in row.items():
        text = _settings(row, "\n") if name == "settings" else str(value)
        if name == "choices":
            text = "\n".join(map(_choice, value))
        if text:
            table.add_row(f"[bold]{HEADS.get(name, name)}[/bold]", escape(text))
    return table


def _settings(row: Row, between: str) -> str:
    return between.join(f"{name} = {_value(value)}" for name, value in row["settings"].items())


def _value(value: Any) -> str:
    """A default as a file has it; "—" for a key that may be left out without a value of its own."""
    if value is None:
        return "—"
    return str(value).lower() if isinstance(value, bool) else str(value)
