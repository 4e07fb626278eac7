"""The statement: what a run claims, to whom, for whom, and where it claims nothing; as text, HTML and JSON.

Rows are the unit that is protected, columns who looks. Each cell holds ε of the worst client at delta, or ∞ with the
reasons. How the numbers are found is told in :mod:`privfl.privacy.accounting.claims`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from textwrap import wrap
from typing import Any

from privfl.errors import PrivacyError
from privfl.plain_text import printable
from privfl.privacy.accounting.accountant import Bound
from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Unit

RELATIONS: Mapping[Unit, str] = {
    "sample": "add or remove one example of one client",
    "client": "one client's contribution is left out",
}
"""The neighbouring relation of each row, in words."""

NOTHING = "nothing derived from the data reaches this observer"

_COLUMNS = {"server": "server (every message)", "public": "public (released models)"}
_WIDTHS = (24, 35, 35)


@dataclass(frozen=True)
class Counted:
    """One release as the worst client made it: its name, its mechanism in words, how often."""

    name: str
    mechanism: str
    count: int


@dataclass(frozen=True)
class Answers:
    """What a client's answers about its size cost, ``count`` of them: ``epsilon``, whatever else is sent."""

    epsilon: float
    count: int


@dataclass(frozen=True)
class Distribution:
    """ε over the clients. All but ``maximum`` may be rounded up; a quartile is the ε of a client, never between two."""

    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float
    worst_client: int


@dataclass(frozen=True)
class Cell:
    """The claim for one unit before one observer; ``bound.epsilon`` is ∞ exactly if there are ``reasons``.

    ``answers`` about sizes have an ε of their own where only training has no mechanism.
    """

    unit: Unit
    observer: Observer
    relation: str
    bound: Bound
    releases: tuple[Counted, ...]
    reasons: tuple[str, ...]
    clients: Distribution
    note: str
    answers: Answers | None = None

    @property
    def epsilon(self) -> float:
        """ε of the worst client."""
        return self.bound.epsilon


@dataclass(frozen=True)
class Statement:
    """The four cells of a run at ``delta``; print it, or show it in a notebook or a report.

    ``public`` says what every claim takes as known to everybody, ``caveats`` what a reader must know besides, and
    ``server`` what the server may do where a claim before it rests on secure aggregation.
    """

    delta: float
    clients: int
    cells: tuple[Cell, ...]
    reproducible_noise: bool
    caveats: tuple[str, ...] = ()
    public: str = ""
    server: str = ""

    def cell(self, unit: Unit, observer: Observer) -> Cell:
        """The cell in row ``unit`` and column ``observer``."""
        return next(cell for cell in self.cells if (cell.unit, cell.observer) == (unit, observer))

    def finite(self) -> dict[str, float]:
        """ε of the cells that are not at ∞, keyed "unit/observer"."""
        cells = {f"{cell.unit}/{cell.observer}": cell.epsilon for cell in self.cells}
        return {name: epsilon for name, epsilon in cells.items() if math.isfinite(epsilon)}

    def to_json(self) -> str:
        """The statement as JSON text; infinity is written as the string "inf"."""
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """The statement that :meth:`to_json` wrote; raises :class:`PrivacyError` for anything else."""
        try:
            data = _infinite(json.loads(text))
            cells = tuple(
                Cell(
                    **cell
                    | {
                        "bound": Bound(**cell["bound"]),
                        "releases": tuple(Counted(**release) for release in cell["releases"]),
                        "reasons": tuple(cell["reasons"]),
                        "clients": Distribution(**cell["clients"]),
                        "answers": Answers(**cell["answers"]) if cell.get("answers") else None,
                    }
                )
                for cell in data["cells"]
            )
            return cls(**data | {"cells": cells, "caveats": tuple(data["caveats"])})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise PrivacyError(
                f"this is not a privacy statement ({error}): give the text of a statement.json."
            ) from error

    def __str__(self) -> str:
        """The 2x2 table with the reasons and details below, at most 100 columns wide."""
        rows: list[tuple[str, ...]] = [("", *(_COLUMNS[observer] for observer in OBSERVERS))]
        blocks = [rows]
        for unit in UNITS:
            cells = [_cell_lines(self, self.cell(unit, observer)) for observer in OBSERVERS]
            blocks.append(_side_by_side([[unit, *wrap(RELATIONS[unit], _WIDTHS[0])], *cells]))
        rule = "-" * (sum(_WIDTHS) + 4)
        lines = [f"Privacy statement: {self.clients} clients, delta = {self.delta:g}"]
        for block in blocks:
            lines.append(rule)
            lines += [
                "  ".join(text.ljust(width) for text, width in zip(row, _WIDTHS, strict=True)).rstrip() for row in block
            ]
        lines.append(rule)
        for paragraph in _paragraphs(self):
            lines += wrap(paragraph, 98, subsequent_indent="    ", break_on_hyphens=False)
        return printable("\n".join(lines))

    def to_html(self) -> str:
        """An HTML fragment without scripts, styles or links: a table, and the sentences of the text as a list."""
        head = "".join(f"<th scope='col'>{escape(_COLUMNS[observer])}</th>" for observer in OBSERVERS)
        body = ""
        for unit in UNITS:
            cells = "".join(
                f"<td>{'<br>'.join(escape(line) for line in _cell_lines(self, self.cell(unit, observer)))}</td>"
                for observer in OBSERVERS
            )
            body += f"<tr><th scope='row'>{unit}<br><small>{escape(RELATIONS[unit])}</small></th>{cells}</tr>"
        notes = "".join(f"<li>{escape(paragraph)}</li>" for paragraph in _paragraphs(self))
        return (
            f"<table class='privacy-statement'><caption>Privacy statement: {self.clients} clients, "
            f"delta = {self.delta:g}</caption><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<ul class='privacy-statement'>{notes}</ul>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_infinite(item) for item in value]
    return math.inf if value == "inf" else value


def _side_by_side(columns: list[list[str]]) -> list[tuple[str, ...]]:
    height = max(len(column) for column in columns)
    return list(zip(*([*column, *[""] * (height - len(column))] for column in columns), strict=True))


def _numbered_reasons(statement: Statement) -> dict[str, list[Cell]]:
    """Every reason for an ∞, in the order of their numbers from 1 on, with the cells that it is the reason for."""
    reasons: dict[str, list[Cell]] = {}
    for cell in statement.cells:
        for reason in cell.reasons:
            reasons.setdefault(reason, []).append(cell)
    return reasons


def _numbers(statement: Statement, cell: Cell) -> str:
    """The numbers of the cell's reasons, as they stand before the reasons: "(1), (3)"."""
    return ", ".join(f"({n})" for n, why in enumerate(_numbered_reasons(statement), 1) if why in cell.reasons)


def _cell_lines(statement: Statement, cell: Cell) -> list[str]:
    width = _WIDTHS[1]
    if cell.reasons:
        return ["ε = ∞", *wrap(f"no guarantee, see {_numbers(statement, cell)}", width)]
    if not cell.releases:
        return ["ε = 0", *wrap(NOTHING, width)]
    bound, spread = cell.bound, cell.clients
    lines = [f"ε = {round_up(bound.epsilon)}  ({bound.accountant})"]
    if bound.lower > 0:
        lines.append(f"exact: {bound.lower:.4g} to {bound.upper:.4g}")
        lines += wrap(f"by {bound.interval_source}", width)
    if spread.minimum < spread.maximum:
        lines.append(f"median client {round_up(spread.median)}, least {round_up(spread.minimum)}")
    return lines + (wrap(statement.server, width) if cell.observer == "server" else [])


def _paragraphs(statement: Statement) -> Iterator[str]:
    if statement.reproducible_noise:
        yield "DO NOT RELEASE: the noise came from a fixed key, so whoever knows the key can subtract it."
    for number, (reason, cells) in enumerate(_numbered_reasons(statement).items(), 1):
        missing = ", ".join(f"{cell.unit}/{cell.observer}" for cell in cells)
        yield f"({number}) No guarantee at {missing} because of {reason}"
    details: dict[str, list[str]] = {}
    for cell in statement.cells:
        if cell.answers is not None:
            details.setdefault(_of_sizes(cell.answers), []).append(f"{cell.unit}/{cell.observer}")
        if cell.releases and not cell.reasons:
            details.setdefault(_details(cell), []).append(f"{cell.unit}/{cell.observer}")
    for detail, where in details.items():
        yield f"{', '.join(where)}: {detail}"
    if statement.public and not all(cell.reasons for cell in statement.cells):  # else there is no claim to assume it
        yield statement.public
    yield from statement.caveats


def _of_sizes(answers: Answers) -> str:
    times = "the answer" if answers.count == 1 else f"the {answers.count} answers"
    return f"{times} about a client's size alone: ε = {round_up(answers.epsilon)}, which says nothing of the updates."


def _details(cell: Cell) -> str:
    spread = cell.clients
    made = "; ".join(f"{release.count} x {release.name} ({release.mechanism})" for release in cell.releases)
    same = spread.minimum == spread.maximum
    text = "the same bound for every client" if same else f"the largest ε is that of client {spread.worst_client}"
    text += f"; composed of {made}."
    if spread.minimum < spread.maximum:
        quartiles = f"{round_up(spread.lower_quartile)}, {round_up(spread.median)}, {round_up(spread.upper_quartile)}"
        text += f" Clients: least {round_up(spread.minimum)}, quartiles {quartiles}, most {round_up(spread.maximum)}."
    return f"{text} Note: {cell.note}." if cell.note else text
