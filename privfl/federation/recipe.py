"""How a task came about: what a file must say so that it can be had again, and hashes that tell its data apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privfl.data.catalog import info
from privfl.data.catalog import options as dataset_options
from privfl.data.label_noise import LABEL_NOISE, LabelNoise
from privfl.data.local_tests import LocalTests
from privfl.data.mapped import Rows
from privfl.data.own_file import Arrays
from privfl.data.partitions import PARTITIONS, Partition
from privfl.errors import ConfigError, unknown
from privfl.schema import Named, Registries

REGISTRIES: Registries = {Partition: PARTITIONS, LabelNoise: LABEL_NOISE}
_PIECE = 1 << 22
"""Values hashed at once: what is larger than memory is read piece by piece."""


@dataclass(frozen=True)
class Recipe:
    """How a task came about: a dataset of the catalog, a file, a function that returns it, or data handed over.

    Args:
        task: ``module:function``, of no arguments or of the seed, which returns the task.
        arrays: a file with data of one's own.
        dataset: name in the catalog and options; ``seed`` is the run's unless it is among them.
        partition, label_noise, local_tests: what is done with the dataset or the file.
        model: name or ``module:Name``, and options; ``None`` takes the default for the dataset's inputs.
        loss: ``cross-entropy``, ``mean-squared-error``, ``huber``, ``binary-cross-entropy``, ``token-cross-entropy`` or
            ``module:Name``, and its arguments; ``None`` is that of the task's kind.
        metrics: of one's own, each ``module:function`` and arguments: ``metric(outputs, targets)`` gives a number or
            numbers by name, for the held-out rows.
        data: hashes and names of data that came from Python, see :meth:`privfl.federation.task.Task.describe`.
    """

    task: str | None = None
    arrays: Arrays | None = None
    dataset: Named | None = None
    partition: Partition | None = None
    label_noise: LabelNoise | None = None
    local_tests: LocalTests | None = None
    model: Named | None = None
    loss: Named | None = None
    metrics: tuple[Named, ...] = ()
    data: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.arrays is not None:
            if self.task is not None or self.dataset is not None:
                raise ConfigError("the file names arrays and other data as well (task, [dataset]); keep one")
            if self.partition is not None and self.arrays.client is not None:
                raise ConfigError(
                    f"arrays.client says whose each row is ('{self.arrays.client}'), and [partition] would deal the "
                    "rows out anew; leave one of them out"
                )
            return
        if self.dataset is None:
            for name in ("partition", "label_noise", "local_tests", "model", "loss", "metrics"):
                if getattr(self, name) not in (None, ()):
                    raise ConfigError(
                        f"[{name}] stands beside {'task' if self.task else '[data]'}, whose function decides it; leave "
                        "it out, or name a [dataset] instead"
                    )
            return
        if self.task is not None or self.data is not None:
            raise ConfigError("the file names a [dataset] and data from Python as well (task, [data]); keep one")
        valid = [*dataset_options(info(self.dataset.name).name), "seed"]
        for key in self.dataset.options:
            if key not in valid:
                raise unknown("key", f"dataset.{key}", [f"dataset.{name}" for name in ("name", *valid)])


def content_hash(values: Rows) -> str:
    """A hash of type, shape and content of ``values``, the same for a tensor and for a memory map of equal rows.

    A memory map is read once, from front to back.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{values.dtype} {tuple(values.shape)}".encode())
    step = max(1, _PIECE // max(1, math.prod(values.shape[1:])))
    for start in range(0, len(values), step):
        piece: Tensor = values[start : start + step]
        digest.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
