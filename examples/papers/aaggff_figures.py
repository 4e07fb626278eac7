"""The figures of AAggFF's study: regret against its bound, and the worst client over rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privfl.study.chart import COLOURS, few, style


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """``regret.png``: regret against its bound; ``worst.png``: the worst client's score and loss over rounds."""
    names = list(dict.fromkeys(row["study"] for row in rows))
    decided = [name for name in names if curves(rows, name, "AAggFF-S")]
    figure = Figure(figsize=(3.4 * len(decided), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(decided), squeeze=False)[0], decided, strict=True):
        mine = [row for row in rows if row["study"] == name and row["method"] == "AAggFF-S"]
        for number, row in enumerate(mine):
            rounds, found = [point["round"] for point in row["curve"]], row["decisions"]
            label = {} if number else {"label": "regret, one line a seed"}
            axes.plot(rounds, found["regret"], color=COLOURS[0], linewidth=1.4, **label)
        bound = mine[0]["decisions"]["regret_bound"]
        axes.plot(rounds, bound, color="0.3", linestyle="--", linewidth=1.2, label="bound")
        axes.set_title(f"{name}, {len(mine[0]['losses'])} clients", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("round")
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("regret, cumulated")
    tidy(figure)
    figure.savefig(out / "regret.png", dpi=150)

    figure = Figure(figsize=(3.3 * len(names), 5.6), layout="constrained")
    panels = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        device = name == "fashion"
        for (measure, scale), axes in zip((("worst_tenth", 100), ("worst_loss", 1)), panels[:, column], strict=True):
            for index, label in ((1, "FedAvg"), (0, "AAggFF-D" if device else "AAggFF-S")):
                look = style(index) | {"linewidth": 1.6, "markersize": 4.5}
                found = curves(rows, name, label)
                rounds = [point["round"] for point in found[0]]
                values = scale * np.array([[point[measure] for point in curve] for curve in found])
                axes.plot(rounds, values.mean(0), label=label, markevery=few(len(rounds), 6), **look)
                axes.fill_between(rounds, values.min(0), values.max(0), color=look["color"], alpha=0.15, linewidth=0)
        panels[0, column].set_title(name, fontsize=10)
        panels[0, column].set_ylabel("worst tenth's accuracy (%)" if device else "worst client's AUROC (%)")
        panels[1, column].set_ylabel("worst client's training loss")
        panels[1, column].set_ylim(bottom=0)
        panels[1, column].set_xlabel("round")
        panels[0, column].legend(frameon=False, fontsize=8, loc="lower right")
    tidy(figure)
    figure.savefig(out / "worst.png", dpi=150)


def tidy(figure: Any) -> None:
    """No frame but the axes."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)


def curves(rows: list[dict[str, Any]], name: str, label: str) -> list[list[dict[str, Any]]]:
    """The curves of one method on one federation, one for each seed."""
    return [row["curve"] for row in rows if row["study"] == name and row["method"] == label]
