"""What the server makes of the size answers: an estimate of the total, and from it the sampling rate of the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privfl.errors import ConfigError


@dataclass(frozen=True)
class SizeEstimate:
    """The server's estimate of the total number of samples.

    ``raw`` is the unbiased estimate (5) of the total of the *clipped* sizes, ``value`` the usable one after (8):
    ``clients·lo`` and 1 from below (``floored``), ``clients·hi`` from above (``capped``). Both bounds are public, so
    this is post-processing; it biases ``value`` towards the range where the noise is large.
    """

    raw: float
    value: float
    clients: int
    floored: bool
    capped: bool


@dataclass(frozen=True)
class Rate:
    """A sampling rate p in (0, 1]; ``capped`` if K asked for more, and then nothing is amplified by sampling."""

    value: float
    capped: bool


def sampling_rate(samples_per_round: float, total: float, contacted_fraction: float = 1.0) -> Rate:
    """Equation (9): p = min(1, K/(r·N̂)), the probability with which each sample is used in a round.

    Account with p, never with r·p: who is contacted is visible to the server.

    Args:
        samples_per_round: K, the public number of samples wanted per round, positive.
        total: N̂, the :attr:`SizeEstimate.value`, at least 1 by construction.
        contacted_fraction: r in (0, 1], the fraction of the clients contacted each round.

    Raises:
        ConfigError: an argument is outside its range.

    >>> sampling_rate(2048, 100_000.0)
    Rate(value=0.02048, capped=False)
    """
    for name, value in (("number of samples per round", samples_per_round), ("estimated total size", total)):
        if not 0 < value < math.inf:
            raise ConfigError(f"the {name} is {value}: it must be positive and finite.")
    if not 0 < contacted_fraction <= 1:
        raise ConfigError(f"the contacted fraction of clients is {contacted_fraction}: it must lie in (0, 1].")
    wanted = samples_per_round / (contacted_fraction * total)
    return Rate(min(1.0, wanted), capped=wanted > 1)
