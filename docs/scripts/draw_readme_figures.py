"""The README's three figures, from the raw results that are recorded under docs/results.

`python docs/scripts/draw_readme_figures.py [FOLDER]` writes into docs/figures, or FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

DOCS = Path(__file__).parents[1]
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#595959"
"""Of Okabe and Ito's palette, which the colour-blind can tell apart; shape or dashes say the same."""
LEVELS = {"ε = 1": 1.0, "ε = 3": 3.0, "ε = 8": 8.0}
PANELS = {
    "FedAvg": "FedAvg, noise at every client:\nε holds against server and public",
    "FedSampling": "FedSampling, noise on the sum:\nε holds against the public only",
}


def read(name: str) -> Any:
    """Recorded raw results."""
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def plain(axes: Axes) -> None:
    """No box, a light grid to read values from."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def accuracy_against_epsilon() -> Figure:
    """One panel for each trust model, for two guarantees that cover different observers must not share an axis."""
    runs = read("demo")
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    for axes, (method, title) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        plain(axes)
        by_level = {
            level: [100 * run["accuracy"] for run in runs if (run["method"], run["level"]) == (method, level)]
            for level in ("no privacy", *LEVELS)
        }
        accuracy = np.array([by_level[level] for level in LEVELS])
        mean, spread, epsilons = accuracy.mean(1), accuracy.std(1, ddof=1), list(LEVELS.values())
        axes.fill_between(epsilons, mean - spread, mean + spread, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(epsilons, mean, color=BLUE, linewidth=1.6)
        axes.plot(epsilons, accuracy, "o", color=BLUE, markersize=3.5)
        free = float(np.mean(by_level["no privacy"]))
        axes.axhline(free, color=GREY, linestyle="--", linewidth=1.2)
        axes.text(8.2, free + 0.8, "without privacy (ε = ∞)", ha="right", va="bottom", fontsize=8, color=GREY)
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.set_ylim(55, 102)
        axes.set_xlabel("ε for one example, δ = 1e-5")
        axes.set_title(title, fontsize=9, loc="left")
    figure.axes[0].set_ylabel("test accuracy (%)")
    return figure


def what_prototypes_give_away() -> Figure:
    """How well membership in a class prototype is told, over the number of images behind it."""
    results = read("prototype-inversion")
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = figure.subplots()
    plain(axes)
    for (key, name), colour, marker, dashes in zip(
        (("cifar10", "CIFAR-10"), ("fashion-mnist", "Fashion-MNIST")), (BLUE, ORANGE), "os", ("-", "--"), strict=True
    ):
        tracing = results[key]["tracing"]
        counts = [int(count) for count in tracing]
        auc = [row["metrics"]["auc"] for row in tracing.values()]
        bars = [[a["value"] - a["low"] for a in auc], [a["high"] - a["value"] for a in auc]]
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 5}
        axes.errorbar(counts, [a["value"] for a in auc], bars, capsize=2.5, linewidth=1.6, label=name, **style)
        null = [row["nulls"]["public prototype"]["auc"]["value"] for row in tracing.values()]
        style |= {"linestyle": ":", "markerfacecolor": "white", "linewidth": 1.4}
        axes.plot(counts, null, label=f"{name}: control", **style)
    axes.axhline(0.5, color=GREY, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_ylim(0.42, 1.02)
    axes.set_xlabel("images of the class behind the prototype")
    axes.set_ylabel("AUC: was this image in it?")
    handles, labels = axes.get_legend_handles_labels()
    order = [2, 3, 0, 1]
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        frameon=False,
        fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )
    return figure


def claims_beside_bounds() -> Figure:
    """Each audited run in a line: the ε of its statement, and what two kinds of bound certify from below."""
    rows = [row for row in read("audits")["dpsgd"] if row["name"] in ("one run", "trials of one run")]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    plain(axes)
    marks = {"one run": ("o", BLUE), "trials of one run": ("^", ORANGE)}
    for place, setting in enumerate(reversed(settings)):
        here = [row for row in rows if row["setting"] == setting]
        bounds = [row["bounds"][0]["epsilon"] for row in here]
        claim = here[0]["claim"]
        axes.plot([min(claim, *bounds), max(claim, *bounds)], [place, place], color="0.75", linewidth=1.2, zorder=1)
        axes.plot(claim, place, "|", color="black", markersize=15, markeredgewidth=2.2)
        for row, bound in zip(here, bounds, strict=True):
            marker, colour = marks[row["name"]]
            axes.plot(bound, place, marker, color=colour, markersize=6.5)
        if any(row["refuted"] for row in here):
            axes.text(max(bounds) * 1.1, place, "claim refuted", va="center", fontsize=8, color=ORANGE)
    labels = [name.removesuffix(", seed 0") for name in reversed(settings)]
    labels = [f"BROKEN: {name}" if "=" not in name else name for name in labels]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.set_xlim(1.2, 46)
    axes.set_xlabel("ε for one example against the server, δ = 1e-5")
    axes.legend(
        handles=[
            Line2D([], [], color="black", marker="|", linestyle="", markersize=12, markeredgewidth=2, label="claim"),
            Line2D([], [], color=ORANGE, marker="^", linestyle="", label="certified, Gaussian noise assumed"),
            Line2D([], [], color=BLUE, marker="o", linestyle="", label="certified, nothing assumed"),
        ],
        frameon=False,
        fontsize=8,
        ncols=3,
        loc="lower center",
        bbox_to_anchor=(0.4, 1.0),
    )
    return figure


def main(folder: Path) -> None:
    """Draw all three into ``folder``."""
    for name, draw in {
        "readme-accuracy": accuracy_against_epsilon,
        "readme-prototypes": what_prototypes_give_away,
        "readme-audits": claims_beside_bounds,
    }.items():
        draw().savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "figures")
