"""Text for terminals and files whose encoding has no ε: what is missing is spelled out and stops nothing.

Outside UTF-8, Python refuses to print a letter that the encoding of standard output lacks (cp1252 on Windows when the
output goes to a file, ASCII in the C locale), with a UnicodeEncodeError in the middle of what a run has earned. And in
figures, Matplotlib takes what stands between two dollars for a formula, and draws none of the figure if it is none.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS = "privfl.spelled_out"
"""Name of the handler for ``str.encode(errors=…)`` and ``reconfigure(errors=…)``; this module registers it."""

_SIGNS = {
    "Σ": "sum of ",
    "∞": "infinity",
    "≤": "<=",
    "≥": ">=",
    "≈": "about ",
    "≠": "!=",
    "±": "+-",
    "×": "x",
    "÷": "/",
    "·": "*",
    "−": "-",
    "–": "-",
    "—": "-",
    "√": "sqrt ",
    "½": "1/2",
    "→": "->",
    "…": "...",
    "“": '"',
    "”": '"',
    "’": "'",
    "′": "'",
}


def _spelled(letter: str) -> str:
    """``epsilon`` for ε, ``^2`` for ², ``<=`` for ≤, and Python's escape for what has no such spelling."""
    if letter in _SIGNS:
        return _SIGNS[letter]
    alphabet, _, name = unicodedata.name(letter, "").partition(" LETTER ")
    if alphabet in ("GREEK SMALL", "GREEK CAPITAL") and name.isalpha():
        return name.lower() if alphabet == "GREEK SMALL" else name.capitalize()
    height, _, plain = unicodedata.decomposition(letter).partition(" ")
    if height in ("<super>", "<sub>"):
        return ("^" if height == "<super>" else "_") + chr(int(plain, 16)).encode("ascii", "replace").decode("ascii")
    return letter.encode("ascii", "backslashreplace").decode("ascii")


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelled, error.object[error.start : error.end])), error.end


codecs.register_error(ERRORS, _spell_out)


def printable(text: str) -> str:
    """``text`` as standard output can print it: unchanged where its encoding has every letter, else spelled out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # no encoding: pythonw, or a stream of one's own
    try:
        return text.encode(encoding, ERRORS).decode(encoding)
    except LookupError:  # a stream that names an encoding Python does not know
        return text


def let_every_text_be_printed() -> None:
    """Make standard output and standard error of this process spell out what they lack."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


def as_written(figure: Figure) -> None:
    """Draw every text of ``figure`` letter by letter, dollars too; ticks of logarithmic axes stay powers of ten."""
    from matplotlib.text import Text

    powers: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                ticks = *axis.get_major_ticks(), *axis.get_minor_ticks()
                powers.update(label for tick in ticks for label in (tick.label1, tick.label2))
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
