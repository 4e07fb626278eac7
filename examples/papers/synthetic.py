"""Labelled synthetic images: keeping them, looking at them, and measuring what they are good for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from privfl.algorithms.generative.server_training import train_classifier
from privfl.errors import DataError
from privfl.federation.task import Task
from privfl.metrics.classification import classification
from privfl.metrics.generative import frechet_distance, kernel_distance
from privfl.models import Network, build
from privfl.models.flat_network import flatten
from privfl.simulation.callbacks import Simulation
from privfl.simulation.run_directory import Metrics

ROWS_AT_ONCE = 1000
GAP = 1
"""White pixels between two images of a sheet."""


@dataclass(frozen=True)
class SyntheticSet:
    """Labelled images.

    Args:
        images: float [N, ...].
        labels: class numbers, int64 [N].
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or self.labels.dim() != 1:
            raise DataError(
                f"{len(self.images)} images have labels of shape {tuple(self.labels.shape)}; give one label each"
            )

    def save(self, path: Path) -> None:
        """Write the arrays ``images`` and ``labels`` to the ``.npz`` file ``path``."""
        np.savez_compressed(path, images=self.images.cpu().numpy(), labels=self.labels.cpu().numpy())

    @classmethod
    def load(cls, path: Path) -> SyntheticSet:
        """What :meth:`save` wrote. Nothing is unpickled, so the file may come from anybody."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))


@dataclass
class SyntheticImageLog:
    """Keeps the synthetic images of a run: give it to ``simulate`` as a callback.

    Args:
        every: rounds between two kept sets; the first and the last round are kept too.
        folder: where every set is written to as ``round-<rounds done>.npz``, and where sets of a run that was
            interrupted are read from; ``None`` keeps them in memory alone.
        sets: number of rounds done → the set after them.
    """

    every: int = 10
    folder: Path | None = None
    sets: dict[int, SyntheticSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.folder.glob("round-*.npz")):
                self.sets[int(path.stem.removeprefix("round-"))] = SyntheticSet.load(path)

    def __call__(self, simulation: Simulation, line: Metrics) -> None:
        done = simulation.round
        if done == 1 or done % self.every == 0 or done == simulation.schedule.rounds:
            server = simulation.server
            self.sets[done] = SyntheticSet(server["images"].cpu().clone(), server["labels"].cpu().clone())
            if self.folder is not None:
                self.sets[done].save(self.folder / f"round-{done:05d}.npz")

    @property
    def last(self) -> SyntheticSet:
        """The newest set."""
        return self.sets[max(self.sets)]


@dataclass(frozen=True)
class Features:
    """The features of one trained network, for FID and KID: what the distances mean depends on it.

    Args:
        name: which network, trained on what; belongs to every number that is computed with it.
        network: gives ``features(images)``.
    """

    name: str
    network: Network

    def __call__(self, images: Tensor) -> Tensor:
        """Features [n, d] of ``images`` [n, ...]."""
        with torch.no_grad():
            return torch.cat([self.network.features(part) for part in torch.split(images, ROWS_AT_ONCE)])


def trained_features(
    inputs: Tensor, targets: Tensor, classes: int, *, source: str, epochs: int = 3, width: int = 64, seed: int = 0
) -> Features:
    """The last hidden layer of McMahan's CNN after Adam on the images ``inputs`` [n, C, H, W] and ``targets`` [n].

    Stands in for Inception-v3, whose weights have to be downloaded and which has seen other pictures than small grey
    ones: values cannot be compared with FIDs that others publish. ``source`` says for the name what the images are;
    take public ones, or ones that no client of the run holds.
    """
    shape = tuple(inputs.shape[1:])
    network = build("two-cnn", shape, classes, hidden=(width,), seed=seed)
    train_classifier(network, flatten(network), inputs, targets, epochs=epochs, seed=seed)
    return Features(f"two-cnn with {width} features, {epochs} epochs on {source}, seed {seed}", network)


def generative_scores(features: Features, real: Tensor, synthetic: Tensor) -> dict[str, float]:
    """FID and KID between ``synthetic`` [n, ...] and ``real`` [m, ...] images, on one scale of pixels."""
    first, second = features(real), features(synthetic)
    return {"fid": frechet_distance(first, second), "kid": kernel_distance(first, second)}


def classifier_scores(task: Task, synthetic: SyntheticSet, *, epochs: int = 150, seed: int = 0) -> dict[str, float]:
    """Test metrics on all of the task's held-out data of its model, newly trained on ``synthetic`` alone.

    With ``train_accuracy`` on the synthetic set itself, which shows whether training has converged.
    """
    network = task.model(seed).to(synthetic.images.device)
    train_classifier(network, flatten(network), synthetic.images, synthetic.labels, epochs=epochs, seed=seed)
    scores = classification(_logits(network, task.test_inputs), task.test_targets)
    trained = classification(_logits(network, synthetic.images), synthetic.labels)
    return {**scores, "train_accuracy": trained["test_accuracy"]}


def _logits(network: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.split(inputs, ROWS_AT_ONCE)])


def contact_sheet(synthetic: SyntheticSet, title: str = "") -> Figure:
    """All images of a set, one row for each class."""
    classes = sorted(set(synthetic.labels.tolist()))
    rows = [synthetic.images[synthetic.labels == label] for label in classes]
    return _sheet(rows, [str(label) for label in classes], title, "class")


def evolution(sets: Mapping[int, SyntheticSet], title: str = "", per_class: int = 1) -> Figure:
    """The first ``per_class`` images of every class, one row for each kept round."""
    rows = []
    for synthetic in sets.values():
        classes = sorted(set(synthetic.labels.tolist()))
        rows.append(torch.cat([synthetic.images[synthetic.labels == label][:per_class] for label in classes]))
    return _sheet(rows, [str(number) for number in sets], title, "rounds done")


def _sheet(rows: list[Tensor], names: list[str], title: str, axis: str) -> Figure:
    """Rows of images [C, H, W] in [0, 1], grey or colour, with a name in front of each row."""
    mosaic = tiled(rows)
    height, width = rows[0].shape[2:]
    columns = max(len(row) for row in rows)
    size = (0.45 * columns * width / height + 1.0, 0.45 * len(rows) + (0.6 if title else 0.2))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(mosaic.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([place * (height + GAP) + height / 2 - 0.5 for place in range(len(rows))], names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel(axis, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def tiled(rows: list[Tensor]) -> Tensor:
    """One picture [height, width] (or [height, width, 3]) of rows of images [n, C, H, W], white where there is none."""
    channels, height, width = rows[0].shape[1:]
    columns = max(len(row) for row in rows)
    whole = torch.ones(channels, len(rows) * (height + GAP) - GAP, columns * (width + GAP) - GAP)
    for down, row in enumerate(rows):
        for right, image in enumerate(row):
            top, left = down * (height + GAP), right * (width + GAP)
            whole[:, top : top + height, left : left + width] = image.clamp(0, 1)
    return whole.movedim(0, -1).squeeze(-1)
