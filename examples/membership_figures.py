"""The figures of the study of membership: ROC curves, and what every attack finds at few false positives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attacks.metrics.distinguishing import tpr_ceiling
from privfl.study.chart import COLOURS, few, style

VICTIMS = ("central", "federated", "DP-SGD")
MODEL = ("loss threshold", "LiRA online", "LiRA offline", "RMIA online", "RMIA offline")
UPDATES = ("gradient alignment", "gradient difference", "loss trajectory", "loss drop")
SUMS = ("gradient alignment, sums only",)
SEEN = {
    "the released model": (MODEL, "o", COLOURS[0]),
    "a client's five updates": (UPDATES, "s", COLOURS[1]),
    "five sums of ten clients": (SUMS, "^", COLOURS[2]),
}
"""What the attacker sees: the attacks that see it, and how they are marked."""
CURVES = ("loss threshold", "LiRA online", "RMIA offline", "gradient alignment", "gradient alignment, sums only")
"""Those in the ROC figure: the weakest, the best of each family, and what sums leave of it."""
ENOUGH = 10
"""Candidates that are no members which must lie beyond a threshold before a rate is drawn."""


def rates(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The true-positive rate at 1 % false positives with its 95 % interval: a row for each attack, a panel a victim."""
    titles = [title for attacks, _, _ in SEEN.values() for title in attacks]
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    panels = figure.subplots(1, len(VICTIMS), sharex=True, sharey=True)
    for axes, victim in zip(panels, VICTIMS, strict=True):
        found = {row["name"]: row["metrics"] for row in rows if row["victim"] == victim}
        for seen, (attacks, marker, colour) in SEEN.items():
            there = [title for title in attacks if "tpr_at_fpr_0.01" in found.get(title, {})]
            rate = [{key: 100 * value for key, value in found[t]["tpr_at_fpr_0.01"].items()} for t in there]
            bars = [[r["value"] - r["low"] for r in rate], [r["high"] - r["value"] for r in rate]]
            places = [titles.index(title) for title in there]
            look = {"color": colour, "marker": marker, "linestyle": "", "markersize": 6, "capsize": 2.5}
            axes.errorbar([r["value"] for r in rate], places, xerr=bars if there else None, label=seen, **look)
        axes.axvline(1, color="black", linestyle=":", linewidth=1.2)
        axes.set_title(victim, loc="left", fontsize=10)
        axes.set_xlim(left=0)
        axes.grid(axis="x", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(titles)), titles, fontsize=9)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("members found (%) at 1 % false positives; dotted: chance")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9, title="seen:")
    return figure


def curves(rows: Sequence[Mapping[str, Any]], epsilon: float, delta: float) -> Figure:
    """The ROCs on logarithmic axes, from where ``ENOUGH`` non-members count; dashed the ceiling of the private run."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, victim in zip(figure.subplots(1, len(VICTIMS), sharex=True, sharey=True), VICTIMS, strict=True):
        for row in rows:
            if row["victim"] == victim and row["name"] in CURVES:
                grid, curve = (np.array(values) for values in row["roc"])
                enough = (grid >= ENOUGH / row["others"]) & (curve > 0)
                look = style(CURVES.index(row["name"])) | {"linewidth": 1.4, "markersize": 5}
                label = row["name"] + (" (of updates)" if row["name"] in UPDATES else "")
                axes.plot(grid[enough], curve[enough], label=label, markevery=few(int(enough.sum()), 6), **look)
        grid = np.geomspace(1e-3, 1, 100)
        axes.plot(grid, grid, color="black", linestyle=":", linewidth=1, label="chance")
        if victim == VICTIMS[-1]:
            ceiling = [tpr_ceiling(float(rate), epsilon, delta) for rate in grid]
            axes.plot(grid, ceiling, color="black", linestyle="--", linewidth=1, label=f"ceiling of ε = {epsilon:.3g}")
        axes.set(xscale="log", yscale="log", title=victim, xlabel="false-positive rate", xlim=(1e-3, 1), ylim=(1e-3, 1))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("true-positive rate")
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9, handlelength=3)
    return figure
