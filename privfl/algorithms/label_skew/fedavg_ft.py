"""FedAvg-FT: after every round the server trains the head of the mean model on a few balanced images of its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.algorithms.base import Round, Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.errors import ConfigError
from privfl.federation.context import RunContext
from privfl.files import UNREADABLE
from privfl.models.flat_network import fill, flatten
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.validation import check_count, check_number


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg-FT, ReBaFL's baseline (Xu et al., arXiv 2303.06314, §3.3): the server tunes the head that it averaged.

    After every aggregation come ``epochs`` of SGD on the cross-entropy of the server's images, in shuffled batches of
    the training settings' ``batch_size``; the body stays as it was averaged, bit by bit, and the momentum starts anew.
    The tuned model is what the next round trains and what is tested.

    The images must be the server's own: not clients' rows, which no claim would then cover, and not test rows, on which
    the model would be tested after training (the paper's code takes them from there). That is not checked.
    :func:`privfl.data.set_aside.set_aside` takes rows out of a dataset and returns the others, for a task built in
    code. A configuration deals all rows of its dataset to clients, those in such a file too: there the images must come
    from elsewhere. A run that is resumed refuses a file whose content has changed.

    Privacy is FedAvg's: what the server does to the mean without clients' data is post-processing.

    Differs from the paper's code: features are computed once a round, in evaluation mode.

    Args:
        images: path of an ``.npz`` file with the arrays ``images`` [N, ...] and ``labels`` [N], equally many of each
            class; the paper has 300 in all. Without a file nothing is tuned, which is FedAvg, and the run says so.
        epochs: passes over the images.
        learning_rate: > 0.
        momentum: in [0, 1).
        weight_decay: ≥ 0.
    """

    name: ClassVar[str] = "fedavg-ft"
    needs_classes: ClassVar[bool] = True
    own: ClassVar[tuple[Tensor, Tensor] | None] = None
    """As part of a run: the server's images [N, ...] and labels [N]."""
    digest: ClassVar[Tensor]
    """As part of a run with images: the SHA-256 of what the file holds, uint8 [32]."""
    images: str = ""
    epochs: int = 5
    learning_rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("fedavg-ft's epochs", self.epochs)
        check_number("fedavg-ft's learning_rate", self.learning_rate, 0, above=True)
        check_number("fedavg-ft's weight_decay", self.weight_decay, 0)
        check_number("fedavg-ft's momentum", self.momentum, 0, 1, below=True)

    def bind(self, context: RunContext) -> Self:
        bound = super().bind(context)
        object.__setattr__(bound, "own", own := _load(self.images, context) if self.images else None)
        if own is not None:
            content = b"".join(part.cpu().numpy().tobytes() for part in own)
            object.__setattr__(bound, "digest", torch.tensor([*hashlib.sha256(content).digest()], dtype=torch.uint8))
        return bound

    def start(self, parameters: Tensor) -> Tensors:
        server = super().start(parameters)
        return server if self.own is None else {**server, "images": self.digest}

    def begin_round(self, server: Tensors, number: int) -> Tensors:
        if self.own is not None and not torch.equal(server["images"].cpu(), self.digest):
            raise ConfigError(
                f"fedavg-ft's '{self.images}' holds other images than when this run began; restore the file, or start "
                "again with another --out"
            )
        return server

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        after = super().aggregate(server, total, round, training)
        if self.own is None:
            return after
        return {**after, "parameters": self.tuned(after["parameters"], *self.own, training.batch_size, round.generator)}

    def tuned(
        self, parameters: Tensor, images: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator
    ) -> Tensor:
        """``parameters`` [size] with the head after ``epochs`` of SGD on ``images`` [N, ...] and ``labels`` [N]."""
        network = self.context.network()
        fill(network, parameters)
        head: nn.Module = network.head  # type: ignore[assignment]
        with torch.no_grad():
            features = network.features(images)  # type: ignore[operator]
        optimizer = torch.optim.SGD(
            head.parameters(), self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(labels), generator=generator).to(labels.device)
                for rows in torch.split(order, batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(head(features[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return flatten(network)

    def warnings(self, server: Tensors) -> list[str]:
        if self.images:
            return []
        return ["fedavg-ft had no images of its own to tune the head with, so this was FedAvg; set algorithm.images"]


def _load(path: str, context: RunContext) -> tuple[Tensor, Tensor]:
    """The server's images and labels for the network of ``setting``, on its device.

    Raises:
        ConfigError: the network has no head, or the file cannot be read or does not fit the task.
    """
    _ = context.head
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    except UNREADABLE as error:
        raise ConfigError(
            f"fedavg-ft cannot read its images from '{path}' ({error}); give an .npz file with the arrays images and "
            "labels"
        ) from error
    if tuple(images.shape[1:]) != context.input_shape or labels.shape != images.shape[:1]:
        raise ConfigError(
            f"fedavg-ft's '{path}' holds images {tuple(images.shape)} and labels {tuple(labels.shape)}; give images "
            f"[N, {', '.join(map(str, context.input_shape))}] with one label each"
        )
    wrong = (labels < 0) | (labels >= context.classes) | (labels != labels.long())
    counts = torch.bincount(labels[~wrong].long(), minlength=context.classes)
    if bool(wrong.any()) or int(counts.min()) != int(counts.max()) or not len(labels):
        raise ConfigError(
            f"fedavg-ft's '{path}' holds {int(counts.min())} to {int(counts.max())} images of each of the "
            f"{context.classes} classes and {int(wrong.sum())} of others; give equally many of each class"
        )
    if not bool(torch.isfinite(images).all()):
        raise ConfigError(f"fedavg-ft's '{path}' holds values that are not finite; replace them by a fixed value")
    network = context.network()
    kind = flatten(network).dtype if images.is_floating_point() else torch.int64
    images = images.to(context.device, kind)
    try:
        with torch.no_grad():
            network.features(images)  # type: ignore[operator]
    except (RuntimeError, IndexError) as error:
        raise ConfigError(
            f"fedavg-ft's '{path}' holds images that the network cannot read ({str(error).splitlines()[0]}); give "
            "floating-point images, or int64 token ids, scaled as the clients' are"
        ) from error
    return images, labels.to(context.device, torch.int64)
