"""The page itself: one HTML file that fetches nothing, put together from what a run or a study tells."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from privfl.errors import DataError
from privfl.files import write_whole
from privfl.study.assurance import VERDICTS
from privfl.study.chart import Chart, figure_bytes
from privfl.study.clients import in_words, read_clients
from privfl.study.glossary import glossary
from privfl.study.plots import clients_chart
from privfl.study.provenance import today
from privfl.study.record import DAMAGED

CLIENTS = "Who holds what."
TEMPLATES = Path(__file__).parent / "templates"
TERMS = "<!-- terms -->"
CHECKLIST = (
    "It is known who will see what is released, and each of them is one of the observers above.",
    "What each of them can learn at most is acceptable for these data, or nothing goes to them.",
    "One example is the right unit. Where a person contributed several, all of them together are protected with that "
    "many times the ε and a larger δ, or the bounds for a whole client apply.",
    "δ is well below one over the number of those protected.",
    "Nothing that is listed as not protected leaves together with the model: figures of merit, this page, transcripts, "
    "checkpoints, timings.",
    "Other runs on the same data, tuning and trials among them, have been counted.",
    "What attacks and audits could not try, and audits that are uninformative, have been considered.",
    "The licence of the data and the legal basis cover this use.",
)


def picture(name: str, chart: Chart, caption: str) -> dict[str, Any]:
    """``chart`` for the template: as markup, with its numbers."""
    return {"markup": Markup(chart.markup(name)), "caption": caption, "head": chart.head, "rows": chart.rows}


def save(chart: Chart, path: Path) -> None:
    """Write ``chart`` as PNG."""
    write_whole(path, figure_bytes(chart, "png"))


def write(html: str, page: Path) -> Path:
    """Write the finished page to the file ``page``."""
    write_whole(page, html.encode())
    return page


def flat(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``environment.json`` holds, as rows."""
    plain = {name: str(value) for name, value in machine.items() if not isinstance(value, dict)}
    return [*plain.items(), *((name, str(value)) for name, value in machine["packages"].items())]


def number(text: str, value: float) -> dict[str, Any]:
    """A cell of a table that sorts by ``value``."""
    return {"text": text, "value": {float("inf"): "Infinity"}.get(value, repr(float(value)))}


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file below ``path`` raises into one sentence."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, DataError):
            raise
        what = f"{error!s} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} cannot be reported: {what}; repeat the run, or restore the file") from error


def clients_section(folder: Path, figures: Path, note: str) -> dict[str, Any] | None:
    """The run's clients in words and as a picture, if they were recorded."""
    report = read_clients(folder)
    if report is None:
        return None
    chart = clients_chart(report)
    save(chart, figures / "clients.png")
    return {"sentence": f"{in_words(report)}{note}", "figures": [picture("clients", chart, CLIENTS)]}


def problems(summary: Mapping[str, Any]) -> list[str]:
    """Why the run failed, if it did, and its warnings."""
    failure = summary.get("failure")
    return [*([f"The run failed: {failure}."] if failure else []), *summary["warnings"]]


def render(**content: Any) -> str:
    """The page; content is what the template names, and every term that it uses is defined at its end."""
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    limits, least = [], 50
    for limit, words in VERDICTS:
        limits.append(f"“{words}” {'up to' if limit < 1 else 'above'} {100 * limit if limit < 1 else least:.0f} %")
        least = round(100 * limit)
    html = templates.get_template("report.html").render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        date=today(),
        verdicts=", ".join(limits),
        checklist=CHECKLIST,
        **content,
    )
    body = html.partition("<body>")[2].partition("<script>")[0]
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>\n" for term, meaning in glossary(body))
    return html.replace(TERMS, f'<dl class="terms">{terms}</dl>')
