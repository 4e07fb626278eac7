"""Gaussian noise on updates: once on their sum, or by every client on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from privfl.errors import ConfigError


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of standard deviation ``noise_multiplier`` × the bound of the :class:`Clip` before it.

    Guarantee: for one client whose data is zeroed out this is the Gaussian mechanism with that noise multiplier, for
    who sees the noisy value: with ``at="server"`` the sum is noised once, which protects against the public; with
    ``at="client"`` every client adds its own noise, which protects against the server too. For one example of a
    client the update may swing through twice the bound, so the row ``sample`` is accounted under replace-one.

    ==========================  ========================================================================
    edge case                   what happens
    ==========================  ========================================================================
    ``noise_multiplier = 0``    nothing is added; the claim is ε = ∞
    no ``Clip`` before it       refused: without a bound noise protects nothing
    a client's upload is NaN    it counts as zero in the sum; the public divisor does not change
    NaN, negative, infinite     :class:`~privfl.errors.ConfigError`
    ==========================  ========================================================================

    Args:
        noise_multiplier: z ≥ 0, the standard deviation of the noise divided by the clipping bound.
        at: who adds it: the ``server``, once to the sum, or every ``client`` to its own update.
    """

    noise_multiplier: float
    at: Literal["client", "server"] = "server"

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf:
            raise ConfigError(f"GaussianNoise's noise_multiplier is {self.noise_multiplier!r}; give a number ≥ 0")
        if self.at not in ("client", "server"):
            raise ConfigError(f"GaussianNoise's at is '{self.at}'; choose 'client' or 'server'")
