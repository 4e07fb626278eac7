"""The terms that a page uses, and what they mean."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

TERMS = Path(__file__).parent / "templates" / "terms.toml"


def glossary(page: str) -> list[tuple[str, str]]:
    """The definitions of the terms that the text of ``page`` uses, and of those that these definitions use."""
    text = re.sub(r"<[^>]*>", " ", page)
    chosen: dict[str, str] = {}
    while True:
        more = {name: meaning for name, used, meaning in _terms() if name not in chosen and re.search(used, text, re.I)}
        if not more:
            return sorted(chosen.items(), key=lambda one: one[0].casefold())
        chosen |= more
        text = " ".join(more.values())


@cache
def _terms() -> tuple[tuple[str, str, str], ...]:
    table = tomllib.loads(TERMS.read_text(encoding="utf-8"))["term"]
    return tuple((one["name"], one["used"], " ".join(one["meaning"].split())) for one in table)
