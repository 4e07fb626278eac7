"""Targets by kind of task: what they look like, and how a user's own array becomes such a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.arrays import as_labels, as_numbers, check_range, count_classes
from privfl.errors import DataError

TaskKind = Literal["classification", "regression", "multi-label", "next-token"]
"""What is predicted for one row.

* ``classification``: one of several classes; targets int64 [N].
* ``regression``: numbers; targets float32 [N, values].
* ``multi-label``: for each of several labels whether it applies; targets float32 [N, labels] of 0 and 1.
* ``next-token``: at every position the token that follows; targets int64 [N, L] of token ids, or :data:`IGNORED`.
"""
IGNORED = -100
"""The target of a position that does not count, for instance where there is padding: PyTorch's ``ignore_index``."""
_OUTPUTS: dict[TaskKind, str] = {
    "classification": "classes",
    "regression": "values",
    "multi-label": "labels",
    "next-token": "token ids",
}


def counted(kind: TaskKind, outputs: int) -> str:
    """How many outputs a model has for each prediction, in words.

    >>> counted("regression", 1), counted("classification", 10)
    ('1 value', '10 classes')
    """
    return f"{outputs} {_OUTPUTS[kind].removesuffix('s') if outputs == 1 else _OUTPUTS[kind]}"


def as_targets(
    name: str, label: str, values: Any, kind: TaskKind, classes: int | None, names: Sequence[str] | None = None
) -> Tensor:
    """A user's ``values`` as targets of a task of this ``kind``.

    ``classes`` is how many there are, if that is known, and ``names`` what they are called.

    Raises:
        DataError: they are none, with the mend; a bad value is named by its place.
    """
    if kind == "classification":
        return as_labels(name, label, values, classes, names)
    array = as_numbers(name, label, values)
    where = f"{name}: {label}"
    if kind == "next-token":
        if array.dtype.kind not in "iu" or array.ndim != 2:
            raise DataError(
                f"{where} are {array.dtype} {array.shape}; give token ids, integers [N, L], one target for each "
                f"position of the inputs ({IGNORED} where none counts), or None: then each token is predicted from "
                "those before it."
            )
        return torch.from_numpy(np.array(array, dtype=np.int64, order="C"))
    if array.ndim == 1 and kind == "regression":
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] < (2 if kind == "multi-label" else 1):
        wanted = "one or several numbers for each row, [N] or [N, values]"
        if kind == "multi-label":
            wanted = "a column of 0 and 1 for each of several labels, [N, labels]; a single one is a classification"
        raise DataError(f"{where} have shape {np.shape(values)}; {kind} needs {wanted}.")
    targets = torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
    _check_reals(where, targets, kind)
    return targets


def following(name: str, tokens: NDArray[Any], padding: int | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Inputs [N, L − 1] and targets [N, L − 1] of ``tokens`` [N, L]: at every position the token that comes next.

    Where that is ``padding``, nothing counts.

    Raises:
        DataError: they are no sequences of two or more.
    """
    if tokens.dtype.kind not in "iu" or tokens.ndim != 2 or tokens.shape[1] < 2:
        raise DataError(
            f"{name}: inputs are {tokens.dtype} {tokens.shape}; next-token needs sequences of two or more token ids, "
            "integers [N, L]."
        )
    targets = np.array(tokens[:, 1:], dtype=np.int64)
    if padding is not None:
        targets[targets == padding] = IGNORED
    return tokens[:, :-1], targets


def width(name: str, targets: Tensor, kind: TaskKind, classes: int | None, vocabulary: int | None) -> int:
    """How many outputs a model of the task needs for each prediction.

    Raises:
        DataError: what was said of it, or the lack of it, does not fit.
    """
    if kind == "classification":
        return count_classes(name, targets) if classes is None else classes
    if classes is not None:
        raise DataError(f"{name}: classes is {classes}, but {kind} has no classes; leave it out.")
    if kind != "next-token":
        return int(targets.shape[1])
    if vocabulary is None:
        raise DataError(f"{name}: next-token predicts token ids, so vocabulary (how many there are) must be given.")
    return vocabulary


def check_targets(name: str, label: str, targets: Tensor, kind: TaskKind, outputs: int, shape: torch.Size) -> None:
    """Refuse ``targets`` that are none of a task of this ``kind`` with so many ``outputs`` and inputs of ``shape``.

    Raises:
        DataError: with what is wrong and the mend.
    """
    real = kind in ("regression", "multi-label")
    dtype = torch.float32 if real else torch.int64
    wanted = {"classification": (), "next-token": tuple(shape[1:])}.get(kind, (outputs,))
    if targets.dtype != dtype or targets.shape[1:] != wanted or targets.ndim == 0:
        found = f"{str(targets.dtype).removeprefix('torch.')} {tuple(targets.shape)}"
        rows = ", ".join(map(str, ("N", *wanted)))
        raise DataError(f"{name}: {label} are {found}; they must be {str(dtype).removeprefix('torch.')} [{rows}].")
    if len(targets) == 0:
        return  # their number is held against that of the inputs
    where = f"{name}: {label}"
    if kind == "classification":
        check_range(where, targets, outputs, "classes")
    elif kind == "next-token":
        check_range(where, targets.where(targets != IGNORED, 0), outputs, "vocabulary")
    else:
        _check_reals(where, targets, kind)


def strata(targets: Tensor, kind: TaskKind) -> NDArray[np.int64]:
    """The class [N] of every row, by which rows are held out or dealt to clients; one class where there are none."""
    if kind == "classification":
        return targets.cpu().numpy()
    return np.zeros(len(targets), dtype=np.int64)


def _check_reals(where: str, targets: Tensor, kind: TaskKind) -> None:
    binary = kind == "multi-label"
    wrong = (((targets != 0) & (targets != 1)) if binary else ~targets.isfinite()).nonzero()
    if len(wrong):
        place = wrong[0].tolist()
        mend = "multi-label needs 0 or 1 for each label" if binary else "leave rows without a finite target out"
        raise DataError(f"{where}{place} is {float(targets[tuple(place)]):g}; {mend}.")
