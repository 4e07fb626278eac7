"""Values that cannot be used, named by their place in the array that the user gave."""

from __future__ import annotations

import torch
from torch import Tensor

from privfl.errors import DataError


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
