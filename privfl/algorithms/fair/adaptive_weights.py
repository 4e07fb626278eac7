"""Weights that grow with a client's loss, and the power by which they do: GRP-FED's adaptive aggregation.

λ_m = L_m^q / Σ_i L_i^q over the clients that took part, with a power q that follows the spread of the losses. There are
two ways to the same mean: with all losses at hand, and from sums alone (losses, their squares, and a count first; then
updates times (L_m/s)^q and these numbers), which is what secure aggregation leaves of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_LOSS = 1e-12
"""Losses count as at least this much, so that their logarithm exists."""
NO_SPREAD = 1e-12
"""If two spreads add up to no more than this, neither is larger than the other."""


def next_power(power: Tensor, before: Tensor, after: Tensor, step: float, largest: float) -> Tensor:
    """The power q after the spread of the losses went from ``before`` to ``after``, float64 [].

    ``q + η_q·(σ' − σ)/((σ' + σ)/2)``, clamped to [0, ``largest``]; the change is at most 2η_q either way. A ``before``
    of NaN says that there was no spread yet, and q stays.

    Source: GRP-FED (arXiv 2108.13858), equation (2). Differs by the clamp, which the paper lacks (a negative power
    would favour clients that fare well), and by leaving q alone if both spreads vanish.

    Args:
        power: q ≥ 0, [].
        before: σ_t, the population standard deviation of the losses, or NaN; [].
        after: σ_{t+1}; [].
        step: η_q ≥ 0.
        largest: q_max > 0.
    """
    middle = (before + after) / 2
    known = before.isfinite() & after.isfinite() & (2 * middle > NO_SPREAD)
    change = torch.where(known, (after - before) / torch.where(known, middle, 1), 0)
    return (power + step * change).clamp(0, largest)


def loss_weights(losses: Tensor, power: Tensor | float) -> Tensor:
    """λ_m = L_m^q / Σ L_i^q as float64 [m], computed as soft-max(q·log L), so that nothing over- or underflows.

    Source: GRP-FED (arXiv 2108.13858), equation (3), over the participants only. Losses below 1e-12 count as 1e-12.

    Args:
        losses: L [m], finite.
        power: q ≥ 0, finite.
    """
    return torch.softmax(power * losses.double().clamp_min(SMALLEST_LOSS).log(), 0)


def capped(weights: Tensor, largest: float) -> Tensor:
    """``weights`` [m] with none above ``largest``: what is cut off goes to the others in proportion (water-filling).

    The result is min(``largest``, c·λ) with the one c for which it sums to 1. If ``largest`` is below 1/m no such
    weights exist, and all are 1/m. Weights that underflowed to zero take part as equals.

    Args:
        weights: λ ≥ 0 that sum to 1, float64 [m].
        largest: λ_max in (0, 1].
    """
    count = len(weights)
    if largest * count <= 1:
        return torch.full_like(weights, 1 / count)
    if float(weights.max()) <= largest:
        return weights
    ordered, places = weights.clamp_min(torch.finfo(weights.dtype).tiny).sort(descending=True)
    left = 1 - largest * torch.arange(count, dtype=weights.dtype, device=weights.device)
    scale = left / ordered.flip(0).cumsum(0).flip(0)  # c, if the first k weights are cut to the cap, for every k
    fits = scale * ordered <= largest * (1 + 1e-12)
    first = int(fits.to(torch.uint8).argmax())
    filled = torch.where(torch.arange(count, device=weights.device) < first, largest, scale[first] * ordered)
    return torch.empty_like(weights).scatter_(0, places, filled)


def spread(losses: Tensor) -> Tensor:
    """Population standard deviation σ of ``losses`` [m], float64 []."""
    return losses.double().std(correction=0)


def spread_from_sums(total: Tensor, squares: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, population standard deviation σ and scale s of losses, from ΣL, ΣL² and their number; float64 [] each.

    s = mean + σ·√(m − 1) is never below the largest loss (Samuelson's inequality), so every (L/s)^q lies in [0, 1] and
    fits a fixed-point grid, and it is met when one loss exceeds equal others.
    """
    total, squares, count = total.double(), squares.double(), count.double()
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean, deviation, (mean + deviation * (count - 1).clamp_min(0).sqrt()).clamp_min(SMALLEST_LOSS)


def share(loss: Tensor, scale: Tensor, power: Tensor) -> Tensor:
    """(L/s)^q, the unnormalised weight that a client computes itself; of the type of ``loss``, []."""
    ratio = loss.double().clamp_min(SMALLEST_LOSS).log() - scale.double().log()
    return (power.double() * ratio).exp().to(loss.dtype)
