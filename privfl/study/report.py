"""One self-contained HTML page for a run or a study. It shows what the files say and computes no claim of its own."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from privfl.errors import DataError
from privfl.files import read_json, write_whole
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.result import Run
from privfl.simulation.run_directory import Metrics, RunDirectory, environment
from privfl.study.attacks import read_attacks
from privfl.study.audits import read_audits
from privfl.study.clients import in_words, read_clients
from privfl.study.findings import claim, findings, percent
from privfl.study.grid import CELLS, Result, load_results, slug, summarise
from privfl.study.plots import UTILITY, curves, finite, pareto, run_curves
from privfl.study.record import DAMAGED
from privfl.study.sweep import Spent, sweep_statement

CAPTIONS = {
    "pareto": "Accuracy against the ε that the statements claim: mean and standard deviation over seeds. "
    "Dotted: nothing claimed.",
    "curves": "Accuracy over the rounds: mean over seeds, and one standard deviation around it.",
    "run": "Loss and accuracy on the test data, and an upper bound on ε so far, which ends at the statement's ε.",
    "clients": "Who holds what: the share of each class at each client, and the client's number of examples.",
}


def report_directory(path: Path) -> Path:
    """Write ``report.html`` (and the figures) for the run or study in ``path``; returns the page's path.

    Raises:
        DataError: ``path`` holds neither, or a file of it is missing or damaged.
    """
    with _sound(path):
        if (path / "results.json").exists():
            return _study(path)
        if (path / "statement.json").exists():
            RunDirectory(path).settle()
            return _write(_read_run(path), path / "report.html")
    mend = "give the --out folder of a run or a study"
    if (path / "environment.json").exists():
        mend = "the run is not finished, go on with --resume"
    elif (path / "runs").is_dir():
        mend = "the study is not finished, start it again: what is finished is not repeated"
    raise DataError(f"{path} holds no finished run and no study; {mend}")


def write_report(run: Run, path: Path | str) -> None:
    """Write the page of one run to the file ``path``; a run that has a directory shows its settings too.

    Raises:
        DataError: a file of the run's directory is missing or damaged.
    """
    if run.path is None:
        page = _run_page(
            run.statement,
            run.metrics,
            run.summary,
            [],
            environment(),
            run_curves(run.metrics, _headline(run.summary)),
            None,
        )
    else:
        with _sound(run.path):
            page = _read_run(run.path)
    _write(page, Path(path))


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file below ``path`` raises into one sentence."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, DataError):
            raise
        what = f"{error!s} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} cannot be reported: {what}; repeat the run, or restore the file") from error


def _write(html: str, page: Path) -> Path:
    write_whole(page, html.encode())
    return page


def _read_run(path: Path) -> str:
    summary, statement, metrics = RunDirectory(path).ending()
    machine = read_json(path / "environment.json")
    if len(metrics) != summary["rounds"]:
        raise DataError(
            f"{path / 'metrics.jsonl'} holds {len(metrics)} sound lines for {summary['rounds']} rounds; repeat the run"
        )
    settings = [{"name": "config.toml", "text": RunDirectory(path).config_file().read_text(encoding="utf-8")}]
    figure = run_curves(metrics, _headline(summary))
    _save(figure, path / "figures" / "curves.png")
    people = _clients(path, path / "figures", "")
    found, tested = read_attacks(path), read_audits(path)
    return _run_page(statement, metrics, summary, settings, machine, figure, people, found, tested)


def _clients(folder: Path, figures: Path, note: str) -> dict[str, Any] | None:
    """The run's clients in words and as a picture, if they were recorded."""
    report = read_clients(folder)
    if report is None:
        return None
    figure = report.figure()
    _save(figure, figures / "clients.png")
    return {"sentence": f"{in_words(report)}{note}", "figures": [_picture("clients", figure)]}


def _headline(summary: dict[str, Any]) -> str:
    """The key of the metric that the run's task is judged by; runs of older versions are classifications."""
    return str(summary.get("headline", {}).get("name", "test_accuracy"))


def _shown(summary: dict[str, Any], name: str) -> str:
    """The metric ``name`` for readers."""
    value = summary[name]
    if value is None:
        return "not finite"
    return f"{value:.1%}" if name == "test_accuracy" else f"{value:.3f}"


def _problems(summary: dict[str, Any]) -> list[str]:
    failure = summary.get("failure")
    return [*([f"The run failed: {failure}."] if failure else []), *summary["warnings"]]


def _run_page(
    statement: Statement,
    metrics: Sequence[Metrics],
    summary: dict[str, Any],
    settings: list[dict[str, str]],
    machine: Mapping[str, Any],
    figure: Figure,
    clients: dict[str, Any] | None,
    attacks: dict[str, Any] | None = None,
    audits: dict[str, Any] | None = None,
) -> str:
    evaluated, headline = "test_loss" in summary, _headline(summary)
    reached = "was never evaluated on the test data"
    if evaluated:
        reached = f"reaches a {headline.replace('_', ' ')} of {_shown(summary, headline)}"
        if "test_macro_f1" in summary:
            reached += f" and a macro-F1 of {_shown(summary, 'test_macro_f1')}"
    sentences = [f"After {summary['rounds']} rounds {summary['algorithm']} {reached}."]
    if summary["stopped"] == "budget":
        sentences.append("The run stopped early because the next round would have exceeded its privacy budget.")
    sentences += [claim(statement, observer) for observer in ("server", "public")]
    facts = {name: summary[name] for name in ("algorithm", "dataset", "model", "clients", "rounds")}
    if evaluated:
        loss = "not finite" if summary["test_loss"] is None else f"{summary['test_loss']:.4f}"
        nats = "" if summary["test_loss"] is None or headline == "test_rmse" else " nats"
        facts |= {headline.replace("_", " "): _shown(summary, headline), "test loss": f"{loss}{nats}"}
    noise = summary["noise_multiplier"]
    if noise is not None:
        told = f"{noise:.4g}" if isinstance(noise, int | float) else f"{min(noise):.4g} to {max(noise):.4g}, by client"
        facts["noise multiplier"] = told
    return _render(
        title=f"{summary['algorithm']} on {summary['dataset']}",
        subtitle=f"{summary['clients']:,} clients, model {summary['model']}, {len(metrics)} rounds",
        findings=sentences,
        table=None,
        clients=clients,
        attacks=attacks,
        audits=audits,
        facts=list(facts.items()),
        figures=[_picture("run", figure)],
        statements=[{"name": "This run", "html": Markup(statement.to_html())}],
        sweep=None,
        warnings=_problems(summary),
        settings=settings,
        environment=_flat(machine),
    )


def _study(path: Path) -> Path:
    results = load_results(path)
    study = read_json(path / "study.json")
    if not results:
        raise DataError(f"{path / 'results.json'} holds no finished run; mend what failed and repeat the study")
    return report_results(results, path, path, title=study["title"], failures=study["failures"])


def report_results(
    results: Sequence[Result],
    path: Path,
    out: Path,
    *,
    title: str,
    failures: Sequence[str],
    utility: str = UTILITY,
    tuning: Mapping[tuple[str, str], Spent] | None = None,
) -> Path:
    """Write ``report.html`` and figures to the folder ``out`` for ``results``, whose runs lie in ``path/runs``.

    Args:
        failures: a sentence for each run that failed.
        utility: what the results' accuracy is.
        tuning: what was spent before the runs by method and level; the results' ε count it.

    Raises:
        DataError: a file of a run is missing or damaged.
    """
    with _sound(path):
        return _write_results(results, path, out, title, failures, utility, tuning or {})


def _write_results(
    results: Sequence[Result],
    path: Path,
    out: Path,
    title: str,
    failures: Sequence[str],
    utility: str,
    tuning: Mapping[tuple[str, str], Spent],
) -> Path:
    rows = summarise(results)
    figures = {"pareto": pareto(rows, utility=utility), **_accuracy_curves(path, results)}
    for name, figure in figures.items():
        _save(figure, out / "figures" / f"{name}.png")
    statements, settings = [], []
    warnings: Counter[str] = Counter()
    for row in rows:
        members = [result for result in results if (result.method, result.level) == (row.method, row.level)]
        worst = max(members, key=lambda result: [math.inf if e is None else e for e in result.epsilons.values()][::-1])
        name = f"{row.method}, {row.level} (seed {worst.seed}{', no other claims less' if len(members) > 1 else ''})"
        name += ", without what its tuning spent before it" if (row.method, row.level) in tuning else ""
        directory = RunDirectory(path / "runs" / worst.folder)
        statements.append({"name": name, "html": Markup(directory.ending()[1].to_html())})
        config = directory.config_file()
        settings.append({"name": str(config.relative_to(path)), "text": config.read_text(encoding="utf-8")})
        for result in members:
            warnings.update(_problems(RunDirectory(path / "runs" / result.folder).ending()[0]))
    first = results[0]
    note = (
        f" These are the clients of {first.method}, {first.level}, seed {first.seed}; other seeds may deal otherwise."
    )
    html = _render(
        title=title,
        subtitle=f"{len(results)} runs, {max(row.seeds for row in rows)} seeds, {len(failures)} failed",
        findings=findings(rows),
        table={
            "head": ["method", "level", utility, *(f"ε {cell}" for cell in CELLS)],
            "rows": [
                [row.method, row.level, percent(row), *(finite(row.epsilons[cell]) for cell in CELLS)] for row in rows
            ],
        },
        cells=CELLS,
        figures=[_picture(name, figure) for name, figure in figures.items()],
        statements=statements,
        sweep=_sweep(path, results, len(failures), tuning),
        clients=_clients(path / "runs" / results[0].folder, out / "figures", note),
        attacks=None,
        audits=None,
        warnings=[*failures] + [f"{text} ({count} runs)" for text, count in warnings.items()],
        settings=settings,
        environment=_flat(read_json(path / "runs" / results[0].folder / "environment.json")),
    )
    return _write(html, out / "report.html")


def _flat(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    plain = {name: str(value) for name, value in machine.items() if not isinstance(value, dict)}
    return [*plain.items(), *((name, str(value)) for name, value in machine["packages"].items())]


def _accuracy_curves(path: Path, results: Sequence[Result]) -> dict[str, Figure]:
    figures = {}
    for method in dict.fromkeys(result.method for result in results):
        groups: dict[str, list[list[tuple[int, float]]]] = {}
        for result in (result for result in results if result.method == method):
            lines = RunDirectory(path / "runs" / result.folder).ending()[2]
            points = [(line["round"] + 1, line["test_accuracy"]) for line in lines if "test_accuracy" in line]
            groups.setdefault(result.level, []).append(points)
        name = f"curves-{slug(method).lower()}"
        while name in figures:
            name += "-2"
        figures[name] = curves(groups, method)
    return figures


def _sweep(
    path: Path, results: Sequence[Result], failures: int, tuning: Mapping[tuple[str, str], Spent]
) -> dict[str, Any] | None:
    private = [result for result in results if any(value is not None for value in result.epsilons.values())]
    if not private:
        return None
    levels = list(dict.fromkeys(result.level for result in private))
    groups = {level: [result for result in private if result.level == level] for level in levels}

    def composed(group: Sequence[Result]) -> Statement:
        kinds = dict.fromkeys((one.method, one.level) for one in group)
        return sweep_statement(path, group, [tuning[kind] for kind in kinds if kind in tuning])

    together = {f"{name}, all methods and seeds": composed(group) for name, group in groups.items()}
    sizes = [len(group) for group in groups.values()]
    if len(groups) > 1:
        together["all runs that claim anything"] = composed(private)
        sizes.append(len(private))
    statement = list(together.values())[-1]
    rows = [
        [name, number, *(finite(one.cell(unit, observer).epsilon) for unit in UNITS for observer in OBSERVERS)]
        for (name, one), number in zip(together.items(), sizes, strict=True)
    ]
    bare = len(results) - len(private)
    also = f" The {bare} runs that claim nothing spend ∞ by themselves." if bare else ""
    also += f" What the {failures} runs that failed had released before is not counted." if failures else ""
    sentence = (
        "Showing the best of many runs tells something about all of them, so their costs add up. Seeds deal the "
        "examples to different clients; every run therefore counts with the most that any client released in it, an "
        f"upper bound whoever holds what, at δ = {statement.delta:g}.{also}"
    )
    reasons: dict[str, list[str]] = {}
    for cell in statement.cells:
        for reason in cell.reasons:
            reasons.setdefault(reason, []).append(f"{cell.unit}/{cell.observer}")
    because = [f"∞ at {', '.join(where)} because of {reason}" for reason, where in reasons.items()]
    return {"sentence": sentence, "rows": rows, "reasons": because}


def figure_bytes(figure: Figure, form: str) -> bytes:
    """``figure`` as the content of a file, ``svg`` or ``png``, the same each time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=140, metadata={"Date": None} if form == "svg" else {})
    return buffer.getvalue()


def _picture(name: str, figure: Figure) -> dict[str, str]:
    address = "data:image/svg+xml;base64," + base64.b64encode(figure_bytes(figure, "svg")).decode()
    caption = next(text for start, text in CAPTIONS.items() if name.startswith(start))
    return {"caption": caption, "uri": address}


def _save(figure: Figure, path: Path) -> None:
    write_whole(path, figure_bytes(figure, "png"))


def _render(**content: Any) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html")
    return page.render(**content)
