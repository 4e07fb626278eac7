"""The page of a study: its settings beside each other, and what all its runs together spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privfl.files import read_json
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import Metrics, RunDirectory
from privfl.study.assurance import answers, short, standing, unprotected
from privfl.study.attacks import collect_attacks
from privfl.study.audits import collect_audits
from privfl.study.chart import Chart
from privfl.study.findings import ACCURACY, Measure, findings
from privfl.study.history import Former
from privfl.study.opening import opening
from privfl.study.page import clients_section, flat, number, picture, problems, render, save, sound, write
from privfl.study.plots import UNITS as THINGS
from privfl.study.plots import curves, finite, pareto
from privfl.study.provenance import describe_run, not_tried
from privfl.study.store import CELLS
from privfl.study.summary import Result, Summary, slug, summarise
from privfl.study.sweep import Spent, claims, sweep_statement

Tuned = Mapping[tuple[str, str], Sequence[Spent]]
"""What tuning spent, by method and level."""

CAPTIONS = {
    "pareto-server": "{name} against the ε claimed against the server: mean and standard deviation over seeds. Dotted: "
    "nothing claimed.",
    "pareto": "{name} against the ε claimed against whoever sees the models: mean and standard deviation over seeds. "
    "Dotted: nothing claimed.",
    "curves": "{name} over the rounds: mean over seeds, and one standard deviation around it.",
}
COLUMNS = {
    "sample/server": "one example, against the server",
    "sample/public": "one example, against the public",
    "client/server": "one client, against the server",
    "client/public": "one client, against the public",
}


@dataclass(frozen=True)
class Ended:
    """One finished run as its files tell it."""

    result: Result
    folder: Path
    summary: Mapping[str, Any]
    statement: Statement
    metrics: Sequence[Metrics]
    key: str


def report_results(
    results: Sequence[Result],
    path: Path,
    out: Path,
    *,
    title: str,
    failures: Sequence[str],
    measure: Measure = ACCURACY,
    keys: Callable[[Result], str] | None = None,
    tuning: Tuned | None = None,
    former: Former | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write ``report.html`` and figures to the folder ``out`` for ``results``, whose runs lie in ``path/runs``.

    Args:
        failures: a sentence for each run that failed.
        measure: what the results' accuracy is.
        keys: the metric that a result was judged by, where that differs between results.
        tuning: what was spent before the runs, by method and level; the results' ε count it.
        former: what earlier forms of the study had: it counts in what all runs together spent.
        notes: what has to be known of the results' ε, in sentences.

    Raises:
        DataError: a file of a run is missing or damaged.
    """
    with sound(path):
        runs = []
        for result in results:
            folder = path / "runs" / result.folder
            key = measure.key if keys is None else keys(result)
            runs.append(Ended(result, folder, *RunDirectory(folder).ending(), key))
        return _write(runs, path, out, title, failures, measure, tuning or {}, former or Former(), notes)


def _write(
    runs: Sequence[Ended],
    path: Path,
    out: Path,
    title: str,
    failures: Sequence[str],
    measure: Measure,
    tuning: Tuned,
    former: Former,
    notes: Sequence[str],
) -> Path:
    rows = summarise([run.result for run in runs])
    first = runs[0]
    figures = _figures(runs, rows, measure)
    for name, (chart, _) in figures.items():
        save(chart, out / "figures" / f"{name}.png")
    sweep, together = _sweep(path, runs, len(failures), tuning, former)
    warnings = Counter(text for run in runs for text in problems(run.summary))
    note = (
        f" These are the clients of {first.result.method}, {first.result.level}, seed {first.result.seed}; other seeds "
        "may deal otherwise."
    )
    folders = {f"{run.result.method}, {run.result.level}, seed {run.result.seed}": run.folder for run in runs}
    attacks, audits = collect_attacks(folders), collect_audits(folders)
    untried = Counter(text for folder in folders.values() for text in not_tried(folder))
    worst = [_worst(runs, row) for row in rows]
    html = render(
        title=title,
        subtitle=f"{len(runs)} runs, {max(row.seeds for row in rows)} seeds, {len(failures)} failed",
        opening=opening(rows, together),
        standing=_standing(runs, together),
        answers=[] if together is None else answers(together),
        unprotected=unprotected(first.statement if together is None else together, study=True),
        findings=findings(rows, measure=measure),
        results=_table(runs, rows, measure, tuning),
        figures=[picture(name, chart, caption) for name, (chart, caption) in figures.items()],
        statements=[_statement(run, row, tuning) for run, row in zip(worst, rows, strict=True)],
        sweep=sweep,
        attacks=attacks,
        audits=audits,
        untried=[_count(text, count) for text, count in untried.items()],
        clients=clients_section(first.folder, out / "figures", note),
        warnings=[*notes, *failures] + [_count(text, count) for text, count in warnings.items()],
        facts=[
            (f"{name} (of the first run)" if name == "run ended" else name, told)
            for name, told in describe_run(first.folder)
        ],
        environment=flat(read_json(first.folder / "environment.json")),
        settings=[_settings(run, path) for run in worst],
    )
    return write(html, out / "report.html")


def _count(text: str, count: int) -> str:
    return f"{text} ({count} {'run' if count == 1 else 'runs'})"


def _worst(runs: Sequence[Ended], row: Summary) -> Ended:
    """The run of ``row`` that claims least."""
    members = _members(runs, row)
    return max(members, key=lambda run: [math.inf if e is None else e for e in run.result.epsilons.values()][::-1])


def _kind(result: Result) -> tuple[str, str]:
    return result.method, result.level


def _members(runs: Sequence[Ended], row: Summary) -> list[Ended]:
    return [run for run in runs if (run.result.method, run.result.level) == (row.method, row.level)]


def _statement(run: Ended, row: Summary, tuning: Tuned) -> dict[str, Any]:
    least = ", no other claims less" if row.seeds > 1 else ""
    alone = ", without what its tuning spent before it" if (row.method, row.level) in tuning else ""
    if not alone and any(run.result.epsilons[cell] is None for cell in run.statement.finite()):
        alone = ", without what was released before it in its place"
    name = f"{row.method}, {row.level} (seed {run.result.seed}{least}){alone}"
    return {"name": name, "html": Markup(run.statement.to_html())}


def _settings(run: Ended, path: Path) -> dict[str, str]:
    config = RunDirectory(run.folder).config_file()
    return {"name": str(config.relative_to(path)), "text": config.read_text(encoding="utf-8")}


def _standing(runs: Sequence[Ended], together: Statement | None) -> list[str]:
    told = [] if together is None else standing(together)
    if any(run.statement.reproducible_noise for run in runs) and not any(one.startswith("DO NOT") for one in told):
        told += [one for run in runs for one in standing(run.statement) if one.startswith("DO NOT")][:1]
    return told


def _table(runs: Sequence[Ended], rows: Sequence[Summary], measure: Measure, tuning: Tuned) -> dict[str, Any]:
    tuned = " Where a method was tuned, ε counts what the trials and the choice between them spent." if tuning else ""
    body = []
    for row in rows:
        delta = max(run.statement.delta for run in _members(runs, row))
        cells = [(short(row.epsilons[cell], delta), row.epsilons[cell]) for cell in CELLS]
        shown = [number(text, math.inf if value is None else value) for text, value in cells]
        body.append([row.method, row.level, number(measure.text(row), row.value), *shown])
    return {
        "head": ["method", "level", measure.name, *(COLUMNS[cell] for cell in CELLS)],
        "rows": body,
        "note": f"{measure.name[0].upper()}{measure.name[1:]} at the end of the runs: mean ± standard deviation over "
        f"seeds{_judged(runs, measure)}. The other columns say how many of those in the data an attacker recognises "
        "at most who may be wrong about 1 in 100 of those who are not, with the ε of the worst seed and client, "
        f"rounded up.{tuned}",
    }


def _judged(runs: Sequence[Ended], measure: Measure) -> str:
    """Which figure of a run stands for the study's metric, where its name leaves that open."""
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(run.key, []).append(run.result.method)
    if list(found) == [measure.key]:
        return ""
    told = (f"{key} of {', '.join(dict.fromkeys(methods))}" for key, methods in found.items())
    return f" ({'; '.join(told)})"


def _figures(runs: Sequence[Ended], rows: Sequence[Summary], measure: Measure) -> dict[str, tuple[Chart, str]]:
    name = f"{measure.name[0].upper()}{measure.name[1:]}"
    figures = {"pareto": (pareto(rows, measure=measure), CAPTIONS["pareto"].format(name=name))}
    if all(row.epsilons["sample/server"] == row.epsilons["sample/public"] for row in rows):
        figures["pareto"] = (
            figures["pareto"][0],
            f"{figures['pareto'][1]} The ε claimed against the server are the same.",
        )
    elif any(row.epsilons["sample/server"] is not None for row in rows):
        chart = pareto(rows, "sample/server", measure=measure)
        figures["pareto-server"] = chart, CAPTIONS["pareto-server"].format(name=name)
    for method in dict.fromkeys(run.result.method for run in runs):
        groups: dict[str, list[list[tuple[int, float]]]] = {}
        for run in (run for run in runs if run.result.method == method):
            points = [(line["round"] + 1, line[run.key]) for line in run.metrics if line.get(run.key) is not None]
            groups.setdefault(run.result.level, []).append(points)
        label = f"curves-{slug(method).lower()}"
        while label in figures:
            label += "-2"
        figures[label] = curves(groups, method, measure), f"{method}. {CAPTIONS['curves'].format(name=name)}"
    return figures


def _sweep(
    path: Path, runs: Sequence[Ended], failures: int, tuning: Tuned, former: Former
) -> tuple[dict[str, Any] | None, Statement | None]:
    """What the runs that claim anything spent together: for the page, and as a statement."""
    private = [run.result for run in runs if any(value is not None for value in run.result.epsilons.values())]
    if not private:
        return None, None
    levels = list(dict.fromkeys(result.level for result in private))
    groups = {level: [result for result in private if result.level == level] for level in levels}

    runs_before, trials_before = ([name for name in some if claims(path / "runs", name)] for some in astuple(former))

    def composed(group: Sequence[Result], before: Sequence[str]) -> Statement:
        spent = [one for kind in dict.fromkeys(map(_kind, group)) for one in tuning.get(kind, ())]
        return sweep_statement(path, group, spent, [*before, *(trials_before if spent or before else ())])

    together = {f"{name}, all methods and seeds": composed(group, ()) for name, group in groups.items()}
    sizes = [len(group) for group in groups.values()]
    before = [*runs_before, *trials_before]
    if len(groups) > 1 or before:
        name = "all runs that claim anything" + ", of earlier forms of the study too" * bool(before)
        together[name] = composed(private, before)
        sizes.append(len(private) + len(runs_before))
    statement = list(together.values())[-1]
    rows = []
    for (name, one), size in zip(together.items(), sizes, strict=True):
        spent = [one.cell(unit, observer).epsilon for unit in UNITS for observer in OBSERVERS]
        rows.append([name, number(str(size), size), *(number(finite(value), value) for value in spent)])
    bare = len(runs) - len(private)
    also = f" The {bare} runs that claim nothing spend ∞ by themselves." if bare else ""
    also += f" What the {failures} runs that failed had released before is not counted." if failures else ""
    if before:
        also += (
            f" Earlier forms of the study had {len(runs_before)} runs and {len(trials_before)} trials that it has no "
            "more: they count in the last row, with the picks that were made from them."
        )
    silent = len(former.runs) + len(former.trials) - len(before)
    also += f" {silent} more of them claim nothing, and spend ∞ by themselves." if silent else ""
    sentence = (
        "Showing the best of many runs tells something about all of them, so their costs add up. Seeds deal the "
        "examples to different clients; every run therefore counts with the most that any client released in it, an "
        f"upper bound whoever holds what, at δ = {statement.delta:g}.{also}"
    )
    reasons: dict[str, list[str]] = {}
    for cell in statement.cells:
        for reason in cell.reasons:
            reasons.setdefault(reason, []).append(f"{THINGS[cell.unit]} against the {cell.observer}")
    because = [f"Nothing is claimed (∞) for {', '.join(where)}: {reason}" for reason, where in reasons.items()]
    head = [f"ε for {COLUMNS[cell]}" for cell in CELLS]
    return {"sentence": sentence, "head": head, "rows": rows, "reasons": because}, statement
