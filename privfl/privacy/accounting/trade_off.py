"""What a claim (ε, δ) leaves to an attacker: bounds on every test that tells two neighbouring datasets apart.

A test that raises a false alarm with probability α misses with probability at least
f(α) = max(0, 1 − δ − e^ε·α, e^−ε·(1 − δ − α)), the trade-off function of (ε, δ)-differential privacy (Wasserman and
Zhou 2010; Kairouz, Oh and Viswanath 2015; Dong, Roth and Su 2022). It holds whatever else the attacker knows. A
mechanism has a trade-off function of its own, which may leave less; the pair (ε, δ) is all that a statement claims.
"""

from __future__ import annotations

import math

from privfl.errors import PrivacyError


def most_found(epsilon: float, delta: float, false_alarm: float) -> float:
    """The largest share of what is there that an attacker can recognise, who accuses ``false_alarm`` of what is not.

    Args:
        epsilon: ≥ 0 or ∞, where all may be recognised.
        delta: in [0, 1].
        false_alarm: in [0, 1].

    >>> most_found(0.0, 0.0, 0.01), round(most_found(1.0, 1e-5, 0.01), 4), most_found(math.inf, 0.0, 0.01)
    (0.01, 0.0272, 1.0)
    """
    _check(epsilon, delta)
    if not 0 <= false_alarm <= 1:
        raise PrivacyError(f"false_alarm is {false_alarm}: choose a share from 0 to 1, for instance 0.01.")
    if math.isinf(epsilon):
        return 1.0
    grown = false_alarm * _exp(epsilon) if false_alarm else 0.0
    return min(1.0, delta + grown, 1 - (1 - delta - false_alarm) / _exp(epsilon))


def most_accurate(epsilon: float, delta: float) -> float:
    """The largest balanced accuracy of an attacker: how often the answer "there" or "not there" is right at even odds.

    In [0.5, 1]; half the answers of a blind guess are right.

    >>> most_accurate(0.0, 0.0), round(most_accurate(1.0, 1e-5), 4), most_accurate(math.inf, 0.0)
    (0.5, 0.7311, 1.0)
    """
    _check(epsilon, delta)
    return 1 - (1 - delta) / (1 + _exp(epsilon))


def _exp(epsilon: float) -> float:
    return math.exp(epsilon) if epsilon < 700 else math.inf


def _check(epsilon: float, delta: float) -> None:
    if not epsilon >= 0:
        raise PrivacyError(f"epsilon is {epsilon}: give a number of at least 0, or infinity.")
    if not 0 <= delta <= 1:
        raise PrivacyError(f"delta is {delta}: choose a number from 0 to 1, for instance 1e-5.")
