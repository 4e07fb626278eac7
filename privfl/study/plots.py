"""Figures of runs and studies. Every function returns a matplotlib Figure and touches no global state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from privfl.run_directory import Metrics
from privfl.study.grid import Summary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P")


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def pareto(rows: Sequence[Summary], cell: str = "sample/public", title: str = "") -> Figure:
    """Accuracy against ε of ``cell``, one line for each method; runs without a claim stand at the right end, at ∞."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    finite = [value for row in rows if (value := row.epsilons[cell]) is not None and value > 0]
    low, high = (min(finite), max(finite)) if finite else (1.0, 1.0)
    right = high * 2.5
    for index, method in enumerate(dict.fromkeys(row.method for row in rows)):
        mine = [row for row in rows if row.method == method]
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
            "capsize": 3,
        }
        private = sorted((row for row in mine if row.epsilons[cell]), key=lambda row: row.epsilons[cell] or 0.0)
        if private:
            axes.errorbar(
                [row.epsilons[cell] or 0.0 for row in private],
                [row.accuracy for row in private],
                yerr=[row.deviation for row in private],
                label=method,
                linewidth=1.8,
                **style,
            )
        for row in (row for row in mine if row.epsilons[cell] is None):
            shifted = right * 1.06 ** (index - 0.5)
            axes.errorbar([shifted], [row.accuracy], yerr=[row.deviation], label=None if private else method, **style)
    ticks = sorted({float(f"{value:.2g}") for value in finite})
    axes.set_xscale("log")
    axes.set_xticks([*ticks, right], [*(f"{tick:g}" for tick in ticks), "∞\n(no privacy)"])
    axes.xaxis.set_minor_formatter(lambda value, position: "")
    axes.set_xlim(low / 1.5, right * 1.4)
    axes.axvline(high * 1.6, color="0.7", linestyle=":", linewidth=1)
    axes.set_xlabel(f"ε for one {cell.split('/')[0]} against the {cell.split('/')[1]} (smaller is more private)")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower center")
    _clean(axes)
    return figure


def curves(groups: Mapping[str, Sequence[Sequence[tuple[int, float]]]], title: str = "") -> Figure:
    """Accuracy over rounds: for each label the mean over its curves, and their range as a band."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for index, (label, members) in enumerate(groups.items()):
        length = min(len(member) for member in members)
        rounds = [point[0] for point in members[0][:length]]
        values = np.array([[point[1] for point in member[:length]] for member in members])
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(rounds, values.mean(0), color=colour, label=label, linewidth=1.8)
        if len(members) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower right")
    _clean(axes)
    return figure


def run_curves(metrics: Sequence[Metrics]) -> Figure:
    """Loss, accuracy and ε so far of one run, over its rounds."""
    figure = Figure(figsize=(10, 3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    evaluated = [line for line in metrics if "test_accuracy" in line]
    rounds = [line["round"] + 1 for line in evaluated]
    left.plot(rounds, [line["test_loss"] for line in evaluated], color=COLOURS[0])
    left.set_ylabel("test loss (nats)")
    middle.plot(rounds, [line["test_accuracy"] for line in evaluated], color=COLOURS[0])
    middle.set_ylabel("test accuracy")
    middle.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    cells = list(dict.fromkeys(cell for line in metrics for cell in line["epsilon"]))
    for index, cell in enumerate(cells):
        points = [(line["round"] + 1, line["epsilon"][cell]) for line in metrics if cell in line["epsilon"]]
        right.plot(
            *zip(*points, strict=True), color=COLOURS[index], label=cell, linestyle=("-", "--", "-.", ":")[index % 4]
        )
    if cells:
        right.legend(frameon=False, fontsize=8)
        right.set_ylim(bottom=0)
    else:
        right.text(0.5, 0.5, "ε = ∞ in every cell", ha="center", va="center", transform=right.transAxes)
        right.set_yticks([])
    right.set_ylabel("ε so far (upper bound)")
    for axes in (left, middle, right):
        axes.set_xlabel("round")
        axes.xaxis.set_major_formatter(ScalarFormatter())
        _clean(axes)
    return figure


def finite(value: float | None) -> str:
    """ε as text."""
    return "∞" if value is None or math.isinf(value) else f"{value:.3g}"
