"""The Pareto figures of `docs/results/papers-private.md` and its tuned form, from the figures of every run beside them.

`python docs/scripts/draw_papers_private.py` writes them into docs/figures, as `privfl study plot` would from the store
that the runs were made in.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from privfl.study.results import Results  # noqa: E402
from privfl.study.shown import plot_results  # noqa: E402
from privfl.study.store import Member  # noqa: E402

TITLES = {
    "heart-disease": "The papers' methods under DP-SGD, heart disease",
    "fashion-mnist": "The papers' methods under DP-SGD, Fashion-MNIST",
    "heart-tuned": "The papers' methods under DP-SGD, rates tuned, heart disease",
    "fashion-tuned": "The papers' methods under DP-SGD, rates tuned, Fashion-MNIST",
}
NAMES = {
    "heart-disease": "papers-private-heart",
    "fashion-mnist": "papers-private-fashion",
    "heart-tuned": "papers-private-tuned-heart",
    "fashion-tuned": "papers-private-tuned-fashion",
}
ALONE = "epsilon of the run alone "
"""How the columns begin that leave out what tuning spent, where there was any: ε of the runs is drawn."""
DRAWN = {"pareto-sample-server": "", "worst-tenth": "-worst"}
"""What ``privfl study plot`` calls a figure, and how its name ends here."""
ABOUT = ("method", "level", "seed", "state", "reason", "run")


def drawn(metrics: dict[str, float]) -> dict[str, float]:
    """The figures of a run, with its own ε where the table has it beside that of run and tuning together."""
    alone = {name: value for name, value in metrics.items() if name.startswith(ALONE)}
    others = {name: value for name, value in metrics.items() if name not in alone}
    return {**others, **{"epsilon " + name.removeprefix(ALONE): value for name, value in alone.items()}}


def results(data: str) -> Results:
    """The finished runs of one study's table."""
    with open(ROOT / "docs" / "results" / "papers-private" / f"{data}.csv", newline="", encoding="utf-8") as lines:
        members = [
            Member(
                row["method"],
                row["level"],
                int(row["seed"]),
                row["run"],
                "done",
                metrics=drawn({name: float(value) for name, value in row.items() if name not in ABOUT and value}),
            )
            for row in csv.DictReader(lines)
        ]
    return Results(TITLES[data], members)


if __name__ == "__main__":
    for data, name in NAMES.items():
        if not (ROOT / "docs" / "results" / "papers-private" / f"{data}.csv").exists():
            continue
        with TemporaryDirectory() as folder:
            for path in plot_results(results(data), Path(folder)):
                if path.suffix == ".svg" and path.stem in DRAWN:
                    target = ROOT / "docs" / "figures" / f"{name}{DRAWN[path.stem]}.svg"
                    target.write_bytes(path.read_bytes())
                    print(target)
