"""What an audit found: a certified lower bound on ε, or an estimate, which certifies nothing and is another type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from privfl.errors import ConfigError
from privfl.plain_text import printable

_SHAREABLE = 1 - 1e-12
"""Beyond, the error's shares are so coarse in float64 that they may add up to more than the error."""


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """If a mechanism is (ε′, δ)-DP, such a bound exceeds ε′ with probability at most 1 − confidence.

    Args:
        epsilon: ε ≥ 0, ∞ if what was seen is impossible under any ε; 0 says nothing.
        delta: the δ in [0, 1) that ε goes with.
        confidence: in (0, 1), over the randomness of the mechanism and of the audit, everything that was looked at
            included.
        method: what was done, in a few words.
        assumes: what must hold for the bound besides the trials' independence: the family of trade-off curves that the
            mechanism belongs to, for instance. Empty: nothing, any flaw of any mechanism counts.
        details: what went into it, as plain data.

    Raises:
        ConfigError: ε, δ or the confidence is outside its range.
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    assumes: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        error_level(self.delta, self.confidence)

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a claim of (``claimed_epsilon``, δ′)-DP, for any δ′ ≤ δ, is false with this confidence.

        Raises:
            ConfigError: the claim is negative or NaN.
        """
        _check_epsilon(claimed_epsilon)
        return self.epsilon > claimed_epsilon

    def __str__(self) -> str:
        given = f", if {self.assumes}" if self.assumes else ""
        sure = f"{100 * self.confidence:.10g} %"
        shown = f"ε ≥ {_shown(self.epsilon)} at δ = {self.delta:g} with confidence {sure} ({self.method}){given}"
        return printable(shown)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able values; an infinite ε is the string ``"inf"``."""
        return {
            "kind": "lower bound",
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf",
            "delta": self.delta,
            "confidence": self.confidence,
            "method": self.method,
            "assumes": self.assumes,
            "details": dict(self.details),
        }


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A guess at ε: it may lie above or below the truth, has no confidence, and can refute nothing.

    Args:
        epsilon: ε ≥ 0.
        delta: the δ in [0, 1) that ε goes with.
        method: what was done, in a few words.
        details: what went into it, as plain data.

    Raises:
        ConfigError: ε or δ is outside its range.
    """

    epsilon: float
    delta: float
    method: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        error_level(self.delta, 0.5)

    def __str__(self) -> str:
        return printable(
            f"ε ≈ {_shown(self.epsilon)} at δ = {self.delta:g}, an estimate that certifies nothing ({self.method})"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able values; an infinite ε is the string ``"inf"``."""
        return {
            "kind": "estimate",
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf",
            "delta": self.delta,
            "method": self.method,
            "details": dict(self.details),
        }


def error_level(delta: float, confidence: float) -> float:
    """1 − ``confidence``, once both are found to be possible.

    Raises:
        ConfigError: ``delta`` is not in [0, 1) or ``confidence`` not in (0, 1).
    """
    if not _is_number(delta) or not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta!r}; give a number from 0 up to but not including 1, such as 1e-5")
    if not _is_number(confidence) or not 0 < confidence < 1:
        raise ConfigError(f"the confidence is {confidence!r}; give a number in (0, 1), such as 0.95")
    return 1 - confidence


def shared_confidence(confidence: float, bounds: int) -> float:
    """The confidence of each of ``bounds`` that hold all at once with ``confidence``: the error is shared equally.

    Raises:
        ConfigError: ``confidence`` is not in (0, 1), or so near to 1 that its error has no such part in float64.
    """
    each = 1 - error_level(0.0, confidence) / bounds
    if bounds > 1 and confidence > _SHAREABLE:
        raise ConfigError(
            f"the confidence is {confidence!r}, too near to 1 to be shared among {bounds} bounds; give at most "
            "1 − 1e-12"
        )
    return each


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_epsilon(epsilon: float) -> None:
    if not _is_number(epsilon) or not epsilon >= 0:
        raise ConfigError(f"ε is {epsilon!r}; give a number ≥ 0")


def _shown(epsilon: float) -> str:
    """Rounded down, so that the sentence claims no more than the number."""
    if math.isinf(epsilon):
        return "∞"
    digits = 3 if epsilon >= 0.1 else 6
    return f"{math.floor(epsilon * 10**digits) / 10**digits:g}"
