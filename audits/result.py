"""What an audit says of a claim: the claim, certified bounds, and whether they refute it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from audits.bounds.bound import Estimate, LowerBound, error_level
from privfl.errors import ConfigError
from privfl.plain_text import printable
from privfl.privacy.accounting.release import Observer, Unit


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A claim beside the certified lower bounds on what it bounds.

    The bounds share one error: their errors add up to at most 1 − ``confidence``, so that all of them hold at once with
    ``confidence`` and the largest may be read off without a correction.

    Args:
        audit: name of the audit.
        unit, observer: the cell of the statement that was audited.
        claim: the claimed ε at ``delta``, ∞ where nothing is claimed.
        delta: δ of the claim and of the bounds.
        confidence: in (0, 1), of the verdict.
        bounds: at least one.
        estimates: without any confidence; they take no part in the verdict.
        settings: of the audit, as plain data.
        seconds: wall time.

    Raises:
        ConfigError: δ or the confidence is outside its range, there is no bound, a bound is at a smaller δ than the
            claim, or the bounds' errors exceed the confidence's.
    """

    audit: str
    unit: Unit
    observer: Observer
    claim: float
    delta: float
    confidence: float
    bounds: tuple[LowerBound, ...]
    estimates: tuple[Estimate, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        error_level(self.delta, self.confidence)
        if not self.bounds:
            raise ConfigError(f"the audit '{self.audit}' found no bound; certify at least one")
        if any(bound.delta < self.delta for bound in self.bounds):
            raise ConfigError(f"a bound of '{self.audit}' has a delta below {self.delta}; certify it at the claim's")
        spent = sum(1 - bound.confidence for bound in self.bounds)
        if spent > (1 - self.confidence) * (1 + 1e-6) + 1e-15:
            raise ConfigError(
                f"the bounds of '{self.audit}' may fail with probability {spent:.3g}, more than confidence "
                f"{self.confidence} allows; share the error among them"
            )

    @property
    def bound(self) -> LowerBound:
        """The largest of the bounds; all hold at once, so it holds with ``confidence``."""
        return max(self.bounds, key=lambda bound: bound.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether the claim is false with ``confidence``."""
        return any(bound.refutes(self.claim) for bound in self.bounds)

    @property
    def looseness(self) -> float:
        """Claim ÷ bound: 1 is a tight audit of a tight claim, below 1 refutes the claim; ∞ if the bound is 0."""
        if math.isinf(self.bound.epsilon):
            return math.nan if math.isinf(self.claim) else 0.0
        return self.claim / self.bound.epsilon if self.bound.epsilon > 0 else math.inf

    @property
    def verdict(self) -> str:
        """One sentence; not to refute a claim never proves it."""
        sure = f"{100 * self.confidence:.10g} %"
        if math.isinf(self.claim):
            return "Nothing is claimed, so nothing can be refuted."
        if self.refuted:
            return f"The claim is refuted with confidence {sure}."
        ratio = f"claim ÷ bound = {self.looseness:.3g}" if self.bound.epsilon > 0 else "the bound is 0"
        return f"The claim is not refuted ({ratio}); that does not prove it."

    def __str__(self) -> str:
        claim = "∞, nothing" if math.isinf(self.claim) else f"ε ≤ {self.claim:.4g} at δ = {self.delta:g}"
        rows = [f"{self.audit}: unit {self.unit}, observer {self.observer}", f"  claim     {claim}"]
        rows += [f"  bound     {bound}" for bound in self.bounds]
        rows += [f"  estimate  {estimate}" for estimate in self.estimates]
        return printable("\n".join([*rows, f"  {self.verdict}"]))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able values; infinities are the string ``"inf"``."""
        return {
            "audit": self.audit,
            "unit": self.unit,
            "observer": self.observer,
            "claim": _plain(self.claim),
            "delta": self.delta,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "looseness": _plain(self.looseness),
            "verdict": self.verdict,
            "bounds": [bound.to_json() for bound in self.bounds],
            "estimates": [estimate.to_json() for estimate in self.estimates],
            "settings": dict(self.settings),
            "seconds": self.seconds,
        }


def _plain(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "inf"
