"""Batches that stand for one class each, from which LLG* and LLG+ learn what labels do to a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.auxiliary import Records
from privfl.errors import ConfigError

Dummy = Literal["zeros", "ones", "random"]


@dataclass(frozen=True)
class PureBatches:
    """Batches of one class each, drawn with replacement from ``public``; a class without examples is refused."""

    public: Records
    size: int
    seed: int

    def __call__(self, label: int, repeat: int) -> Tensor:
        """``size`` inputs of class ``label``; the same for the same (label, repeat)."""
        rows = (self.public.targets == label).nonzero().flatten()
        if len(rows) == 0:
            raise ConfigError(f"the public data hold no example of class {label}; use llg's variant 'plain' or 'dummy'")
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * repeat + label)
        return self.public.inputs[rows[torch.randint(len(rows), (self.size,), generator=generator)]]


@dataclass(frozen=True)
class DummyBatches:
    """Inputs of ``shape`` [B, ...] that show nothing: zeros, ones, or uniform in [0, 1]."""

    kind: Dummy
    shape: tuple[int, ...]
    seed: int

    def __call__(self, label: int, repeat: int) -> Tensor:
        """The batch; a random one is the same for the same (label, repeat)."""
        if self.kind != "random":
            return torch.full(self.shape, 1.0 if self.kind == "ones" else 0.0)
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * repeat + label)
        return torch.rand(self.shape, generator=generator)
