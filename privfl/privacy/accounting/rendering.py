"""The statement as plain text (100 columns) and as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from html import escape
from textwrap import wrap

from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.accounting.statement import NOTHING, RELATIONS, Cell, Statement

_COLUMNS = {"server": "server (every message)", "public": "public (released models)"}
_WIDTHS = (24, 35, 35)


def round_up(epsilon: float) -> str:
    """ε with three significant digits, rounded up, so that print never claims more than was computed.

    >>> round_up(6.76878), round_up(0.02921), round_up(1.0), round_up(52410.2), round_up(0.0)
    ('6.77', '0.0293', '1', '52500', '0')
    """
    if not math.isfinite(epsilon):
        return "∞"
    exact = Decimal(epsilon)
    if exact <= 0:
        return "0"
    digit = Decimal(1).scaleb(exact.adjusted() - 2)
    rounded = (exact / digit).to_integral_value(ROUND_CEILING) * digit
    return f"{rounded:f}"


def to_text(statement: Statement) -> str:
    """The 2x2 table with the reasons and details below, at most 100 columns wide."""
    rows: list[tuple[str, ...]] = [("", *(_COLUMNS[observer] for observer in OBSERVERS))]
    blocks = [rows]
    for unit in UNITS:
        cells = [_cell_lines(statement.cell(unit, observer)) for observer in OBSERVERS]
        blocks.append(_side_by_side([[unit, *wrap(RELATIONS[unit], _WIDTHS[0])], *cells]))
    rule = "-" * (sum(_WIDTHS) + 4)
    lines = [f"Privacy statement: {statement.clients} clients, delta = {statement.delta:g}"]
    for block in blocks:
        lines.append(rule)
        lines += [
            "  ".join(text.ljust(width) for text, width in zip(row, _WIDTHS, strict=True)).rstrip() for row in block
        ]
    lines.append(rule)
    for paragraph in _paragraphs(statement):
        lines += wrap(paragraph, 98, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def to_html(statement: Statement) -> str:
    """An HTML fragment: a table, and a list of the same sentences as in the text."""
    head = "".join(f"<th scope='col'>{escape(_COLUMNS[observer])}</th>" for observer in OBSERVERS)
    body = ""
    for unit in UNITS:
        cells = "".join(
            f"<td>{'<br>'.join(escape(line) for line in _cell_lines(statement.cell(unit, observer)))}</td>"
            for observer in OBSERVERS
        )
        body += f"<tr><th scope='row'>{unit}<br><small>{escape(RELATIONS[unit])}</small></th>{cells}</tr>"
    notes = "".join(f"<li>{escape(paragraph)}</li>" for paragraph in _paragraphs(statement))
    return (
        f"<table class='privacy-statement'><caption>Privacy statement: {statement.clients} clients, "
        f"delta = {statement.delta:g}</caption><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<ul class='privacy-statement'>{notes}</ul>"
    )


def _side_by_side(columns: list[list[str]]) -> list[tuple[str, ...]]:
    height = max(len(column) for column in columns)
    return list(zip(*([*column, *[""] * (height - len(column))] for column in columns), strict=True))


def _cell_lines(cell: Cell) -> list[str]:
    width = _WIDTHS[1]
    if cell.reasons:
        return ["ε = ∞", *wrap("see the reasons below", width)]
    if not cell.releases:
        return ["ε = 0", *wrap(NOTHING, width)]
    bound, spread = cell.bound, cell.clients
    lines = [f"ε = {round_up(bound.epsilon)}  ({bound.accountant})"]
    if bound.lower > 0:
        lines.append(f"exact: {bound.lower:.4g} to {bound.upper:.4g}")
        lines += wrap(f"by {bound.interval_source}", width)
    if spread.minimum < spread.maximum:
        lines.append(f"median client {round_up(spread.median)}, least {round_up(spread.minimum)}")
    return lines


def _paragraphs(statement: Statement) -> Iterator[str]:
    if statement.reproducible_noise:
        yield "DO NOT RELEASE: the noise came from a fixed key, so whoever knows the key can subtract it."
    reasons: dict[str, list[str]] = {}
    for cell in statement.cells:
        for reason in cell.reasons:
            reasons.setdefault(reason, []).append(f"{cell.unit}/{cell.observer}")
    for reason, where in reasons.items():
        yield f"∞ at {', '.join(where)} because of {reason}"
    details: dict[str, list[str]] = {}
    for cell in statement.cells:
        if cell.releases and not cell.reasons:
            details.setdefault(_details(cell), []).append(f"{cell.unit}/{cell.observer}")
    for detail, where in details.items():
        yield f"{', '.join(where)}: {detail}"
    if statement.sweep:
        for unit, observer, epsilon in statement.sweep.epsilons:
            yield f"All {statement.sweep.runs} runs together, {unit}/{observer}: ε = {round_up(epsilon)}."
    yield from statement.caveats


def _details(cell: Cell) -> str:
    spread = cell.clients
    made = "; ".join(f"{release.count} x {release.name} ({release.mechanism})" for release in cell.releases)
    text = f"worst is client {spread.worst_client} with {made}."
    if spread.minimum < spread.maximum:
        quartiles = f"{round_up(spread.lower_quartile)}, {round_up(spread.median)}, {round_up(spread.upper_quartile)}"
        text += f" Clients: least {round_up(spread.minimum)}, quartiles {quartiles}, most {round_up(spread.maximum)}."
    return f"{text} Note: {cell.note}." if cell.note else text
