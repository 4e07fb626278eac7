"""How many guesses to make in a one-run audit, decided before the run by what is claimed of it."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from audits.bounds.one_run import FEW, epsilon_one_run, guess_pairs


def planned_guesses(canaries: int, claim: float, *, delta: float, confidence: float) -> tuple[int, int]:
    """The numbers of guesses "in" and "out", (k, k), that would certify most if the claim were tight and Gaussian.

    Scores are taken as N(0, 1) and N(μ, 1) with μ the Gaussian mechanism's at (``claim``, ``delta``). Nothing of the
    run enters, so no correction is due. Without a finite claim, or for fewer than
    :data:`~audits.bounds.one_run.FEW` canaries, all are guessed about.
    """
    pairs = guess_pairs(canaries)
    if canaries < FEW or not (0 < claim < math.inf and 0 < delta < 1):
        return pairs[0]
    mu = gaussian_strength(claim, delta)
    best, chosen = -1.0, pairs[0]
    shares = sorted({k for pair in pairs for k in (pair[0], int(pair[0] / math.sqrt(2)))}, reverse=True)
    for k in shares:
        correct = math.floor(2 * k * _right(k / canaries, mu))
        found = epsilon_one_run(canaries, 2 * k, correct, delta=delta, confidence=confidence).epsilon
        if found > best:
            best, chosen = found, (k, k)
    return chosen


def gaussian_strength(epsilon: float, delta: float) -> float:
    """μ of the Gaussian mechanism N(0, 1) against N(μ, 1) that is exactly (``epsilon``, ``delta``)-DP.

    Source: Balle and Wang, ICML 2018: δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).
    """

    def excess(mu: float) -> float:
        tail = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
        return float(special.ndtr(mu / 2 - epsilon / mu)) - math.exp(tail) - delta

    highest = 10 + 4 * math.sqrt(epsilon) + epsilon
    if excess(highest) <= 0:  # δ is within rounding of 1
        highest += 30
    return float(optimize.brentq(excess, 1e-9, highest, xtol=1e-9))


def _right(share: float, mu: float) -> float:
    """The share of right guesses "in" among the ``share`` ≤ ½ of the canaries that score highest."""

    def above(threshold: float) -> float:
        return float(special.ndtr(mu - threshold) + special.ndtr(-threshold)) / 2

    threshold = optimize.brentq(lambda t: above(t) - min(share, 0.5), -10 - mu, 10 + mu)
    return float(np.clip(special.ndtr(mu - threshold) / (2 * above(threshold)), 0.5, 1.0))
