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

    def next(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers [uniform] and [normal] of the next step, of the type and on the device of ``like``."""
        if not self.uniform and not self.normal:
            return like[:0], like[:0]
        uniform = torch.rand(self.uniform, generator=self.stream, dtype=like.dtype)
        normal = torch.randn(self.normal, generator=self.stream, dtype=like.dtype)
        return uniform.to(like.device), normal.to(like.device)
