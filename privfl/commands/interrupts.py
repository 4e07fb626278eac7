"""Ctrl-C, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def interruptible(mend: str) -> Iterator[None]:
    """Turn Ctrl-C into one sentence and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nprivfl: interrupted; what was saved is intact, {mend}", err=True)
        raise typer.Exit(130) from None
