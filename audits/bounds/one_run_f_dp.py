"""One-run audits by the whole trade-off curve: tighter than counting alone where δ or a known curve matters."""

from __future__ import annotations

import math
from collections.abc import Callable

from audits.bounds.bound import LowerBound, error_level
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.one_run_search import check_guesses, largest_refuted

Missed = Callable[[float], float]
"""Caught with probability r → the least probability of the same guess in the other world: f̄⁻¹, with f̄ = 1 − f."""

_ROUNDING = 1e-9
"""By how much the probabilities must exceed 1 before they are called impossible."""


def epsilon_one_run_f_dp(
    canaries: int,
    guesses: int,
    correct: int,
    *,
    delta: float,
    confidence: float,
    family: GaussianFamily | None = None,
) -> LowerBound:
    """The largest ε that ``correct`` of ``guesses`` guesses about ``canaries`` coins refute, by trade-off curves.

    Each of the m = ``canaries`` is included independently with probability ½; the number of guesses was fixed in
    advance. Without a ``family`` the curve is that of (ε, δ)-DP, which assumes nothing. With one, the largest noise
    multiplier is found that the guesses do not refute, and ε is that of the family's member, the scores having seen
    ``observed_steps`` of its ``steps``.

    Raises:
        ConfigError: not 0 ≤ correct ≤ guesses ≤ canaries with a canary, or ``delta`` or ``confidence`` out of range.

    Source: Mahloujifar, Melis & Chaudhuri, ICML 2025, algorithm 3 with an alphabet of two, see :func:`f_dp_refuted`.
    """
    level = error_level(delta, confidence)
    check_guesses(canaries, guesses, correct)
    details: dict[str, object] = {"canaries": int(canaries), "guesses": int(guesses), "correct": int(correct)}
    if family is None:
        epsilon = largest_refuted(
            lambda value: f_dp_refuted(canaries, guesses, correct, approximate_dp_missed(value, delta), level)
        )
        return LowerBound(epsilon=epsilon, delta=delta, confidence=confidence, method="one run, f-DP", details=details)
    family.epsilon(math.inf, delta)
    strength = largest_refuted(
        lambda inverse: f_dp_refuted(
            canaries, guesses, correct, family.missed(1 / inverse if inverse > 0 else math.inf), level
        ),
        family.precision,
    )
    noise = 1 / strength if strength > 0 else math.inf
    return LowerBound(
        epsilon=family.epsilon(noise, delta),
        delta=delta,
        confidence=confidence,
        method="one run, f-DP with a Gaussian trade-off curve",
        assumes=family.assumption,
        details={**details, "noise_multiplier": noise if math.isfinite(noise) else "inf"},
    )


def f_dp_refuted(canaries: int, guesses: int, correct: int, missed: Missed, level: float) -> bool:
    """Whether ``correct`` or more right guesses have probability below ``level`` under f-DP, ``missed`` being f̄⁻¹.

    Why: let T be the number of right guesses and p_j = P[T = j]. Turning one canary's coin makes its right guess wrong
    and changes no other, so P[right, T ≥ i+1] ≤ f̄(P[wrong, T ≥ i]); averaged over m canaries, f̄ being concave,
    r_{i+1} = Σ_{j>i} (j/m)·p_j ≤ f̄(h_i) with h_i = Σ_{j≥i} ((k−j)/m)·p_j for k guesses. If P[T ≥ c] ≥ level, the p_j
    that keep all these with the least total have exactly ``level`` at j = c and, below, just what the next inequality
    asks for; a total above 1 is impossible.

    Source: Mahloujifar, Melis & Chaudhuri, ICML 2025, theorem 9 and algorithm 3.
    """
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    everything = guesses / canaries
    for number in range(correct - 1, -1, -1):
        needed = missed(right)
        if needed <= wrong:
            break  # nothing moves any more
        right += number / (guesses - number) * (needed - wrong)
        wrong = needed
        if right + wrong > everything * (1 + _ROUNDING):
            return True
    return False


def approximate_dp_missed(epsilon: float, delta: float) -> Missed:
    """f̄⁻¹ of (ε, δ)-DP: the largest of 0, e^−ε·(r − δ) and 1 − δ − e^ε·(1 − r)."""
    shrink, grow = math.exp(-epsilon), math.exp(epsilon)
    return lambda caught: max(0.0, shrink * (caught - delta), 1 - delta - grow * (1 - min(caught, 1.0)))
