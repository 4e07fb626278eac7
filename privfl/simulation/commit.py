"""Which commit of privfl's source is running, for the record of a run."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

PATIENCE = 5.0
"""Seconds that git may take; a network folder may be slow."""


@cache
def commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit that the source in ``package`` is at, with ``-dirty`` where files differ from it.

    ``None`` where git does not track that folder, as in an installed package, or is not there: a repository that merely
    contains the installation is not privfl's.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    return tracked and _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        told = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None if told.returncode == 0 else None
