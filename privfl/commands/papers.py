"""BibTeX of the papers whose methods privfl implements: ``papers.bib``; ``keywords`` there names the algorithms."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from privfl.errors import ConfigError

BIBLIOGRAPHY = Path(__file__).parent / "papers.bib"
KEYWORDS = re.compile(r"keywords = \{([^}]*)\}")
WITHOUT = ("centralized", "local")
"""Algorithms that follow no paper: the references above and below."""


def entries() -> list[tuple[str, frozenset[str]]]:
    """Every entry as its text, with the names of the algorithms that follow the paper."""
    found = re.findall(r"^@.*?^}$", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.M | re.S)
    return [(text, frozenset(KEYWORDS.search(text)[1].split(", "))) for text in found]  # type: ignore[index]


def bibtex(algorithms: Collection[str]) -> str:
    """The entries of all papers that one of these algorithms follows.

    Raises:
        ConfigError: there is none.
    """
    chosen = [text for text, names in entries() if not names.isdisjoint(algorithms)]
    if not chosen:
        raise ConfigError(f"{', '.join(algorithms)} follows no paper; leave the name out for the papers of all others")
    return "\n\n".join(chosen)
