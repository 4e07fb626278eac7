"""One self-contained HTML page for a run or a study. It shows what the files say and computes no claim of its own."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from privfl.errors import DataError
from privfl.privacy.accounting.statement import Statement
from privfl.run_directory import Metrics, read_lines, write_whole
from privfl.simulation import Run
from privfl.study.grid import CELLS, Result, Summary, load_results, summarise, sweep_statement
from privfl.study.plots import curves, finite, pareto, run_curves


def report_directory(path: Path) -> Path:
    """Write ``report.html`` (and the figures) for the run or study in ``path``; returns the page's path.

    Raises:
        DataError: ``path`` holds neither, or a file of it is missing or damaged.
    """
    try:
        if (path / "results.json").exists():
            return _study(path)
        if (path / "statement.json").exists():
            return _run(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be reported: {error}; repeat the run, or restore the file") from error
    unfinished = (path / "environment.json").exists()
    mend = "the run is not finished, go on with --resume" if unfinished else "give the --out folder of a run or a study"
    raise DataError(f"{path} holds no finished run and no study; {mend}")


def write_report(run: Run, path: Path) -> None:
    """Write the page of a run that is still in memory."""
    page = _run_page(run.statement, run.metrics, run.summary, [], run_curves(run.metrics))
    write_whole(path, page.encode())


def _run(path: Path) -> Path:
    statement = Statement.from_json((path / "statement.json").read_text())
    metrics = read_lines(path / "metrics.jsonl")
    summary = json.loads((path / "summary.json").read_text())
    settings = [{"name": name, "text": (path / name).read_text()} for name in ("config.toml", "environment.json")]
    figure = run_curves(metrics)
    _save(figure, path / "figures" / "curves.png")
    page = path / "report.html"
    write_whole(page, _run_page(statement, metrics, summary, settings, figure).encode())
    return page


def _run_page(
    statement: Statement,
    metrics: Sequence[Metrics],
    summary: dict[str, Any],
    settings: list[dict[str, str]],
    figure: Figure,
) -> str:
    warnings = list(summary["warnings"])
    warnings += [f"{count} uploads were dropped: a client {why}." for why, count in summary["dropped"].items()]
    findings = [
        f"After {summary['rounds']} rounds {summary['algorithm']} reaches a test accuracy of "
        f"{summary['test_accuracy']:.1%} and a macro-F1 of {summary['test_macro_f1']:.3f}."
    ]
    if summary["stopped"] == "budget":
        findings.append("The run stopped early because the next round would have exceeded its privacy budget.")
    return _render(
        title=f"{summary['algorithm']} on {summary['dataset']}",
        subtitle=f"{summary['clients']:,} clients, model {summary['model']}, {len(metrics)} rounds",
        findings=findings,
        table=None,
        pictures=[_picture("curves", figure)],
        statements=[{"name": "This run", "html": statement.to_html()}],
        sweep=None,
        warnings=warnings,
        settings=settings,
    )


def _study(path: Path) -> Path:
    results = load_results(path)
    study = json.loads((path / "study.json").read_text())
    rows = summarise(results)
    figures = {"pareto": pareto(rows), **_accuracy_curves(path, results)}
    for name, figure in figures.items():
        _save(figure, path / "figures" / f"{name}.png")
    statements, shown = [], set()
    for result in results:
        if (result.method, result.level) not in shown:
            shown.add((result.method, result.level))
            statement = Statement.from_json((path / "runs" / result.folder / "statement.json").read_text())
            name = f"{result.method}, {result.level} (seed {result.seed})"
            statements.append({"name": name, "html": statement.to_html()})
    page = path / "report.html"
    html = _render(
        title=study["title"],
        subtitle=f"{len(results)} runs, {max(row.seeds for row in rows)} seeds",
        findings=findings(rows),
        table={
            "head": ["method", "level", "accuracy", *(f"ε {cell}" for cell in CELLS)],
            "rows": [
                [row.method, row.level, percent(row), *(finite(row.epsilons[cell]) for cell in CELLS)] for row in rows
            ],
        },
        pictures=[_picture(name, figure) for name, figure in figures.items()],
        statements=statements,
        sweep=_sweep(path, results),
        warnings=study["failures"],
        settings=[
            {
                "name": f"{result.folder}/config.toml",
                "text": (path / "runs" / result.folder / "config.toml").read_text(),
            }
            for result in results
        ],
    )
    write_whole(page, html.encode())
    return page


def _accuracy_curves(path: Path, results: Sequence[Result]) -> dict[str, Figure]:
    figures = {}
    for method in dict.fromkeys(result.method for result in results):
        groups: dict[str, list[list[tuple[int, float]]]] = {}
        for result in (result for result in results if result.method == method):
            lines = read_lines(path / "runs" / result.folder / "metrics.jsonl")
            points = [(line["round"] + 1, line["test_accuracy"]) for line in lines if "test_accuracy" in line]
            groups.setdefault(result.level, []).append(points)
        figures[f"curves-{method.lower().replace(' ', '-')}"] = curves(groups, method)
    return figures


def _sweep(path: Path, results: Sequence[Result]) -> dict[str, str] | None:
    private = [result for result in results if any(value is not None for value in result.epsilons.values())]
    if not private:
        return None
    delta = Statement.from_json((path / "runs" / private[0].folder / "statement.json").read_text()).delta
    statement = sweep_statement(path, private, delta)
    if statement is None:
        return None
    sentence = (
        f"Showing the best of many runs tells something about all of them. The {len(private)} runs with a mechanism "
        f"together claim only this, at δ = {delta:g}; runs without one spend ∞ by themselves."
    )
    return {"sentence": sentence, "html": statement.to_html()}


def percent(row: Summary) -> str:
    """Accuracy as ``91.2 ± 0.4 %``."""
    return f"{100 * row.accuracy:.1f} ± {100 * row.deviation:.1f} %"


def findings(rows: Sequence[Summary], cell: str = "sample/public") -> list[str]:
    """What the numbers say, one sentence for each method."""
    sentences = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        bare = next((row for row in mine if row.epsilons[cell] is None), None)
        private = [(value, row) for row in mine if (value := row.epsilons[cell]) is not None]
        if not private:
            continue
        parts = [f"{percent(row)} at ε = {finite(value)}" for value, row in sorted(private, key=lambda pair: -pair[0])]
        start = f"{method} reaches {percent(bare)} without privacy, and " if bare else f"{method} reaches "
        server = all(row.epsilons[cell.replace("public", "server")] is not None for _, row in private)
        where = "its claims hold against the server too" if server else "its claims hold for the public only"
        sentences.append(f"{start}{', '.join(parts)} ({where}).")
    return sentences


def _picture(name: str, figure: Figure) -> dict[str, str]:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return {"name": name, "data": base64.b64encode(buffer.getvalue()).decode()}


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def _render(**content: Any) -> str:
    environment = Environment(loader=PackageLoader("privfl.study", "."), autoescape=True)
    return environment.get_template("report.html").render(**content)
