"""The figures and the report of a study that lies in a store."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from privfl.errors import DataError
from privfl.files import write_whole
from privfl.study.grid import Summary, read_result
from privfl.study.plots import pareto, trade_off
from privfl.study.report import figure_bytes, report_results
from privfl.study.results import CELLS, Results, worst_tenth
from privfl.study.store import Store
from privfl.study.sweep import Spent


def plot_results(results: Results, out: Path) -> list[Path]:
    """Write every figure of ``results`` to the folder ``out``: utility against each cost that was measured.

    Raises:
        DataError: no run is done.
    """
    rows = results.rows()
    share = all(0 <= value <= 1 for row in rows for value in row.values.values())
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
    figures = {
        f"pareto-{cell.replace('/', '-')}": pareto(summaries, cell, results.title, utility=results.metric, share=share)
        for cell in CELLS
        if any(row.epsilons[cell] is not None for row in summaries)
    }
    costs = {name for row in rows for name in row.costs if name == "bytes_sent" or name.endswith(" advantage")}
    for name in sorted(costs):
        points: dict[str, list[tuple[float, float, str]]] = {}
        for row in rows:
            points.setdefault(row.method, []).append((row.costs.get(name, math.nan), row.mean, row.level))
        figures[name.replace(" ", "-")] = trade_off(points, name.replace("_", " "), results.metric)
    if any(not math.isnan(worst_tenth(row)) for row in rows):
        points = {}
        for row in rows:
            points.setdefault(row.method, []).append((worst_tenth(row), row.mean, row.level))
        figures["worst-tenth"] = trade_off(points, "accuracy of the worst tenth of clients", results.metric)
    paths = []
    for name, figure in figures.items():
        for form in ("svg", "png"):
            path = out / f"{name}.{form}"
            write_whole(path, figure_bytes(figure, form))
            paths.append(path)
    return paths


def report_study(results: Results, store: Store, out: Path) -> Path:
    """Write ``report.html`` to the folder ``out``; its accuracy is the study's metric where that is a share.

    Raises:
        DataError: no run is done, or a file of one is missing or damaged.
    """
    if not results.done:
        raise DataError(f"no run of '{results.title}' is done yet; `privfl study status` says how far it is")
    judged = {id(one): results.judge(one)[1] for one in results.done}
    share = all(0 <= value <= 1 for value in judged.values()) and not results.lower_is_better
    found = []
    for one in results.done:
        row = read_result(one.method, one.level, one.seed, store.path(one.run))
        spent = {cell: one.metrics.get(f"epsilon {cell}", math.inf) for cell in CELLS}  # its tuning included
        row = replace(row, epsilons={cell: None if math.isinf(value) else value for cell, value in spent.items()})
        found.append(replace(row, accuracy=judged[id(one)]) if share else row)
    failures = [f"{one}: {one.reason}" for one in results.members if one.state in ("failed", "impossible")]
    utility = {"utility": results.metric} if share else {}
    tuning = {kind: told for kind, one in results.tuned.items() if (told := Spent.of(one)) is not None}
    return report_results(found, store.folder, out, title=results.title, failures=failures, tuning=tuning, **utility)
