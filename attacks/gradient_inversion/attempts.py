"""What a gradient inversion returns, and the repeated attempts that most of them need."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from privfl.errors import PrivflError


class NoReconstruction(PrivflError):
    """Every attempt diverged, so there is no image to show."""


@dataclass(frozen=True)
class Reconstruction:
    """Images that explain an observed gradient.

    Attributes:
        images: [B, C, H, W], pixels in [0, 1], in arbitrary order: match them to the truth before scoring.
        labels: int64 [B], given, inferred or found.
        objective: the attack's objective at ``images``; comparable within one attack only.
        iterations: of the attempt that is returned.
        attempts: how many were made.
        seconds: wall time of all attempts together.
    """

    images: Tensor
    labels: Tensor
    objective: float
    iterations: int
    attempts: int = 1
    seconds: float = 0.0


def best_of(attempt: Callable[[], Reconstruction], attempts: int, enough: float = -math.inf) -> Reconstruction:
    """The attempt with the lowest objective out of at most ``attempts``; stops at one that is not above ``enough``.

    Attempts whose objective is not finite count as failed.

    Raises:
        NoReconstruction: all attempts failed.
    """
    began, made = time.perf_counter(), 0
    best: Reconstruction | None = None
    while made < attempts and (best is None or best.objective > enough):
        made += 1
        found = attempt()
        if math.isfinite(found.objective) and (best is None or found.objective < best.objective):
            best = found
    if best is None:
        raise NoReconstruction(f"all {made} attempts diverged; allow more attempts, or attack a smaller batch")
    return replace(best, attempts=made, seconds=time.perf_counter() - began)
