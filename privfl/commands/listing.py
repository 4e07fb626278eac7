"""``privfl list``: what there is, with one line and the settings of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from privfl.companions import companion
from privfl.errors import unknown

if TYPE_CHECKING:
    from rich.table import Table


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    mechanisms = "mechanisms"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"
    attacks = "attacks"
    audits = "audits"


MANY = (Kind.algorithms, Kind.attacks)
"""Kinds with so many members that each gets a line, and its settings only where it is asked for by name."""
HEADS = {"reads": "uses", "has": "attacker knowledge", "summary": "description"}
"""What the columns are called on the screen, where JSON calls them otherwise."""
WIDEST = 26
"""Characters of a column before it is cut."""


def show_list(kind: Kind, name: str | None, as_json: bool) -> None:
    """Print the rows of ``kind``, or the one called ``name`` in full, as a table or as JSON.

    Raises:
        ConfigError: there is no such name.
    """
    rows = _rows(kind)
    if name is not None:
        if name not in (names := [row["name"] for row in rows]):
            raise unknown(kind.value.removesuffix("s"), name, names)
        rows = [row for row in rows if row["name"] == name]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    from rich.console import Console

    console = Console()
    if name is not None:
        console.print(_in_full(rows[0]))
    elif kind in MANY:
        console.print("\n".join(_lines(rows, console.width)), markup=False, highlight=False, no_wrap=True)
        console.print(f"\nSettings of one, and the reasons where it says no: privfl list {kind.value} NAME")
    else:
        console.print(_table(kind, rows))


def _lines(rows: list[dict[str, Any]], width: int) -> list[str]:
    """One line of at most ``width`` characters for each row, and one that heads them."""
    more = [name for name in rows[0] if name not in ("name", "summary", "settings")]
    cells = [["name", *(HEADS.get(name, name) for name in more), "description"]]
    for row in rows:
        cells.append([row["name"], *("no" if row[name].startswith("no:") else row[name] for name in more)])
        cells[-1].append(row["summary"])
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*cells, strict=True)][:-1]
    what = max(width - sum(widths) - 2 * len(widths), 12)
    return ["  ".join(_cut(cell, room) for cell, room in zip(line, [*widths, what], strict=True)) for line in cells]


def _cut(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _table(kind: Kind, rows: list[dict[str, Any]]) -> Table:
    """A table of ``rows`` with their settings."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("name", "description", "settings", title=kind.value, title_justify="left", show_lines=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in (row["name"], row["summary"], _settings(row, ", "))))
    return table


def _in_full(row: dict[str, Any]) -> Table:
    """Everything about one row, from top to bottom."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "", show_header=False, box=None)
    for name, value in row.items():
        text = _settings(row, "\n") if name == "settings" else str(value)
        table.add_row(f"[bold]{HEADS.get(name, name)}[/bold]", escape(text))
    return table


def _settings(row: dict[str, Any], between: str) -> str:
    return between.join(f"{name} = {value}" for name, value in row["settings"].items())


def _rows(kind: Kind) -> list[dict[str, Any]]:
    if kind is Kind.datasets:
        from privfl.data.catalog import datasets
        from privfl.data.catalog import options as settings

        return [{"name": entry.name, "summary": entry.title, "settings": settings(entry.name)} for entry in datasets()]
    if kind is Kind.models:
        from privfl.models import models

        return [
            {
                "name": model.name,
                "summary": model.summary,
                "settings": {
                    "inputs": "/".join(model.kinds),
                    "parameters": f"{model.parameters:,} at {model.input_shape}",
                },
            }
            for model in models()
        ]
    registry: Mapping[str, type[Any]]
    if kind is Kind.attacks:
        known = companion("attacks.registry")
        return [
            {"name": name, "summary": summary(part), "settings": defaults(part), **known.needs_of(name)}
            for name, part in known.ATTACKS.items()
        ]
    if kind is Kind.audits:
        known = companion("audits.registry")
        return [{"name": n, "summary": summary(part), "settings": defaults(part)} for n, part in known.AUDITS.items()]
    if kind is Kind.algorithms:
        from privfl.algorithms import ALGORITHMS
        from privfl.algorithms.declarations import declared

        return [
            {"name": name, "summary": summary(part), "settings": defaults(part), **declared(part())}
            for name, part in ALGORITHMS.items()
        ]
    elif kind is Kind.partitions:
        from privfl.data.partitions import PARTITIONS

        registry = PARTITIONS
    else:
        from privfl.privacy.door.dpsgd import DPSGD
        from privfl.privacy.mechanisms.registry import update_mechanisms
        from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS

        registry = {
            "dpsgd": DPSGD,
            **update_mechanisms(),
            **{f"size: {name}": m for name, m in SIZE_MECHANISMS.items()},
        }
    return [{"name": name, "summary": summary(part), "settings": defaults(part)} for name, part in registry.items()]


def summary(component: type[Any]) -> str:
    """The first sentence of a class's docstring."""
    return (
        " ".join((component.__doc__ or "").split("\n\n")[0].split())
        .replace("``", "")
        .replace(":class:", "")
        .replace("`", "")
    )


def defaults(component: type[Any]) -> dict[str, Any]:
    """The settings of a component with their defaults; "required" where there is none, a table for a nested one."""
    return {item.name: _default(item) for item in fields(component)}


def _default(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    if item.default_factory is MISSING:
        return "required"
    value = item.default_factory()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
