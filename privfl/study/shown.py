"""The figures and the report of a study that lies in a store."""

from __future__ import annotations

import math
from pathlib import Path

from privfl.files import write_whole
from privfl.simulation.run_directory import RunDirectory
from privfl.study.chart import Chart, figure_bytes
from privfl.study.findings import Measure
from privfl.study.page import sound
from privfl.study.plots import pareto, trade_off
from privfl.study.results import Results, worst_tenth
from privfl.study.store import CELLS, Member, Store
from privfl.study.study_page import report_results
from privfl.study.summary import Result, Summary
from privfl.study.sweep import Spent


def plot_results(results: Results, out: Path) -> list[Path]:
    """Write every figure of ``results`` to the folder ``out``: utility against each cost that was measured.

    Raises:
        DataError: no run is done.
    """
    rows, measure = results.rows(), judged_by(results)
    summaries = [
        Summary(
            row.method,
            row.level,
            len(row.values),
            row.mean,
            row.deviation,
            {cell: None if math.isinf(row.epsilons[cell]) else row.epsilons[cell] for cell in CELLS},
        )
        for row in rows
    ]
    fixed = any(one.reproducible for one in results.done)
    title = f"{results.title} (fixed noise key: DO NOT RELEASE)" if fixed else results.title
    figures: dict[str, Chart] = {
        f"pareto-{cell.replace('/', '-')}": pareto(summaries, cell, title, measure)
        for cell in CELLS
        if any(row.epsilons[cell] is not None for row in summaries)
    }
    costs = {name for row in rows for name in row.costs if name == "bytes_sent" or name.endswith(" advantage")}
    for name in sorted(costs):
        points: dict[str, list[tuple[float, float, str]]] = {}
        for row in rows:
            points.setdefault(row.method, []).append((row.costs.get(name, math.nan), row.mean, row.level))
        figures[name.replace(" ", "-")] = trade_off(points, name.replace("_", " "), measure)
    if any(not math.isnan(worst_tenth(row)) for row in rows):
        points = {}
        for row in rows:
            points.setdefault(row.method, []).append((worst_tenth(row), row.mean, row.level))
        figures["worst-tenth"] = trade_off(points, "accuracy of the worst tenth of clients", measure, share=True)
    paths = []
    for name, figure in figures.items():
        for form in ("svg", "png"):
            path = out / f"{name}.{form}"
            write_whole(path, figure_bytes(figure, form))
            paths.append(path)
    return paths


def report_study(results: Results, store: Store, out: Path) -> Path:
    """Write ``report.html`` to the folder ``out``, judged by the study's metric; runs without that metric are named.

    Raises:
        DataError: no run is done, or a file of one is missing or damaged.
    """
    measure = judged_by(results)
    found, keys, failures = [], {}, []
    for one in results.members:
        if one.state in ("failed", "impossible"):
            failures.append(f"{one}: {one.reason}")
        elif one.state == "done":
            key, value = results.judge(one)
            if math.isnan(value):
                failures.append(f"{one}: it has no finite {results.metric}")
                continue
            with sound(store.path(one.run)):
                result = _result(one, store, value)
            found.append(result)
            keys[result.folder] = key
    tuning = {kind: told for kind, one in results.tuned.items() if (told := Spent.all_of(one))}
    return report_results(
        found,
        store.folder,
        out,
        title=results.title,
        failures=failures,
        measure=measure,
        keys=lambda result: keys[result.folder],
        tuning=tuning,
        former=results.former,
        notes=results.notes,
    )


def judged_by(results: Results) -> Measure:
    """The metric of ``results`` as figures and pages show it.

    Raises:
        ConfigError: no run has it.
        DataError: no run is done.
    """
    rows = results.rows()
    share = all(0 <= value <= 1 for row in rows for value in row.values.values()) and not results.lower_is_better
    return Measure(results.metric, results.metric.replace("_", " "), share, results.lower_is_better)


def _result(one: Member, store: Store, value: float) -> Result:
    """The row of a finished run; its ε counts what its tuning had spent before, and is never below its statement's."""
    _, statement, _ = RunDirectory(store.path(one.run)).ending()
    claims = {f"{cell.unit}/{cell.observer}": cell.epsilon for cell in statement.cells}
    spent = {cell: one.metrics.get(f"epsilon {cell}", math.inf) for cell in CELLS}
    told = {cell: max(spent[cell], claims[cell]) if spent[cell] < math.inf > claims[cell] else None for cell in CELLS}
    return Result(one.method, one.level, one.seed, value, told, one.run)
