"""The figures of the results pages that follow from raw results under docs/results and benchmarks/results.

`python docs/scripts/redraw_figures.py [NAME …]` writes them, or those named, into docs/figures. Each is drawn by the
program that made the results; pictures made of images are not here, since the results hold no images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
sys.path += [str(ROOT / folder) for folder in (".", "benchmarks", "examples", "examples/papers")]


def read(name: str) -> Any:
    """Recorded raw results."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def in_folder(draw: Callable[[Path], object], drawn: str) -> Callable[[Path], None]:
    """A way to draw one figure of a program that names its figures itself, as ``drawn``."""

    def one(path: Path) -> None:
        with TemporaryDirectory() as folder:
            draw(Path(folder))
            (Path(folder) / drawn).replace(path)

    return one


def aaggff(drawn: str) -> Callable[[Path], None]:
    """Figures of AAggFF's study."""
    import aaggff_figures

    return in_folder(lambda folder: aaggff_figures.draw(read("docs/results/aaggff.json")["rows"], folder), drawn)


def sizes(path: Path) -> None:
    """What the server learns of client sizes."""
    import attack_sizes

    attack_sizes.draw(read("docs/results/attack-sizes.json"), path)


def fedevg(path: Path) -> None:
    """FedEvg over rounds."""
    import fedevg

    stored = read("docs/results/fedevg.json")
    fedevg.curves(stored["rows"], stored["references"]).savefig(path, dpi=130)


def fashion(name: str) -> Callable[[Path], None]:
    """FedSampling beside centralised training."""
    import fedsampling_fashion

    def draw(folder: Path) -> None:
        (folder / "results.json").write_bytes((ROOT / f"docs/results/{name}.json").read_bytes())
        fedsampling_fashion.draw(folder)

    return in_folder(draw, "accuracy.png")


def fedsampling(number: str) -> Callable[[Path], None]:
    """The paper's figures."""
    import fedsampling

    return lambda path: fedsampling.FIGURES[number](read("docs/results/fedsampling.json")).savefig(path, dpi=150)


def grpfed(path: Path) -> None:
    """GRP-FED's losses."""
    import grpfed

    grpfed.draw(read("docs/results/grpfed.json")["rows"], path)


def membership(path: Path) -> None:
    """What every attack finds at few false positives; the ROC curves are not in the record."""
    import membership_figures

    membership_figures.rates(read("docs/results/membership.json")["rows"]).savefig(path, dpi=150)


def prototypes(path: Path) -> None:
    """What prototypes give away."""
    import attack_prototypes_figures as figures

    results = read("docs/results/prototype-inversion.json")
    in_folder(lambda folder: figures.draw_curves(results, folder), "leakage.png")(path)


def benchmark(module: str) -> Callable[[Path], None]:
    """Figures of the benchmarks."""
    import importlib

    return lambda path: importlib.import_module(module).figure(read("benchmarks/results/latest.json")["rows"], path)


DRAWN: dict[str, Callable[[], Callable[[Path], None]]] = {
    "aaggff-regret": lambda: aaggff("regret.png"),
    "aaggff-worst": lambda: aaggff("worst.png"),
    "attack-prototypes-leakage": lambda: prototypes,
    "attack-sizes": lambda: sizes,
    "fedevg-curves": lambda: fedevg,
    "fedsampling-fashion": lambda: fashion("fedsampling-fashion"),
    "fedsampling-private": lambda: fashion("fedsampling-private"),
    "fedsampling-fig3": lambda: fedsampling("fig3"),
    "fedsampling-fig4": lambda: fedsampling("fig4"),
    "fedsampling-fig5": lambda: fedsampling("fig5"),
    "fedsampling-fig6": lambda: fedsampling("fig6"),
    "grpfed-losses": lambda: grpfed,
    "membership-rates": lambda: membership,
    "round-time": lambda: benchmark("engines"),
    "secagg": lambda: benchmark("secagg"),
}
"""The figures by name; a program is imported when its figure is drawn."""


def main(names: list[str]) -> None:
    """Draw the figures ``names``, or all."""
    for name in names or DRAWN:
        DRAWN[name]()(FIGURES / f"{name}.png")
        print(FIGURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
