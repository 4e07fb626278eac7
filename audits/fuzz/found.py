"""What is found of one experiment: violations of its claims, and how much was looked at."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Violation:
    """One claim that does not hold: what ``kind`` of defect, in which cell, where, and how far it is off."""

    kind: str
    cell: str
    what: str


@dataclass
class Found:
    """Violations so far, and counts of noised values, of those that moved between the worlds, and of messages.

    ``closest`` is the largest share of its charge that any release used.
    """

    violations: list[Violation] = field(default_factory=list)
    noised: int = 0
    moved: int = 0
    seen: int = 0
    closest: float = 0.0
