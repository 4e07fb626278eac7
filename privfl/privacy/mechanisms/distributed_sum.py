"""What is public about a secure sum before it begins: the terms on which noise in shares is sized."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privfl.errors import ConfigError
from privfl.privacy.secagg.rounding import DEFAULT_BETA, rounded_norm_bound

UP = 1 + 2.0**-30
"""What float64 may lose in norms and variances is charged, not ignored."""


@dataclass(frozen=True)
class DistributedSum:
    """What is public about a secure sum before it begins, and what its noise depends on.

    Args:
        dimension: d ≥ 1, numbers in a client's vector, all fields and padding together.
        levels: the clipping bound C in steps of the grid, C / step > 0.
        cohort: clients that may take part, ≥ 1.
        survivors: the fewest *honest* clients that any sum can contain, from 1 to ``cohort``.
        beta: β of the rounding, in (0, 1): at most so often is a rounding too long and drawn again.

    Raises:
        ConfigError: one of them is outside its range.
    """

    dimension: int
    levels: float
    cohort: int
    survivors: int
    beta: float = DEFAULT_BETA

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ConfigError(f"a secure sum of vectors with {self.dimension} numbers: give at least 1")
        if not 0 < self.levels < math.inf:
            raise ConfigError(
                f"the clipping bound is {self.levels!r} steps of the grid; choose a positive finite number"
            )
        if not 1 <= self.survivors <= self.cohort:
            raise ConfigError(
                f"{self.survivors} honest survivors are guaranteed of a cohort of {self.cohort}; the number must lie "
                f"between 1 and {self.cohort}: raise the threshold, or assume fewer corrupt clients"
            )
        rounded_norm_bound(self.levels, self.dimension, self.beta)

    @property
    def l2_norm(self) -> float:
        """The bound on the L2 norm of a client's integer vector."""
        return rounded_norm_bound(self.levels, self.dimension, self.beta) * UP

    @property
    def lengthening(self) -> float:
        """By which factor rounding may lengthen a vector of norm C; ε grows by it, so take levels well above √d / 2."""
        return self.l2_norm / self.levels

    @property
    def l1_norm(self) -> float:
        """The bound on its L1 norm: at most √d times the L2 norm, and for integers at most its square."""
        return max(self.l2_norm, min(math.sqrt(self.dimension) * self.l2_norm, self.l2_norm**2))
