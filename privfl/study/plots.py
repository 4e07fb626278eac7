"""Figures of runs and studies. Every function returns a chart and touches no global state."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from privfl.data.partitions import PartitionReport
from privfl.privacy.accounting.printed import round_up
from privfl.simulation.run_directory import Metrics
from privfl.study.chart import AXIS_WIDTH, COLOURS, INK, TITLE_WIDTH, Chart, Share, few, legend, named, style
from privfl.study.findings import ACCURACY, Measure
from privfl.study.summary import Summary

UTILITY = ACCURACY.name
"""What utility is where nobody says otherwise."""
UNITS = {"sample": "one example", "client": "one client"}
OBSERVERS = {"server": "the server", "public": "whoever sees the models"}
MOST_NAMED = 4
"""So many methods side by side leave room for words between them."""
LABEL = 0.1
"""Share of an axis that the label of an ε takes, and the gap beside it."""
SHOWN = 50
"""Up to this many clients are drawn one by one."""


def pareto(rows: Sequence[Summary], cell: str = "sample/public", title: str = "", measure: Measure = ACCURACY) -> Chart:
    """``measure`` (mean ± standard deviation over seeds) against ε of ``cell`` on a log axis, one line for each method.

    Runs without a claim stand at the right end, at ∞, with a dotted line across; runs that release nothing stand at the
    left end, at 0. An ε between two claims is drawn where it is; labels that would cover their neighbour are left out.
    """
    unit, observer = cell.split("/")
    whom = f"{UNITS[unit]} against {OBSERVERS[observer]}"
    chart = Chart(
        f"{measure.name} of {len({row.method for row in rows})} methods against ε for {whom}; the table below the "
        "figure holds every point",
        ("method", "level", measure.name, "ε"),
    )
    axes = chart.panel()
    claimed = sorted(value for row in rows if (value := row.epsilons[cell]) is not None and value > 0)
    low, high = (claimed[0], claimed[-1]) if claimed else (1.0, 1.0)
    left, right = low / 2.5, high * 2.5
    silent = any(row.epsilons[cell] == 0 for row in rows)
    for index, method in enumerate(dict.fromkeys(row.method for row in rows)):
        look = style(index) | {"capsize": 3}
        aside = 1.04 ** (index - 0.5)  # so that bars of different methods at one ε do not cover each other
        mine = [(row.epsilons[cell], row) for row in rows if row.method == method]
        private = sorted(((value or left, row) for value, row in mine if value is not None), key=lambda pair: pair[0])
        bare = [row for value, row in mine if value is None]
        _bars(axes, [value * aside for value, _ in private], [row for _, row in private], cell, measure, look, method)
        _bars(
            axes, [right * aside] * len(bare), bare, cell, measure, look | {"linestyle": ""}, "" if private else method
        )
        for row in bare:
            axes.axhline(row.value, color=look["color"], linestyle=":", linewidth=1, alpha=0.7)
        chart.rows += [(row.method, row.level, measure.text(row), finite(row.epsilons[cell])) for _, row in mine]
    first, last = left / 1.4 if silent else low / 1.5, right * 1.4
    ticks: list[float] = []
    for value in claimed:
        if not ticks or value > ticks[-1] * max(1.25, (last / first) ** LABEL):
            ticks.append(value)
    axes.set_xscale("log")
    axes.set_xlim(first, last)
    nothing = {left: "0\n(nothing released)"} if silent else {}
    named = nothing | {tick: finite(tick) for tick in ticks} | {right: "∞\n(nothing claimed)"}
    axes.set_xticks(list(named), list(named.values()))
    axes.xaxis.set_minor_formatter(lambda value, position: "")
    axes.axvspan(high * 1.6, right * 1.4, color="0.5", alpha=0.12, linewidth=0)
    if silent:
        axes.axvspan(left / 1.4, low / 1.6, color="0.5", alpha=0.12, linewidth=0)
    axes.set_xlabel(f"ε for {whom}\n(log scale; left is more private)")
    _utility(axes, measure)
    legend(axes, title)
    return chart


def trade_off(
    points: Mapping[str, Sequence[tuple[float, float, str]]],
    cost: str,
    measure: Measure = ACCURACY,
    *,
    share: bool = False,
) -> Chart:
    """``measure`` against ``cost``: for each method its (cost, value, level), in the order of the cost.

    Where the cost is the same everywhere it has no axis: methods stand side by side, and every point bears its level.

    Args:
        points: by method; costs that are not finite are left out.
        share: costs are shares in [0, 1], shown in percent.
    """
    chart = Chart(
        f"{measure.name} of {len(points)} methods against {cost}; the table below the figure holds every point",
        ("method", "level", cost, measure.name),
    )
    axes = chart.panel()
    every = [place for members in points.values() for place, *_ in members if math.isfinite(place)]
    equal = len(every) > 1 and math.isclose(min(every), max(every), rel_tol=1e-9)
    for index, (method, members) in enumerate(points.items()):
        shown = sorted(point for point in members if math.isfinite(point[0]))
        places = [f"{100 * place:.1f} %" if share else f"{place:.4g}" for place, *_ in shown]
        rows = [
            (method, level, place, measure.show(value)) for place, (_, value, level) in zip(places, shown, strict=True)
        ]
        chart.rows += rows
        if shown:
            at = [float(index)] * len(shown) if equal else [p for p, *_ in shown]
            look = style(index) | ({"linestyle": ""} if equal else {})
            (line,) = axes.plot(at, [value for _, value, _ in shown], label=named(method), **look)
            chart.tell(line, [f"{row[0]}, {row[1]}: {cost} {row[2]}, {measure.name} {row[3]}" for row in rows])
    if equal:
        axes.set_xlim(-0.4, len(points) - 0.1)
        axes.set_xticks([])
        _name_levels(axes, points)
        axes.set_xlabel(f"{cost}: {chart.rows[0][2]} for every method")
    else:
        axes.set_xlabel(textwrap.fill(cost, TITLE_WIDTH))
    if share and not equal:
        axes.xaxis.set_major_formatter(Share())
    _utility(axes, measure)
    legend(axes)
    return chart


def _name_levels(axes: Axes, points: Mapping[str, Sequence[tuple[float, float, str]]]) -> None:
    """The level beside every point of methods that stand side by side, moved up where it would cover another one.

    Beside many methods there is no room for it.
    """
    if len(points) > MOST_NAMED:
        return
    low, high = axes.get_ylim()
    most = min(24, 48 // len(points))
    for index, members in enumerate(points.values()):
        free = -math.inf
        for value, level in sorted((value, level) for place, value, level in members if math.isfinite(place + value)):
            free = max(value, free + 0.06 * (high - low))
            shown = level if len(level) <= most else f"{level[: most - 1]}…"
            axes.text(index + 0.06, free, shown, fontsize=9, va="center", color=INK, in_layout=False)


def curves(
    groups: Mapping[str, Sequence[Sequence[tuple[int, float]]]], title: str = "", measure: Measure = ACCURACY
) -> Chart:
    """``measure`` over rounds: for each label the mean over its curves, and one standard deviation around it as a band.

    Curves that ended early, at a budget, count up to their end. ``groups``: label → curves of (round, value).
    """
    chart = Chart(
        f"{measure.name} over the rounds{f' of {title}' if title else ''}, for {', '.join(groups)}; the table below "
        "the figure holds the marked points",
        ("level", "round", measure.name),
    )
    axes = chart.panel()
    for index, (label, members) in enumerate(groups.items()):
        rounds = sorted({round for member in members for round, _ in member})
        if not rounds:
            continue
        values = [np.array([dict(member)[round] for member in members if round in dict(member)]) for round in rounds]
        mean = np.array([value.mean() for value in values])
        marked = few(len(rounds), 8)
        (line,) = axes.plot(rounds, mean, label=named(label), markevery=marked, **style(index))
        rows = [(label, str(rounds[place]), measure.show(float(mean[place]))) for place in marked]
        chart.rows += rows
        chart.tell(line, [f"{label}, round {round}: {value}" for _, round, value in rows])
        if len(members) > 1:
            spread = np.array([value.std(ddof=1) if len(value) > 1 else 0.0 for value in values])
            axes.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    _utility(axes, measure)
    legend(axes, title)
    return chart


def run_charts(metrics: Sequence[Metrics], measure: Measure = ACCURACY) -> dict[str, Chart]:
    """Loss, headline ``measure`` and ε so far of one run over its rounds, by ``loss``, ``metric`` and ``epsilon``."""
    loss = "test loss" if measure.key == "test_rmse" else "test loss (nats)"
    return {
        "loss": _over_rounds(metrics, Measure("test_loss", loss, share=False, lower_is_better=True)),
        "metric": _over_rounds(metrics, measure),
        "epsilon": _epsilon_so_far(metrics),
    }


def clients_chart(report: PartitionReport) -> Chart:
    """How many examples each client holds, and of which classes where there are few enough to see them."""
    sizes, total = report.sizes, report.held.shape[0]
    summary = f"{total:,} clients hold {sizes.min():,} to {sizes.max():,} examples each"
    order = np.argsort(-sizes, kind="stable")
    if total > SHOWN or report.held.shape[1] == 1:
        chart = Chart(f"{summary}; the clients stand in the order of their size", ("client", "examples"))
        axes = chart.panel()
        marked = few(total)
        (line,) = axes.plot(np.arange(1, total + 1), sizes[order], markevery=marked, **style(0))
        chart.rows = [(str(order[place]), f"{sizes[order[place]]:,}") for place in marked]
        chart.tell(line, [f"client {client}: {size} examples" for client, size in chart.rows])
        axes.set_xlabel("clients, the largest first")
        axes.set_ylabel("examples")
        axes.set_ylim(bottom=0)
        return chart
    counts, classes = report.counts, report.held.shape[1]
    chart = Chart(
        f"{summary}; the larger a dot, the larger the class's share of the client's examples",
        ("client", "examples", *(f"class {one}" for one in range(classes))),
        height=1.4 + 0.17 * total,
    )
    axes = chart.panel()
    axes.grid(visible=False)
    shares = counts / sizes[:, None]
    steps = [(0.0, 0.05, 2.0), (0.05, 0.15, 4.0), (0.15, 0.35, 6.5), (0.35, 0.7, 9.0), (0.7, 1.0, 11.5)]
    for low, high, marker in steps:
        where = np.argwhere((shares > low) & (shares <= high))
        if len(where):
            look: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "linestyle": "", "markersize": marker}
            name = f"≤ {100 * high:.0f} %"
            (line,) = axes.plot(where[:, 1], where[:, 0], label=name, **look)
            texts = [f"client {client}, class {one}: {counts[client, one]:,} examples" for client, one in where]
            chart.tell(line, texts)
    chart.rows = [
        (str(client), f"{sizes[client]:,}", *(f"{count:,}" for count in counts[client])) for client in range(total)
    ]
    axes.set(xlim=(-0.6, classes - 0.4), ylim=(total - 0.4, -0.6), xlabel="class", ylabel="client")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=13))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=13))
    legend(axes, "share of the client's examples")
    return chart


def finite(value: float | None) -> str:
    """ε as text, ∞ for ``None``; rounded up, so that print never claims more than was computed."""
    return "∞" if value is None else round_up(value)


def _bars(
    axes: Axes,
    places: Sequence[float],
    rows: Sequence[Summary],
    cell: str,
    measure: Measure,
    look: Mapping[str, Any],
    label: str,
) -> None:
    if not rows:
        return
    spread = [0.0 if math.isnan(row.deviation) else row.deviation for row in rows]
    drawn = axes.errorbar(
        places, [row.value for row in rows], yerr=spread, label=named(label) if label else None, **look
    )
    assert isinstance(axes.figure, Chart)
    axes.figure.tell(
        drawn.lines[0],
        [
            f"{row.method}, {row.level}: {measure.text(row)}, "
            + ("nothing claimed" if row.epsilons[cell] is None else f"ε = {finite(row.epsilons[cell])}")
            for row in rows
        ],
    )


def _utility(axes: Axes, measure: Measure) -> None:
    axes.set_ylabel(textwrap.fill(measure.name, AXIS_WIDTH))
    if measure.share:
        axes.yaxis.set_major_formatter(Share())


def _over_rounds(metrics: Sequence[Metrics], measure: Measure) -> Chart:
    points = [(line["round"] + 1, line[measure.key]) for line in metrics if line.get(measure.key) is not None]
    chart = Chart(f"{measure.name} over the rounds; the table below the figure holds it", ("round", measure.name))
    axes = chart.panel()
    if points:
        rounds, values = zip(*points, strict=True)
        marked = few(len(points))
        (drawn,) = axes.plot(rounds, values, markevery=marked, **style(0))
        chart.rows = [(str(rounds[place]), measure.show(values[place])) for place in marked]
        chart.tell(drawn, [f"round {round}: {value}" for round, value in chart.rows])
    else:
        _instead(axes, "never evaluated, or never finite")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    _utility(axes, measure)
    return chart


def _epsilon_so_far(metrics: Sequence[Metrics]) -> Chart:
    chart = Chart(
        "upper bound on ε so far over the rounds, for each cell of the statement that claims something",
        ("cell", "round", "ε so far"),
    )
    axes = chart.panel()
    cells = list(dict.fromkeys(cell for line in metrics for cell in line["epsilon"]))
    for index, cell in enumerate(cells):
        # A run ends with the statement's ε, and on the way nothing was spent that is not in it.
        most = metrics[-1]["epsilon"].get(cell, math.inf)
        points = [(line["round"] + 1, min(line["epsilon"][cell], most)) for line in metrics if cell in line["epsilon"]]
        rounds, values = zip(*points, strict=True)
        marked = few(len(points), 6)
        look = style(index) | {"linewidth": 3.2 - 0.6 * index, "markersize": 10 - 2 * index}  # cells may coincide
        (drawn,) = axes.plot(rounds, values, label=cell, markevery=marked, **look)
        rows = [(cell, str(rounds[place]), round_up(values[place])) for place in marked]
        chart.rows += rows
        chart.tell(drawn, [f"{name}, after round {round}: ε ≤ {value}" for name, round, value in rows])
    if cells:
        axes.set_ylim(bottom=0)
    else:
        _instead(axes, "nothing is claimed in any cell")
    axes.set_ylabel("ε so far (upper bound)")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(axes)
    return chart


def _instead(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=INK)
    axes.set_yticks([])
