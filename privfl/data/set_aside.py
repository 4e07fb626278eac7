"""Images that a server owns: taken out of a dataset before it is divided into clients, and kept in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from privfl.data.dataset import Dataset
from privfl.errors import ConfigError, DataError
from privfl.randomness import numpy_stream
from privfl.validation import check_count


def set_aside(dataset: Dataset, path: Path | str, *, per_class: int = 30, seed: int = 0) -> Dataset:
    """Move ``per_class`` training rows of every class of ``dataset`` to the server's file ``path``.

    Returns the dataset without these rows, to be divided into clients: who divides ``dataset`` itself gives clients the
    server's rows. The file is an ``.npz`` with the arrays ``images`` [N, ...] and ``labels`` [N]: N = classes ·
    ``per_class`` rows, drawn from the stream ``set-aside``; a row that the dataset holds twice may stay with a client.

    Raises:
        ConfigError: a class would have no training row left, or the file cannot be written.
        DataError: the rows belong to clients already, so that they are not the server's to take.
    """
    check_count("per_class", per_class)
    if dataset.clients is not None:
        raise DataError(
            f"{dataset.name}: its training rows belong to clients; give the server images from another source"
        )
    labels = dataset.targets.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    if counts.min() <= per_class:
        raise ConfigError(
            f"per_class is {per_class}, but class {int(counts.argmin())} of {dataset.name} has {int(counts.min())} "
            "training rows; set fewer aside"
        )
    stream = numpy_stream(seed, "set-aside")
    drawn = [stream.choice(np.flatnonzero(labels == one), per_class, replace=False) for one in range(dataset.classes)]
    held = torch.from_numpy(np.sort(np.concatenate(drawn)))
    left = torch.ones(len(labels), dtype=torch.bool)
    left[held] = False
    try:
        with Path(path).open("wb") as file:  # np.savez would put .npz behind another name
            np.savez_compressed(file, images=dataset.inputs[held].numpy(), labels=labels[held.numpy()])
    except OSError as error:
        raise ConfigError(
            f"cannot write the server's images to '{path}': {error.strerror}; give a file in a folder that exists"
        ) from error
    kept, inputs = left.nonzero()[:, 0], dataset.inputs
    remaining = inputs[kept] if isinstance(inputs, torch.Tensor) else inputs.only(kept)
    return replace(dataset, inputs=remaining, targets=dataset.targets[kept])
