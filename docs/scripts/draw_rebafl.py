"""Draw docs/figures/rebafl-diversity.svg, Figure 7 of its paper, from the raw curves.

`python docs/scripts/draw_rebafl.py`
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from rebafl_tables import ORDER  # noqa: E402
from verdict_intervals import raw  # noqa: E402

from privfl.study.chart import COLOURS, DASHES  # noqa: E402

PICTURE = ROOT / "docs" / "figures" / "rebafl-diversity.svg"


def draw(path: Path) -> None:
    """The mean of every line over the seeds, and a band from the smallest to the largest."""
    rcParams["svg.hashsalt"] = "privfl"
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for variant, colour, dash in zip(ORDER, COLOURS, DASHES, strict=False):
        curves = [row["diversity"] for row in raw("rebafl-figures")["rows"] if row["variant"] == variant]
        rounds = range(1, len(curves[0]) + 1)
        low, mean, high = ([of(values) for values in zip(*curves, strict=True)] for of in (min, statistics.mean, max))
        axes.plot(rounds, mean, color=colour, linestyle=dash, linewidth=1.6, label=variant)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("diversity Λ of the local models")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    draw(PICTURE)
