"""The results that attacks and audits have filed in a folder of a run directory."""

from __future__ import annotations

from pathlib import Path

from privfl.lock import HOLDER


def filed(folder: Path) -> list[Path]:
    """The files of results in ``folder``, by name; the one that says who holds the folder is none of them.

    That one is there while results are made, and stays where their process was killed.
    """
    return sorted(path for path in folder.glob("*.json") if path.name != HOLDER)
