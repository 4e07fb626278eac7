"""Where commands print: a table is as wide as the terminal, and as wide as it needs to be where there is none."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privfl.errors import PrivflError
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

    return Console(width=None if sys.stdout is not None and sys.stdout.isatty() else UNLIMITED)


def print_json(value: Any) -> None:
    """Print ``value`` as JSON: ∞ is the text "inf", what is not known is null."""
    typer.echo(as_json(value))


def open_streams() -> None:
    """Open standard output and error where whoever started the process has closed them: to nowhere.

    Python has ``None`` for them, and the next file would take the place of the one, and what libraries print with it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process


def flush() -> None:
    """Print what waits to be printed; if standard output takes none of it, let it go, so that the process can end."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def is_of_printing(error: OSError) -> bool:
    """Whether ``error`` came from printing: the call that failed is one of the libraries that print."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return not {"click", "rich", "typer"}.isdisjoint(Path(last.filename).parts)


@contextmanager
def kept(what: str) -> Iterator[None]:
    """Say ``what`` is kept, and where, if standard output takes nothing; a reader that has gone needs no sentence.

    Raises:
        PrivflError: standard output refuses.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise PrivflError(f"standard output: {error.strerror or error}; {what}") from error
