"""Single images from single updates: DLG, iDLG, Inverting Gradients and GradInversion on an untrained LeNet.

    PRIVFL_DATA=… python examples/attack_gradients.py --out results/gradients
    python examples/attack_gradients.py --out results/small --small        # digits, a few seconds

Every client of a recorded FedAvg round holds one image and takes one step; the attacker is the server, which has the
updates and public images. What is done is kept; call the command again to go on.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.gradient_inversion.dlg import revealed_label
from attacks.gradient_inversion.inversion import OTHERS, GradientInversion
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.metrics.measure import proportion
from attacks.observations.gradients import as_gradient
from attacks.observations.head_gradients import HeadGradient
from privfl.models import Network
from privfl.models.flat_network import Layout

PUBLIC = 2000
LABELS = 1000
"""Single images whose labels are read."""


@dataclass(frozen=True)
class Cell:
    """One attack on one dataset, with the LeNet's weights uniform in ±``spread`` (``None``: PyTorch's own)."""

    dataset: str
    method: str
    spread: float | None
    iterations: int
    attempts: int = 1

    @property
    def name(self) -> str:
        return f"{self.dataset}, {self.method}, {'default' if self.spread is None else f'±{self.spread}'}"


FULL = tuple(
    Cell(dataset, method, spread, iterations, attempts)
    for dataset in ("mnist", "cifar10")
    for method, spread, iterations, attempts in (
        ("dlg", 0.5, 60, 2),
        ("idlg", 0.5, 60, 2),
        ("inverting-gradients", 0.5, 600, 1),
        ("inverting-gradients", None, 600, 1),
        ("gradinversion", 0.5, 600, 1),
        ("gradinversion", None, 600, 1),
    )
)
SMALL = (Cell("digits", "idlg", 0.5, 15, 2), Cell("digits", "inverting-gradients", 0.5, 60))


def recorded(cell: Cell, images: int) -> tuple[pf.Transcript, Auxiliary]:
    """What the server saw of a round in which client i holds image i, and public images that nobody holds."""
    data = pf.load_dataset(cell.dataset, seed=0)
    held = pf.Dataset(
        data.name,
        data.inputs[:images],
        data.targets[:images],
        data.test_inputs[:100],
        data.test_targets[:100],
        data.classes,
        torch.arange(images),
    )

    def victim() -> Network:
        generator = torch.Generator().manual_seed(1)
        return sigmoid_lenet(tuple(data.inputs.shape[1:]), data.classes, generator=generator, spread=cell.spread)

    run = pf.simulate(
        pf.Task.from_dataset(held, partition=pf.Natural(), model=victim),
        pf.FedAvg(),
        rounds=1,
        training=pf.LocalTraining(learning_rate=1.0, batch_size=1),
        execution=pf.Execution(engine="loop", workers=1),
        record=("server",),
    )
    assert run.transcript is not None
    public = Records(data.inputs[images : images + PUBLIC], data.targets[images : images + PUBLIC])
    truth = {"images": Pixels.of(data.name).images(data.inputs[:images])}
    return run.transcript, Auxiliary(public=public, truth=truth)


def attacked(cell: Cell, images: int) -> dict[str, Any]:
    """The attack on every client in turn: PSNR of the image and of its nulls, labels and processor seconds."""
    transcript, auxiliary = recorded(cell, images)
    found: dict[str, Any] = {"psnr": [], "ssim": [], "nulls": {}, "right_labels": 0, "pictures": []}
    targets = pf.load_dataset(cell.dataset, seed=0).targets[:images].tolist()
    began = time.process_time()
    for client in range(images):
        mine = Auxiliary(public=auxiliary.public, truth={"images": auxiliary.truth["images"][client : client + 1]})
        attack = GradientInversion(
            client=client, method=cell.method, iterations=cell.iterations, attempts=cell.attempts, seed=client
        )
        result = attack.run(transcript, mine)
        for name in ("psnr", "ssim"):
            if name in result.metrics:
                found[name].append(result.metrics[name].value)
        for name, measures in result.nulls.items():
            found["nulls"].setdefault(name, []).append(measures["psnr"].value)
        found["right_labels"] += result.settings["labels"] == [targets[client]]
        found["pictures"].append(np.round(result.images[0].numpy(), 3).tolist())
    found["seconds_per_image"] = (time.process_time() - began) / (2 * images)  # the null's image costs as much
    return found


def labels_read(cell: Cell, images: int) -> dict[str, Any]:
    """How many of ``images`` single labels iDLG reads off their clients' updates; the share with an exact interval."""
    transcript, _ = recorded(cell, images)
    moment = transcript[0]
    network = transcript.network(moment.broadcast["parameters"])
    targets = pf.load_dataset(cell.dataset, seed=0).targets[:images].tolist()
    layout, read = Layout.of(network), []
    for client in range(images):
        gradient = as_gradient(network, moment.uploads[client]["update"], learning_rate=1.0)
        head = HeadGradient.of(torch.cat([part.reshape(-1) for part in gradient]), layout)
        read.append(revealed_label(head.weight))
    right = sum(one == other for one, other in zip(read, targets, strict=True))
    return {"right": right, "of": images, "share": proportion(right, images).to_json()}


def draw(results: dict[str, Any], dataset: str, out: Path) -> None:
    """``gradients-DATASET.png``: the true images, and what every attack made of their updates."""
    rows = {name: row for name, row in results.items() if name.startswith(f"{dataset}, ") and "pictures" in row}
    images = len(next(iter(rows.values()))["pictures"])
    data = pf.load_dataset(dataset, seed=0)
    truth = Pixels.of(dataset).images(data.inputs[:images]).numpy()
    shown = {name.removeprefix(f"{dataset}, "): np.array(row["pictures"]) for name, row in rows.items()}
    lines = {"truth": truth, **shown}
    figure = Figure(figsize=(2.2 + 0.9 * images, 0.95 * len(lines)), layout="constrained")
    cells = figure.subplots(len(lines), images, squeeze=False)
    for line, (title, pictures) in zip(cells, lines.items(), strict=True):
        line[0].set_ylabel(title.replace(", ", "\n"), rotation=0, ha="right", va="center", fontsize=8)
        for place, picture in enumerate(pictures):
            line[place].imshow(picture.transpose(1, 2, 0).squeeze().clip(0, 1), vmin=0, vmax=1, cmap="gray")
            line[place].set_xticks([])
            line[place].set_yticks([])
            line[place].spines[:].set_visible(False)
    figure.savefig(out / f"gradients-{dataset}.png", dpi=150)


def main() -> None:
    """Run what is missing, write ``gradients.json``, print a table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gradients.json and figures")
    parser.add_argument("--images", type=int, default=4, help="clients, each with one image")
    parser.add_argument("--small", action="store_true", help="digits, two attacks, two images: a few seconds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "gradients.json"
    results: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    cells, images = (SMALL, 2) if options.small else (FULL, options.images)
    for cell in cells:
        if cell.name not in results:
            results[cell.name] = attacked(cell, images)
            store.write_text(json.dumps(results) + "\n", encoding="utf-8")
        row = results[cell.name]
        nulls = {name: float(np.mean(values)) for name, values in row["nulls"].items()}
        print(
            f"{cell.name}: {np.mean(row['psnr']):.2f} ± {np.std(row['psnr'], ddof=1):.2f} dB, best null "
            f"{max(nulls, key=nulls.__getitem__)} {max(nulls.values()):.2f}, others' update {nulls[OTHERS]:.2f}, "
            f"{row['right_labels']}/{images} labels, {row['seconds_per_image']:.1f} s an image",
            flush=True,
        )
    many = 20 if options.small else LABELS
    for cell in (cell for cell in cells if cell.method == "idlg"):
        name = f"{cell.name}, labels of single images"
        if name not in results:
            results[name] = labels_read(cell, many)
            store.write_text(json.dumps(results) + "\n", encoding="utf-8")
        print(f"{name}: {results[name]['right']} of {results[name]['of']} right")
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        if any(name.startswith(f"{dataset}, ") and "pictures" in row for name, row in results.items()):
            draw(results, dataset, options.out)


if __name__ == "__main__":
    main()
