"""A user's own arrays: what they may hold, and how they become tensors; a bad value is named by its place in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.data.class_names import listed, numbered
from privfl.errors import DataError

SEVERAL = (
    "a model gets one array: if these are several inputs, join their columns into one, np.concatenate([a, b], axis=1), "
    "and split it in the model."
)
_FEW = 8
_LARGEST_EXACT = 2**24
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def _array(name: str, label: str, values: Any) -> np.ndarray[Any, Any]:
    if np.ma.is_masked(values):
        masked = int(np.count_nonzero(np.ma.getmaskarray(values)))
        raise DataError(
            f"{name}: {masked} values of {label} are masked; give them a fixed public value, "
            f"{label.split()[-1]}.filled(value), and an indicator column."
        )
    if isinstance(values, Tensor):
        values = _of_tensor(name, label, values)
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(values, data.Dataset | data.DataLoader):
        first = "" if isinstance(values, data.Dataset) else "of its .dataset "
        raise DataError(
            f"{name}: {label} are a torch {type(values).__name__}, which gives one item at a time; stack the items "
            f"{first}first: x, y = zip(*dataset), then inputs=torch.stack(x) and targets=torch.tensor(y)."
        )
    if isinstance(values, Mapping):
        raise DataError(f"{name}: {label} are a {type(values).__name__} of {_keys(values)}; {SEVERAL}")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise DataError(f"{name}: {label} do not form an array: {_uneven(values)}") from None
    if array.ndim == 0 and hasattr(values, "toarray"):
        raise DataError(f"{name}: {label} are sparse ({type(values).__name__}); give the values of all, .toarray().")
    if array.ndim == 0:
        raise DataError(
            f"{name}: {label} are a single value of type {type(values).__name__}; give one row per example."
        )
    return array


def are_several(values: Any, rows: int) -> bool:
    """Whether ``values`` are a few arrays of ``rows`` rows each, instead of one."""
    if not isinstance(values, tuple | list) or not 2 <= len(values) <= _FEW:
        return False
    return all(getattr(one, "ndim", 0) and len(one) == rows for one in values)


def _keys(values: Mapping[Any, Any]) -> str:
    shown = ", ".join(repr(key) for key in list(values)[:_FEW])
    return shown + (", …" if len(values) > _FEW else "")


def _uneven(values: Any) -> str:
    """Why rows make no array, and the mend."""
    shapes = []
    try:
        if len(values) and are_several(values, len(values[0])):
            return SEVERAL
        for one in values:
            shapes.append(tuple(getattr(one, "shape", None) or np.shape(one)))
            if shapes[-1] != shapes[0]:
                break
    except (TypeError, ValueError, KeyError, IndexError):  # a row is uneven in itself, or there are no rows
        shapes = []
    same = "fill sequences up to one length with an id that stands for nothing else (padding= names it for next-token)"
    if len(shapes) < 2 or shapes[-1] == shapes[0]:
        return f"rows are uneven; {same}, and resize images."
    return f"row 0 has shape {shapes[0]} and row {len(shapes) - 1} {shapes[-1]}; {same}, and resize images."


def _of_tensor(name: str, label: str, values: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array; floating-point types that NumPy does not know become float32, which holds all of them."""
    if values.is_meta or values.layout != torch.strided or values.is_quantized:
        kind = "a meta tensor without values" if values.is_meta else f"of layout {values.layout}"
        kind = f"quantised, {values.dtype}" if values.is_quantized else kind
        raise DataError(
            f"{name}: {label} are {kind}; give plain numbers, for instance .to_dense() or .dequantize() of the tensor."
        )
    values = values.detach().cpu().resolve_conj().resolve_neg()
    known = not values.is_floating_point() or values.dtype in (torch.float16, torch.float32, torch.float64)
    return (values if known else values.float()).numpy()


def as_numbers(name: str, label: str, values: Any) -> np.ndarray[Any, Any]:
    """``values`` as an array of numbers; a memory map stays one.

    Tables whose columns have several types, numbers and truth values say, come as Python objects; these become float64.
    """
    array = _array(name, label, values)
    if array.dtype.kind == "O" and all(issubclass(kind, _NUMBERS) for kind in set(map(type, array.flat))):
        array = array.astype(np.float64)
    if array.dtype.kind not in "fbiu":
        raise DataError(f"{name}: {label} have dtype {array.dtype}; encode them as numbers first.")
    return array


def are_tokens(name: str, label: str, array: np.ndarray[Any, Any], vocabulary: int | None) -> bool:
    """Whether ``vocabulary`` says so; an ``array`` that may be either is refused."""
    whole = array.dtype.kind in "iu" and array.ndim == 2
    if vocabulary is None and whole and array.dtype.itemsize > 1:
        raise DataError(
            f"{name}: {label} are {array.dtype} {array.shape}, which may be token ids or features; give vocabulary "
            "(how many ids there are) for the former, or cast the latter, inputs.astype(np.float32)."
        )
    if vocabulary is not None and not whole:
        raise DataError(
            f"{name}: {label} are {array.dtype} {array.shape} and vocabulary is {vocabulary}; leave it out, or give "
            "token ids, integers [N, L]."
        )
    return vocabulary is not None


def as_labels(name: str, label: str, values: Any, classes: int | None, names: Sequence[str] | None = None) -> Tensor:
    """``values`` as int64 labels [N], none of them negative, or ``classes`` or more; texts go by ``names``."""
    array = _array(name, label, values)
    if names is not None and array.ndim == 1 and all(isinstance(one, str) for one in array.tolist()):
        numbers, strange = numbered(array.tolist(), names)
        if strange is not None:
            raise DataError(
                f"{name}: {label}[{strange}] is {array.tolist()[strange]!r}, and classes are {listed(names)}; mend the "
                "value, or name it in classes."
            )
        return torch.from_numpy(numbers)
    if array.dtype.kind not in "biu":
        flat = array.ravel().tolist()
        wrong = next((at for at, one in enumerate(flat) if not isinstance(one, int | float) or one % 1), None)
        found = f"have dtype {array.dtype}" if wrong is None else f"hold {flat[wrong]!r} at [{wrong}]"
        mend = "give integer labels, or texts and the names of all classes in their order, classes=['no', 'yes']"
        if array.dtype.kind == "f":
            whole = "targets.astype(np.int64)" if wrong is None else "whole numbers"
            mend = f"if they are numbers to predict, give kind='regression'; classes are integers, {whole}"
        raise DataError(f"{name}: {label} {found}; {mend}.")
    if array.ndim != 1:
        mend = "kind says what several columns are: 'regression', 'multi-label' or 'next-token'"
        if array.size == len(array):
            mend = "give one label per row, for instance targets.ravel()"
        raise DataError(f"{name}: {label} have shape {array.shape}; {mend}.")
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 2**63:
        raise DataError(f"{name}: {label} hold {int(array.max())}; number the classes from 0 up.")
    labels = torch.from_numpy(np.array(array, dtype=np.int64, order="C"))
    if len(labels):
        bound = max(int(labels.max()) + 1, 1) if classes is None else classes
        check_range(f"{name}: {label}", labels, bound, "classes")
    return labels


def count_classes(name: str, labels: Tensor) -> int:
    """Number of classes where nobody says it: all up to the largest label must occur; at least 2."""
    present = torch.from_numpy(np.unique(labels.numpy()))
    if int(present[-1]) >= len(present):
        missing = int((present != torch.arange(len(present))).nonzero()[0])
        raise DataError(
            f"{name}: targets go up to {int(present[-1])} and no row is of class {missing}; give classes="
            f"{int(present[-1]) + 1} if that is right, number them anew, np.unique(targets, return_inverse=True)[1], "
            "or give kind='regression' if they are no classes but numbers."
        )
    return max(len(present), 2)


def check_values(label: str, values: Tensor, vocabulary: int | None = None, rows: Tensor | None = None) -> None:
    """Refuse ``values`` [N, ...] that are not finite, or token ids outside the vocabulary.

    Args:
        label: what the user calls them.
        rows: int64 [N], the rows of the user's array that they are; by default the same.

    Raises:
        DataError: with the place in the user's array.
    """
    if not values.numel():
        return
    if vocabulary is not None:
        check_range(label, values, vocabulary, "vocabulary", rows)
    elif not torch.stack(torch.aminmax(values)).isfinite().all():
        index, value = _first(~values.isfinite(), values, rows)
        raise DataError(
            f"{label}{index} is {value}; "
            "replace missing values by a fixed public value (and an indicator column) first."
        )


def check_exact(label: str, values: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> None:
    """Refuse whole ``values`` that float32 may not hold as they are.

    Raises:
        DataError: with the place in the user's array, of which ``values`` are the rows ``rows``, an array of any shape
            with which theirs begins.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize <= 2 or not values.size:
        return
    if int(values.max()) <= _LARGEST_EXACT and int(values.min()) >= -_LARGEST_EXACT:
        return
    place = np.argwhere((values > _LARGEST_EXACT) | (values < -_LARGEST_EXACT))[0].tolist()
    index = [int(rows[tuple(place[: rows.ndim])]), *place[rows.ndim :]]
    raise DataError(
        f"{label}{index} is {values[tuple(place)]}, and float32 holds every whole number up to {_LARGEST_EXACT} only; "
        "divide by a public factor first, in floats."
    )


def check_range(label: str, values: Tensor, bound: int, bound_name: str, rows: Tensor | None = None) -> None:
    """Refuse whole ``values`` [N, ...] outside 0 … ``bound`` − 1; arguments and errors as in :func:`check_values`."""
    low, high = (int(value) for value in torch.aminmax(values))
    if low < 0 or high >= bound:
        index, value = _first((values < 0) | (values >= bound), values, rows)
        raise DataError(
            f"{label}{index} is {value}, outside 0..{bound - 1}; mend the value or raise {bound_name} (now {bound})."
        )


def _first(wrong: Tensor, values: Tensor, rows: Tensor | None) -> tuple[list[int], float | int]:
    """The first place that is ``wrong``, in the user's array, and what ``values`` hold there."""
    places = wrong.nonzero()
    place = places[0 if rows is None else int(rows[places[:, 0]].argmin())].tolist()
    return [place[0] if rows is None else int(rows[place[0]]), *place[1:]], values[tuple(place)].item()
