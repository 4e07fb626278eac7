"""The figures of the study of prototypes: what was drawn from them, and how much of it is its members'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attacks.prototypes.inversion import OTHERS
from privfl.study.chart import COLOURS, style

METHODS = {"upcnn": "UpCNN", "vae": "VAE", "vae-search": "VAE, search", "grnn": "GRNN", "direct": "direct"}


def draw_sheet(dataset: str, counts: list[int], out: Path, classes: tuple[int, ...] = (0, 1)) -> None:
    """``sheet-DATASET.png``: for each n the nearest true image, what every method draws, and the nulls."""
    rows = {
        "nearest of the\nclient's images": "upcnn/truth",
        "UpCNN": "upcnn/image",
        "VAE": "vae/image",
        "VAE, search": "vae-search/image",
        "GRNN": "grnn/image",
        "direct": "direct/image",
        "null: UpCNN on\nothers' prototype": f"upcnn/{OTHERS}",
        "null: class mean": "upcnn/class mean",
        "null: random image": "upcnn/random image",
    }
    figure = Figure(figsize=(1.5 + 0.62 * len(counts) * len(classes), 0.66 * len(rows) + 0.4), layout="constrained")
    cells = figure.subplots(len(rows), len(counts) * len(classes), squeeze=False)
    for place, (label, count) in enumerate((label, count) for label in classes for count in counts):
        with np.load(out / f"images-{dataset}-{count}.npz", allow_pickle=False) as stored:
            for line, key in zip(cells, rows.values(), strict=True):
                picture = stored[key][label].transpose(1, 2, 0).clip(0, 1)
                line[place].imshow(picture.squeeze(), vmin=0, vmax=1, cmap="gray")
        cells[0][place].set_title(f"n = {count}", fontsize=7)
    for line, title in zip(cells, rows, strict=True):
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=7)
    for cell in cells.flat:
        cell.set_xticks([])
        cell.set_yticks([])
        cell.spines[:].set_visible(False)
    figure.savefig(out / f"sheet-{dataset}.png", dpi=170)


def draw_curves(results: dict[str, Any], out: Path) -> None:
    """``leakage.png``: above, what reconstructions gain over the same inversion of others; below, the tracing AUC."""
    figure = Figure(figsize=(4.2 * len(results), 6.4), layout="constrained")
    titles = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
    panels = figure.subplots(2, len(results), squeeze=False, sharex=False)
    for column, (dataset, row) in enumerate(results.items()):
        counts = [int(count) for count in row["inversion"]]
        upper, lower = panels[0][column], panels[1][column]
        for number, (method, title) in enumerate(METHODS.items()):
            gains = [row["inversion"][str(count)][method]["gain_over_others"] for count in counts]
            spread = np.array([[g["value"] - g["low"] for g in gains], [g["high"] - g["value"] for g in gains]])
            moved = [count * 1.06 ** (number - 2) for count in counts]  # so that the bars do not hide each other
            look = style(number) | {"linewidth": 1.3, "markersize": 4}
            upper.errorbar(moved, [g["value"] for g in gains], spread, label=title, **look)
        upper.axhline(0, color="black", linewidth=0.8)
        upper.set_title(f"{titles.get(dataset, dataset)}: reconstruction", fontsize=10)
        upper.set_ylabel("PSNR minus that from\nothers' prototype (dB)")
        upper.set_ylim(top=1.45 * max(upper.get_ylim()))  # room for the legend above the bars
        upper.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
        cells = [row["tracing"][str(count)] for count in counts]
        found = [cell["metrics"]["auc"] for cell in cells]
        errors = np.array([[m["value"] - m["low"] for m in found], [m["high"] - m["value"] for m in found]])
        lower.errorbar(
            counts, [m["value"] for m in found], errors, marker="o", markersize=3, color=COLOURS[0], capsize=2,
            label="tracing attack",
        )  # fmt: skip
        lower.plot(counts, [c["gaussian_auc"] for c in cells], color="black", linestyle=":", label="Gaussian theory")
        nulls = [cell["nulls"]["public prototype"]["auc"]["value"] for cell in cells]
        lower.plot(counts, nulls, color="#999999", linestyle="--", label="null: public prototype")
        lower.set_title(f"{titles.get(dataset, dataset)}: membership", fontsize=10)
        lower.set_ylabel("AUC")
        lower.set_ylim(0.4, 1.02)
        lower.legend(frameon=False, fontsize=8)
        for axes in (upper, lower):
            axes.set_xscale("log")
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            axes.set_xlabel("images of a class in the prototype")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="0.9", linewidth=0.8)
    figure.savefig(out / "leakage.png", dpi=150)
