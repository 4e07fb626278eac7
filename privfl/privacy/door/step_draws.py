"""Random numbers that an algorithm's step asks for, from the client's own stream of the experiment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Draws:
    """The numbers of one client in one round: ``uniform`` in [0, 1) and ``normal`` ones for every step.

    They belong to the experiment, so they are no privacy noise: whoever knows the root seed knows them.
    """

    uniform: int = 0
    normal: int = 0
    stream: torch.Generator | None = None

    def next(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The numbers [uniform] and [normal] of the next step, on the CPU."""
        if not self.uniform and not self.normal:
            return torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)
        uniform = torch.rand(self.uniform, generator=self.stream, dtype=dtype)
        return uniform, torch.randn(self.normal, generator=self.stream, dtype=dtype)
