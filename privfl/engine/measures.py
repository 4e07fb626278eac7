"""What the host asks of an upload before it counts, once, and of a whole stack at once.

Whether an upload is finite, whether it can be too long and in which range it lies all follow from its least and its
largest number. A number of a tensor on a device makes the host wait for it; for a stack all of them come together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.plain_tensors import plain


@dataclass(frozen=True)
class Measures:
    """Of one tensor: its least and its largest number; both are not a number if any is not, and 0 if there are none."""

    lowest: float
    highest: float

    @property
    def finite(self) -> bool:
        """Whether all numbers are."""
        return math.isfinite(self.lowest) and math.isfinite(self.highest)

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(-self.lowest, self.highest)


Measured = Mapping[str, Measures]
"""By the names of an upload's fields; of those that are missing nothing is known yet."""

NOTHING: Measured = MappingProxyType({})


def measures_of(value: Tensor) -> Measures:
    """The measures of ``value``, of floating point and any shape; the host waits for them."""
    if value.numel() == 0:
        return Measures(0.0, 0.0)
    if value.numel() == 1:
        number = float(value)
        return Measures(number, number)
    extremes = torch.aminmax(value.detach())
    lowest, highest = map(float, extremes) if value.device.type == "cpu" else torch.stack(extremes).tolist()
    return Measures(lowest, highest)


def measures_of_stack(uploads: Tensors, clients: int) -> list[Measured]:
    """Of each of ``clients``, the measures of its ``uploads``, which hold [clients, ...] each; the host waits once.

    Of a tensor of a kind of its own, which would answer for itself, nothing is known.
    """
    given = {name: own for name, value in uploads.items() if (own := plain(value)) is not None}
    taken = {
        name: value[:clients].detach().flatten(1)
        for name, value in given.items()
        if value.is_floating_point() and value.numel() > 0 and value.dim() > 1
    }
    if not taken:
        return [NOTHING] * clients
    numbers = [torch.stack([*_extremes(rows)], 1) for rows in taken.values()]
    told = torch.stack([one.double() for one in numbers], 1).tolist()
    return [{name: Measures(*two) for name, two in zip(taken, client, strict=True)} for client in told]


def _extremes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number of each of ``rows`` [N, n]."""
    if rows.device.type == "cpu":
        return rows.amin(1), rows.amax(1)  # 38 µs for 20 rows of 5,386, and 262 by the other
    found: tuple[Tensor, Tensor] = torch.aminmax(rows, dim=1)
    return found
