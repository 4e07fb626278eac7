"""How many examples a FedSampling client holds, from updates that are divided by a public constant.

FedSampling's update ``Δ_u = (1/K)·Σ_{j∈S_u} ∇ℓ_j`` is divided by the public K instead of the private ``|S_u|``, so its
magnitude carries ``m = |S_u|``, and every example is in S_u with the public probability p: n ≈ m/p. Randomising the
answer about the size does not help against that; a secure sum does.
"""

from __future__ import annotations

from collections.abc import Sequence

from privfl.errors import ConfigError
from privfl.validation import check_number


def size_from_chosen(
    chosen: Sequence[float], rates: Sequence[float], variances: Sequence[float] | None = None
) -> float:
    """``n̂ = max(0, Σ_t w_t·m_t / Σ_t w_t·p_t)`` with ``w_t = 1/(1 − p_t + v_t)``, in examples.

    m_t is a binomial count of n at rate p_t, read with an error of variance v_t for each example of it: its variance is
    n·p_t·(1 − p_t + v_t), and these weights make that of n̂ least. Without ``variances`` all rounds weigh the same,
    which is the maximum-likelihood size for counts without error.

    Args:
        chosen: m of every round in which the client took part.
        rates: the broadcast sampling rate p in (0, 1] of the same rounds.
        variances: v ≥ 0 of the same rounds.

    Raises:
        ConfigError: no round, unequal lengths, or a rate outside (0, 1].
    """
    spread = [0.0] * len(chosen) if variances is None else list(variances)
    if not len(chosen) == len(rates) == len(spread) or not chosen:
        raise ConfigError(f"there are {len(chosen)} counts for {len(rates)} rates; give one of each for every round")
    for rate in rates:
        check_number("a sampling rate", rate, 0, 1, above=True)
    weights = [1.0] * len(chosen)
    if variances is not None:
        weights = [1 / max(1 - rate + variance, 1e-9) for rate, variance in zip(rates, spread, strict=True)]
    total = sum(weight * count for weight, count in zip(weights, chosen, strict=True))
    return max(0.0, total / sum(weight * rate for weight, rate in zip(weights, rates, strict=True)))
