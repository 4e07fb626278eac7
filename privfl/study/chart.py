"""The one style of all figures, and a figure as part of a page: vector, in the page's colours, with values to hover.

Lines differ in colour, marker and dashes, so that they can be told apart in grey and by colour-blind readers. On a page
the ink is the page's own (``currentColor``), and colours are its variables, so that they follow light and dark.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter

from privfl.plain_text import as_written

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
INK, GRID = "#010101", "#e4e4e4"
"""Nobody else draws with these two, so that a page may replace them by its own."""
NAMES = {INK: "currentColor", GRID: "var(--grid, #e4e4e4)"} | {
    colour.lower(): f"var(--series-{number}, {colour.lower()})" for number, colour in enumerate(COLOURS, 1)
}
WIDTH = 5.2
"""Inches; narrow, because a phone shows the same figure."""
TITLE_WIDTH = 62
"""Characters of a title that fit into the width; a longer one would push the axes aside."""
NAME_WIDTH = 46
"""Characters of a line's name that fit beside its mark; a longer one goes on below, and its middle is left out if it
takes more than two lines. Axes share the width with their legend, so that names decide how much is left for them."""
AXIS_WIDTH = 40
"""Characters of a label that fit beside the axis of values."""
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "privfl"}


class Chart(Figure):
    """A figure that knows its numbers.

    Args:
        summary: what it shows, in a sentence, for readers who cannot see it.
        head: of the table of all that is drawn.
        height: in inches.

    Attributes:
        rows: of that table, as text.
    """

    def __init__(self, summary: str, head: Sequence[str] = (), height: float = 3.5) -> None:
        super().__init__(figsize=(WIDTH, height), layout="constrained", facecolor="white")
        self.summary, self.head = summary, tuple(head)
        self.rows: list[tuple[str, ...]] = []
        self._told: dict[str, list[str]] = {}

    def draw(self, renderer: RendererBase) -> None:
        """Draw the chart; names of methods and titles are no formulas, whatever stands in them."""
        as_written(self)
        super().draw(renderer)

    def panel(self) -> Axes:
        """The chart's axes, in the house's style."""
        axes = self.add_subplot(facecolor="none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, labelsize=10)
        for spine in axes.spines.values():
            spine.set_color(INK)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set(color=INK, fontsize=10.5)
        axes.ticklabel_format(useOffset=False)
        return axes

    def tell(self, line: Line2D, texts: Sequence[str]) -> None:
        """Give every marker of ``line`` a text, in their order."""
        name = f"points-{len(self._told)}"
        line.set_gid(name)
        self._told[name] = list(texts)

    def markup(self, name: str) -> str:
        """The chart as an ``<svg>`` element that can stand in a page; ``name`` keeps its ids apart from others'."""
        with mpl.rc_context(_SVG):
            text = io.StringIO()
            self.savefig(text, format="svg", metadata={"Date": None}, facecolor="none")
        root = ET.fromstring(text.getvalue())
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
            for key in list(element.attrib):
                element.attrib[key.rpartition("}")[2]] = _in_page(element.attrib.pop(key), name)
            if "id" in element.attrib:
                element.set("id", f"{name}-{element.get('id')}")
        _drop(root, ("metadata", "style"))
        for size in ("width", "height", "version"):
            root.attrib.pop(size, None)
        for gid, texts in self._told.items():
            _tell(root, f"{name}-{gid}", texts)
        root.attrib |= {"class": "chart", "role": "group", "aria-label": self.summary}
        return ET.tostring(root, encoding="unicode")


class Share(Formatter):
    """Shares in percent, with the digits that tell the ticks apart: 97.5 % stays 97.5 %."""

    digits = 0

    def set_locs(self, locs: Any) -> None:
        """Take as many digits as the ticks at ``locs`` need."""
        wanted = [100 * place for place in locs]
        self.digits = next(
            (d for d in range(6) if all(math.isclose(round(v, d), v, rel_tol=1e-9, abs_tol=1e-9) for v in wanted)), 6
        )

    def __call__(self, x: float, pos: int | None = None) -> str:
        """One tick."""
        return f"{100 * x:.{self.digits}f} %"


def style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of line number ``index``; 42 lines differ in colour or marker."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 1.7,
        "markersize": 6,
    }


def named(name: str) -> str:
    """The label of a line called ``name``: Matplotlib leaves those that begin with an underscore out of legends."""
    return f" {name}" if name.startswith("_") else name


def legend(axes: Axes, title: str = "") -> None:
    """The names of the lines, above the axes, where they cover nothing."""
    handles, given = axes.get_legend_handles_labels()
    if not given:
        return
    names = [wrapped_name(name) for name in given]
    longest = max(len(line) for name in names for line in name.splitlines())
    columns = max(1, min(4, len(names), int(56 / (longest + 7))))
    height = math.ceil(len(names) / columns)  # Matplotlib fills column after column
    lines = sum(max(name.count("\n") + 1 for name in names[row::height]) for row in range(height))
    chart = axes.get_figure()  # "root" came with Matplotlib 3.10
    assert isinstance(chart, Figure)
    wrapped = textwrap.fill(title, TITLE_WIDTH)
    chart.set_figheight(chart.get_figheight() + 0.2 * (lines + wrapped.count("\n")))
    axes.legend(
        handles, names, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, frameon=False, fontsize=10,
        labelcolor=INK, title=wrapped or None, alignment="left", handlelength=2.6, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip


def wrapped_name(name: str) -> str:
    """``name`` in one line or two that fit into a legend, without its middle if it is longer; both ends tell it."""
    wide = sum(map(_beyond, name))  # what its letters are wider than the usual one
    width = max(10, int(NAME_WIDTH * len(name) / (len(name) + wide))) if name else NAME_WIDTH
    lines = textwrap.wrap(name, width) or [""]
    if len(lines) > 2:
        lines = [f"{name[: width - 2].rstrip()} …", f"… {name[2 - width :].lstrip()}"]
    return "\n".join(lines)


def _beyond(letter: str) -> float:
    """By how many usual letters ``letter`` is wider than one."""
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.45 * letter.isupper() + 0.45 * (letter in "MWmw")


def few(number: int, most: int = 12) -> list[int]:
    """Which of ``number`` points carry a marker: at most ``most``, evenly, the last one among them."""
    step = max(1, math.ceil(number / most))
    return sorted(range(number - 1, -1, -step))


def figure_bytes(figure: Figure, form: str) -> bytes:
    """``figure`` as the content of a file, ``svg`` or ``png``, the same each time."""
    buffer = io.BytesIO()
    with mpl.rc_context(_SVG):
        figure.savefig(
            buffer, format=form, dpi=140, metadata={"Date": None} if form == "svg" else {}, facecolor="white"
        )
    return buffer.getvalue()


def _in_page(value: str, name: str) -> str:
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    value = f"#{name}-{value[1:]}" if re.fullmatch(r"#(?![0-9a-f]{6}$).+", value) else value
    value = re.sub(r"#[0-9a-f]{6}\b", lambda found: NAMES.get(found[0], found[0]), value)
    value = re.sub(r"font: ([0-9.]+px)[^;]*", r"font: \1 var(--font, sans-serif)", value)
    return re.sub(r"font-family: [^;]*", "font-family: var(--font, sans-serif)", value)


def _drop(root: ET.Element, tags: tuple[str, ...]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)


def _tell(root: ET.Element, name: str, texts: Sequence[str]) -> None:
    """Wrap every marker of the line called ``name`` in a group that bears its text."""
    (line,) = (element for element in root.iter("g") if element.get("id") == name)
    found = [
        (parent, place, child) for parent in line.iter() for place, child in enumerate(parent) if child.tag == "use"
    ]
    for (parent, place, marker), text in zip(found, texts, strict=True):
        point = ET.Element("g", {"class": "point", "role": "img", "aria-label": text})
        ET.SubElement(point, "title").text = text
        point.append(marker)
        parent[place] = point
