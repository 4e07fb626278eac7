"""Where commands print: a table is as wide as the terminal, and as wide as it needs to be where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privfl.study.tables import as_json

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 100_000
"""Columns of a file or a pipe: nothing is cut or wrapped, so that the next program finds whole lines."""

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
"""The option of every command that prints results."""


def console() -> Console:
    """Standard output for tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else UNLIMITED)


def print_json(value: Any) -> None:
    """Print ``value`` as JSON: ∞ is the text "inf", what is not known is null."""
    typer.echo(as_json(value))
