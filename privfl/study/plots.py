"""Figures of runs and studies. Every function returns a matplotlib Figure and touches no global state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from privfl.privacy.accounting.printed import round_up
from privfl.simulation.run_directory import Metrics
from privfl.study.grid import Summary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
UTILITY = "test accuracy"
"""What utility is where nobody says otherwise."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def pareto(
    rows: Sequence[Summary], cell: str = "sample/public", title: str = "", *, utility: str = UTILITY, share: bool = True
) -> Figure:
    """``utility`` (mean ± standard deviation over seeds) against ε of ``cell`` on a log axis, one line for each method.

    ``share``: it is one, and shown in percent.
    Runs without a claim stand at the right end, at ∞, with a dotted line across; runs that release nothing stand at the
    left end, at 0. An ε between two claims is drawn where it is; labels that would cover their neighbour are left out.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    claimed = sorted(value for row in rows if (value := row.epsilons[cell]) is not None and value > 0)
    low, high = (claimed[0], claimed[-1]) if claimed else (1.0, 1.0)
    left, right = low / 2.5, high * 2.5
    silent = any(row.epsilons[cell] == 0 for row in rows)
    for index, method in enumerate(dict.fromkeys(row.method for row in rows)):
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
            "capsize": 3,
            "linewidth": 1.8,
        }
        aside = 1.04 ** (index - 0.5)  # so that bars of different methods at one ε do not cover each other
        mine = [(row.epsilons[cell], row) for row in rows if row.method == method]
        private = sorted(((value or left, row) for value, row in mine if value is not None), key=lambda pair: pair[0])
        bare = [row for value, row in mine if value is None]
        _bars(axes, [value * aside for value, _ in private], [row for _, row in private], label=method, **style)
        _bars(axes, [right * aside] * len(bare), bare, **style | {"linestyle": ""})
        for row in bare:
            axes.axhline(row.accuracy, color=style["color"], linestyle=":", linewidth=1, alpha=0.7)
    ticks: list[float] = []
    for value in claimed:
        if not ticks or value > 1.25 * ticks[-1]:
            ticks.append(value)
    axes.set_xscale("log")
    axes.set_xlim(left / 1.4 if silent else low / 1.5, right * 1.4)
    nothing = {left: "0\n(nothing released)"} if silent else {}
    named = nothing | {tick: finite(tick) for tick in ticks} | {right: "∞\n(nothing claimed)"}
    axes.set_xticks(list(named), list(named.values()))
    axes.xaxis.set_minor_formatter(lambda value, position: "")
    axes.axvspan(high * 1.6, right * 1.4, color="0.5", alpha=0.08, linewidth=0)
    if silent:
        axes.axvspan(left / 1.4, low / 1.6, color="0.5", alpha=0.08, linewidth=0)
    axes.set_xlabel(
        f"ε for one {cell.split('/')[0]} against the {cell.split('/')[1]} (log scale; left is more private)"
    )
    axes.set_ylabel(utility)
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="best")
    _clean(axes)
    return figure


def trade_off(points: Mapping[str, Sequence[tuple[float, float, str]]], cost: str, utility: str) -> Figure:
    """``utility`` against ``cost``: for each method its (cost, utility, level), in the order of the cost.

    Args:
        points: by method; costs that are not finite are left out.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for index, (method, members) in enumerate(points.items()):
        shown = sorted(point for point in members if math.isfinite(point[0]))
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        axes.plot([place for place, *_ in shown], [value for _, value, _ in shown], label=method, **style)
        for place, value, level in shown:
            axes.annotate(level, (place, value), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set_xlabel(cost)
    axes.set_ylabel(utility)
    axes.legend(frameon=False, loc="best")
    _clean(axes)
    return figure


def _bars(axes: Axes, places: Sequence[float], rows: Sequence[Summary], **style: Any) -> None:
    spread = [0.0 if math.isnan(row.deviation) else row.deviation for row in rows]
    axes.errorbar(places, [row.accuracy for row in rows], yerr=spread, **style)


def curves(groups: Mapping[str, Sequence[Sequence[tuple[int, float]]]], title: str = "") -> Figure:
    """Accuracy over rounds: for each label the mean over its curves, and one standard deviation around it as a band.

    Curves that ended early, at a budget, count up to their end. ``groups``: label → curves of (round, accuracy).
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for index, (label, members) in enumerate(groups.items()):
        rounds = sorted({round for member in members for round, _ in member})
        values = [np.array([dict(member)[round] for member in members if round in dict(member)]) for round in rounds]
        mean = np.array([value.mean() for value in values])
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}
        axes.plot(rounds, mean, label=label, linewidth=1.8, **style)
        if len(members) > 1:
            spread = np.array([value.std(ddof=1) if len(value) > 1 else 0.0 for value in values])
            axes.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower right")
    _clean(axes)
    return figure


def run_curves(metrics: Sequence[Metrics], headline: str = "test_accuracy") -> Figure:
    """Loss, ``headline`` metric and ε so far of one run, over its rounds."""
    figure = Figure(figsize=(10, 3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    evaluated = [line for line in metrics if headline in line]
    rounds = [line["round"] + 1 for line in evaluated]
    left.plot(rounds, [line["test_loss"] for line in evaluated], color=COLOURS[0])
    left.set_ylabel("test loss" if headline == "test_rmse" else "test loss (nats)")
    middle.plot(rounds, [line[headline] for line in evaluated], color=COLOURS[0])
    middle.set_ylabel(headline.replace("_", " "))
    if headline == "test_accuracy":
        middle.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    cells = list(dict.fromkeys(cell for line in metrics for cell in line["epsilon"]))
    for index, cell in enumerate(cells):
        # A run ends with the statement's ε, and on the way nothing was spent that is not in it.
        most = metrics[-1]["epsilon"].get(cell, math.inf)
        points = [(line["round"] + 1, min(line["epsilon"][cell], most)) for line in metrics if cell in line["epsilon"]]
        right.plot(
            *zip(*points, strict=True),
            color=COLOURS[index],
            label=cell,
            linestyle=DASHES[index % 4],
            linewidth=3.2 - 0.6 * index,  # cells may coincide
        )
    if cells:
        right.legend(frameon=False, fontsize=8)
        right.set_ylim(bottom=0)
    else:
        right.text(0.5, 0.5, "ε = ∞ in every cell", ha="center", va="center", transform=right.transAxes)
        right.set_yticks([])
    right.set_ylabel("ε so far (upper bound; at the end the statement's)")
    for axes in (left, middle, right):
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        _clean(axes)
    return figure


def finite(value: float | None) -> str:
    """ε as text, ∞ for ``None``; rounded up, so that print never claims more than was computed."""
    return "∞" if value is None else round_up(value)
