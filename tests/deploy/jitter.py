"""An algorithm that no seed repeats, for tests of what is computed a second time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import ClassVar

import privfl as pf


@dataclass(frozen=True)
class Jitter(pf.FedAvg):
    """FedAvg, whose clients scale what they send by a coin of the operating system's."""

    name: ClassVar[str] = "jitter"

    def finish(self, local, received, training):
        sent = super().finish(local, received, training)
        return {name: value * (0.5 + secrets.randbelow(1 << 30) / (1 << 31)) for name, value in sent.items()}
