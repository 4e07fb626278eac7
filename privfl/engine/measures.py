"""What the host asks of an upload before it counts, of a whole stack at once.

A number of a tensor on a device makes the host wait for it. Whether an upload is finite, how long it is and in which
range it lies take four such numbers a client; for a stack they come together, and the host waits once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from privfl.algorithms.base import Tensors


@dataclass(frozen=True)
class Measures:
    """Of one tensor: the sum of its numbers, its L2 norm, each in the tensor's type, and its least and largest number.

    They are not finite where a number is not, and may be so where all are.
    """

    total: float
    norm: float
    lowest: float
    highest: float


Measured = Mapping[str, Measures]
"""By the names of an upload's fields; of those that are missing nothing is known yet."""

NOTHING: Measured = MappingProxyType({})


def measures_of(uploads: Tensors, clients: int) -> list[Measured]:
    """Of each of ``clients``, the measures of its ``uploads``, which hold [clients, ...] each; the host waits once."""
    taken = {
        name: value[:clients].detach().flatten(1)
        for name, value in uploads.items()
        if value.is_floating_point() and value.numel() > 0 and value.dim() > 1
    }
    if not taken:
        return [NOTHING] * clients
    numbers = [
        torch.stack([rows.sum(1), torch.linalg.vector_norm(rows, dim=1), *torch.aminmax(rows, dim=1)], 1)
        for rows in taken.values()
    ]
    told = torch.stack([one.double() for one in numbers], 1).tolist()
    return [{name: Measures(*four) for name, four in zip(taken, client, strict=True)} for client in told]
