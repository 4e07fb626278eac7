"""Which symbols a page uses, and which of them nothing defines: `python docs/scripts/read_symbols.py`.

A symbol is a Greek letter or a single Latin letter that stands alone, with its index: ε, N̂, T_g, w^l. A page defines
its symbols in a table under the heading ``## Symbols``, whose first column names them; what the whole site means by
one stands on docs/concepts/notation.md, in the same form. An index is a name, so T_g needs a row of its own, but digits
and t count rounds, clients or entries: σ_t is the σ of round t.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1]
NOTATION = DOCS / "concepts" / "notation.md"
HEADING = "## Symbols"
PAGES = sorted((DOCS / "results").glob("*.md"))
"""The pages that report results."""

HIDDEN = re.compile(r"```.*?```|<!--.*?-->|`[^`]*`|(?<=\])\([^)]*\)|https?://\S+", re.S)
"""What a page does not say in its own words: code, comments, where links lead."""
NAMES = re.compile(
    r"\b(f-DP|q-[Ff]ed[Aa]vg|AAggFF-[SD]|aaggff-[sd]|per-FedAvg|R-BSM|F-Aug|L-BFGS|T-shirts?|tomli-w|1-D|L2 norm)"
    r"|\bk-regular"
    r"|\b(Student[’']s t|s per \w+|s in all|s of the server|Table [IVX]+|(phase|option) I+|[A-Z]\. (?=[A-Z][a-z]))"
    r"|\b(e\.g\.|i\.e\.)|(?<=\d) [smGk]\b|[’'][sdt]\b"
)
"""Letters that are parts of names, and units."""
INDEX = r"(?:[_^][A-Za-z0-9∞]+|∞|[₀-₉ₐ-ₜᵢ-ᵥ⁰-⁹²³¹ⁱ⁻]+)"
MARK = "[̂̄̃]?"
SYMBOL = re.compile(
    rf"[Α-ΡΤ-ΩΣα-ωϕℓ∇]{MARK}(?:{INDEX})*"
    rf"|(?<![^\WΑ-ω0-9²³⁰-⁹])(?<![’'.])(?![AaI]\b)[A-Za-z](?:{MARK}(?:{INDEX})+|{MARK}(?![^\WΑ-ω])(?![’'̂̄̃∞]))"
)
OPERATORS = ("Σ", "∇", "Π", "Δ")
"""Signs for sums, gradients, products and differences, which every reader knows."""


def symbols(text: str) -> set[str]:
    """The symbols in a piece of Markdown, as :func:`reduced` writes them."""
    plain = NAMES.sub(" ", HIDDEN.sub(" ", text))
    return {found for match in SYMBOL.finditer(plain) if (found := reduced(match[0])) not in OPERATORS}


def reduced(symbol: str) -> str:
    """A symbol without what only counts: powers, digits and the index t."""
    return re.sub(r"[_^](\d+|t)(?![A-Za-z])|[₀-₉ᵢ⁰-⁹²³¹ⁱ⁻]+", "", symbol)


def defined(text: str) -> set[str]:
    """The symbols in the first column of the table under ``## Symbols``."""
    _, _, below = text.partition(f"{HEADING}\n")
    section = below.partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {reduced(match[0]) for row in rows for match in SYMBOL.finditer(row)} - set(OPERATORS)


def undefined(text: str, notation: str) -> set[str]:
    """Symbols that neither the page nor the notation of the site defines."""
    return symbols(text) - defined(text) - defined(notation)


def unused(text: str) -> set[str]:
    """Symbols that the page defines and never uses."""
    before, _, below = text.partition(f"{HEADING}\n")
    return defined(text) - symbols(before + "\n## ".join(below.split("\n## ")[1:]))


if __name__ == "__main__":
    notation = NOTATION.read_text(encoding="utf-8")
    lines = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines += [f"{page.name}: {symbol} has no definition" for symbol in sorted(undefined(text, notation))]
        lines += [f"{page.name}: {symbol} is defined and not used" for symbol in sorted(unused(text))]
    print("\n".join(lines) or "every symbol is defined")
    sys.exit(bool(lines))
