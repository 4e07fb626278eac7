"""Draw ReBaFL's figures of curves and of diversity in docs/figures, from the raw curves.

`python docs/scripts/draw_rebafl.py`
"""

from __future__ import annotations

import statistics
import sys
from itertools import cycle
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from rebafl_tables import ALL_IMAGES, HEADS, ORDER, PARTS  # noqa: E402
from verdict_intervals import LONG, raw  # noqa: E402

from privfl.study.chart import COLOURS, DASHES  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
CONDITIONS = {"two classes": "two classes a client", "clustered": "clusters of clients"}
METHODS = ("FedAvg", "F-Aug only", "R-BSM only", "ReBaFL")


def diversity(path: Path) -> None:
    """The mean of every line over the seeds, and a band from the smallest to the largest."""
    figure, panels = _canvas(9.6, 2)
    titles = ("500 images a client, 20 rounds", "250 images a client, 200 rounds")
    for axes, source, title in zip(panels, ("rebafl-figures", PARTS), titles, strict=True):
        rows = raw(source)["rows"]
        _lines(axes, {name: [row["diversity"] for row in rows if row["variant"] == name] for name in ORDER})
        axes.set_title(title, fontsize=10)
    panels[0].set_ylabel("diversity Λ of the local models")
    panels[0].legend(frameon=False, fontsize=9)
    _save(figure, path)


def cifar10(path: Path) -> None:
    """Accuracy over rounds on CIFAR-10, a panel for each condition, likewise."""
    figure, panels = _canvas(8.4, columns=2)
    for axes, (condition, title) in zip(panels, CONDITIONS.items(), strict=True):
        rows = [row for row in raw("rebafl-cifar")["rows"] if row["condition"] == condition]
        curves = {method: [row["accuracy"] for row in rows if row["method"] == method] for method in METHODS}
        _lines(axes, {method: found for method, found in curves.items() if found})
        axes.set_title(title, fontsize=10)
    panels[0].set_ylabel("test accuracy")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].legend(frameon=False, fontsize=9, loc="lower right")
    _save(figure, path)


def rounds(path: Path) -> None:
    """Accuracy over the longer runs on Fashion-MNIST, with 20 and with 50 clients."""
    figure, panels = _canvas(9.6, 2)
    for axes, name, clients in zip(panels, ("rebafl-rounds", "rebafl-fifty"), (20, 50), strict=True):
        rows = [row for row in raw(name)["rows"] if row["method"] in LONG]
        reached = min(len(row["accuracy"]) for row in rows)
        _lines(
            axes, {method: [row["accuracy"][:reached] for row in rows if row["method"] == method] for method in LONG}
        )
        axes.set_title(f"{clients} clients", fontsize=10)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("test accuracy")
    panels[0].legend(frameon=False, fontsize=9, loc="lower right")
    _save(figure, path)


def all_images(path: Path) -> None:
    """Accuracy over rounds of FedDyn and ReBaFL where clients hold all images, a panel for each seed."""
    rows = raw(ALL_IMAGES)["rows"]
    figure, panels = _canvas(9.6, 3)
    for seed, axes in enumerate(panels):
        curves = {row["method"]: [row["accuracy"]] for row in rows if row["seed"] == seed}
        _lines(axes, {method: curves[method] for method in LONG if method in curves})
        axes.set_title(f"seed {seed}", fontsize=10)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("test accuracy")
    panels[0].legend(frameon=False, fontsize=9, loc="lower right")
    _save(figure, path)


def heads(path: Path) -> None:
    """Accuracy over rounds where the server tunes the head, and where it does not."""
    figure, axes = _canvas(6.4)
    rows = raw("rebafl-tuned-head")["rows"]
    _lines(axes[0], {method: [row["accuracy"] for row in rows if row["method"] == method] for method in HEADS})
    axes[0].set_ylabel("test accuracy")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[0].legend(frameon=False, fontsize=9, loc="upper left", ncols=3)
    axes[0].set_ylim(top=0.55)
    _save(figure, path)


def _canvas(width: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    rcParams["svg.hashsalt"] = "privfl"
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    panels = list(figure.subplots(1, columns, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.set_xlabel("round")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, panels


def _lines(axes: Axes, curves: dict[str, list[list[float]]]) -> None:
    for (name, found), colour, dash in zip(curves.items(), COLOURS, cycle(DASHES), strict=False):
        rounds = range(1, len(found[0]) + 1)
        low, mean, high = ([of(values) for values in zip(*found, strict=True)] for of in (min, statistics.mean, max))
        axes.plot(rounds, mean, color=colour, linestyle=dash, linewidth=1.6, label=name)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _save(figure: Figure, path: Path) -> None:
    figure.axes[0].set_ylim(bottom=0)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


PICTURES = {
    "rebafl-diversity.svg": diversity,
    "rebafl-cifar10.svg": cifar10,
    "rebafl-rounds.svg": rounds,
    "rebafl-all-images.svg": all_images,
    "rebafl-heads.svg": heads,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw(FIGURES / name)
