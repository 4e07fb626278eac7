"""The table of a study: text, LaTeX, CSV, Markdown or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from privfl.privacy.accounting.printed import round_up
from privfl.study.results import Results, Row
from privfl.study.store import CELLS

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"\textless{}"},
    **{">": r"\textgreater{}", "ε": r"$\varepsilon$", "δ": r"$\delta$", "∞": r"$\infty$", "±": r"$\pm$"},
    **{"≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "−": "$-$", "…": r"\ldots{}", "–": "--", "\n": " "},
}
_MARKDOWN = {"\\": r"\\", "|": r"\|", "<": "&lt;", "&": "&amp;", "\n": " "}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet computes a cell of CSV that begins so, whoever named it."""
OF_TUNING = (
    *("choice of ", "trials that failed", "runs for ", "division of the data"),
    *("runs that are gone", "runs that did not end"),
)
"""What the releases that tuning adds are called."""


class Format(StrEnum):
    """How a table is written."""

    text = "text"
    latex = "latex"
    csv = "csv"
    markdown = "markdown"
    json = "json"


def write_table(results: Results, how: Format) -> str:
    """``results`` as text: one line for each method and level; JSON and CSV hold every figure of every run.

    Raises:
        ConfigError: no run has the study's metric.
        DataError: no run is done.
    """
    if how is Format.json:
        rows = [asdict(one) for one in results.rows()]
        tuned = {"tuned": list(results.tuned.values())} if results.tuned else {}
        content = {"title": results.title, "metric": results.metric, "rows": rows, "runs": results.table(), **tuned}
        content |= {"warnings": results.warnings} if results.warnings else {}
        return as_json(content)
    if how is Format.csv:
        return _csv(results.table())
    head, body = cells(results)
    warned = [one for warning in results.warnings for one in ("", warning)]
    if how is Format.latex:
        return "\n".join([latex(head, body), *map(_escaped, warned)])
    if how is Format.markdown:
        return "\n".join([markdown(head, body), *warned])
    return "\n".join([plain(head, body), *warned, *tuning_in_words(results)])


def tuning_in_words(results: Results) -> list[str]:
    """What was tuned, in sentences: how many trials, what ε counts, and why it is ∞ where it is."""
    if not results.tuned:
        return []
    spent = [one["spent"] for one in results.tuned.values() if "spent" in one]
    if not spent:
        return ["", "The study is still being tuned; what its runs spend is told when all have ended."]
    trials = {name for one in spent for group in one["trials"] for name in group}
    told = [
        f"{spent[0]['parameter']} was tuned by {len(trials)} trials on validation rows; ε counts them and the picks "
        "with every run (`--json` has that of the runs alone)."
    ]
    reasons: dict[str, dict[str, None]] = {}
    for one in results.tuned.values():
        for reason in one["reasons"]:
            cell, _, why = reason.partition(": ")
            if why.startswith(OF_TUNING):
                reasons.setdefault(why, {})[cell] = None
    return ["", *told, *(f"∞ at {', '.join(where)} because of {why}." for why, where in reasons.items())]


def cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """Heads of columns, and rows of texts."""
    rows = results.rows()
    percent = all(0 <= value <= 1 for row in rows for value in row.values.values()) and not results.lower_is_better
    failed = any(row.failed for row in rows)
    head = ["method", "level", results.metric, f"{results.confidence:.0%} interval", "judged by", "seeds"]
    tuned = any(row.tuned for row in rows)
    head += (["tuned"] if tuned else []) + [f"ε {cell}" + " with tuning" * tuned for cell in CELLS]
    head += ["failed"] if failed else []
    body = []
    for row in rows:
        told = [spread(row, percent=percent), interval(row, percent=percent), row.judged_by, str(len(row.values))]
        told += [row.tuned] if tuned else []
        told += [round_up(row.epsilons[cell]) for cell in CELLS] + ([str(row.failed)] if failed else [])
        body.append([row.method, row.level, *told])
    return head, body


def spread(row: Row, *, percent: bool) -> str:
    """``91.2 ± 0.4 %``, or without a spread where one seed tells none."""
    if percent:
        return f"{100 * row.mean:.1f}" + ("" if math.isnan(row.deviation) else f" ± {100 * row.deviation:.1f}") + " %"
    return f"{row.mean:.4g}" + ("" if math.isnan(row.deviation) else f" ± {row.deviation:.2g}")


def interval(row: Row, *, percent: bool) -> str:
    """``[90.8, 91.6] %``, empty for one seed."""
    if math.isnan(row.low):
        return ""
    if percent:  # no share lies outside of what is possible
        return f"[{100 * max(row.low, 0):.1f}, {100 * min(row.high, 1):.1f}] %"
    return f"[{row.low:.4g}, {row.high:.4g}]"


def latex(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    r"""A ``tabular`` that plain LaTeX compiles; every character with a meaning of its own is escaped.

    >>> print(latex(["a_b"], [["50 %"]]))
    \begin{tabular}{l}
    \hline
    a\_b \\
    \hline
    50 \% \\
    \hline
    \end{tabular}
    """
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in [head, *body]]
    columns = "".join("l" if place < 2 else "r" for place in range(len(head)))
    rows = [r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *rows, r"\end{tabular}"])


def _escaped(text: str) -> str:
    """``text`` for LaTeX; what begins with a bracket or a star would be an argument of the line break before it."""
    return ("{}" if text.startswith(("[", "*")) else "") + "".join(_LATEX.get(one, one) for one in text)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; what would end a cell, begin a tag or name a character is shown as it is."""
    escaped = [["".join(_MARKDOWN.get(one, one) for one in text) for text in row] for row in [head, *body]]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def plain(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns side by side, never cut."""
    rows = [list(head), *map(list, body)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def as_json(content: Any) -> str:
    """``content`` as JSON: ∞ is the text "inf", what is not known is null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _csv(table: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writerow({name: _as_text(name) for name in table[0]})
    for row in table:
        shown = {name: "" if value is None or value != value else _as_text(value) for name, value in row.items()}
        writer.writerow(shown)
    return text.getvalue().rstrip("\n")


def _as_text(value: Any) -> Any:
    """``value``, marked as text if a spreadsheet would take it for a formula; numbers stay numbers."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
