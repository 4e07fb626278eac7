"""ε so far, cheap enough for every round, and whether the next round still fits a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from privfl.privacy.accounting.accountant import check_delta, epsilon
from privfl.privacy.accounting.events import Kind
from privfl.privacy.accounting.grouping import join
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.population import exceeds, merge_columns, rounded_up
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Release, Unit
from privfl.privacy.accounting.statement import in_kinds, price

Planned = tuple[Release, Sequence[int] | npt.NDArray[Any] | None, int]
"""A release to come: what, by which clients (``None``: all), how often."""


class Limit(Protocol):
    """A budget: the ε that one cell of the statement must not exceed."""

    @property
    def epsilon(self) -> float: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def observer(self) -> Observer: ...


@dataclass
class _Certificate:
    """A history somewhat longer than the one it was made for, and its ε: valid for every history that it contains."""

    counts: dict[Kind, int] = field(default_factory=dict)
    epsilon: float = 0.0

    def covers(self, history: dict[Kind, int]) -> bool:
        return all(count <= self.counts.get(kind, 0) for kind, count in history.items())


class EpsilonTracker:
    """Watches a ledger while a run goes on.

    :meth:`so_far` is an upper bound on the worst client: it prices one history that dominates all clients, a
    thirty-second longer than need be, and prices again only when the run has outgrown that. It lies a few per cent
    above the statement's claim where one client leads in everything, further (15 % seen) where rates and participation
    both differ. :meth:`would_exceed` decides by the statement's own claim.
    """

    def __init__(self, ledger: Ledger, delta: float) -> None:
        check_delta(delta)
        self.ledger = ledger
        self.delta = delta
        self._certificates = {(unit, observer): _Certificate() for unit in UNITS for observer in OBSERVERS}

    def so_far(self) -> dict[str, float]:
        """An upper bound on ε for each cell, keyed "unit/observer"; cells at ∞ are left out."""
        bounds = {f"{unit}/{observer}": self._bound(unit, observer) for unit, observer in self._certificates}
        return {cell: bound for cell, bound in bounds.items() if math.isfinite(bound)}

    def would_exceed(self, budget: Limit, planned: Iterable[Planned]) -> bool:
        """Whether the statement's claim in the budget's cell would exceed it, were ``planned`` recorded as well."""
        trial = self.ledger.with_releases(planned)
        histories = trial.histories(budget.unit, budget.observer)
        priced = [price(release, budget.unit, budget.observer) for release in histories.releases]
        kinds, counts, leaking = in_kinds(histories, priced)
        return bool(leaking.any()) or (bool(kinds) and exceeds(kinds, counts, self.delta, budget.epsilon))

    def _bound(self, unit: Unit, observer: Observer) -> float:
        certificate = self._certificates[unit, observer]
        histories = self.ledger.histories(unit, observer)
        priced = [price(release, unit, observer) for release in histories.releases]
        kinds, counts, leaking = in_kinds(histories, priced)
        if leaking.any():
            return math.inf
        kinds, counts = merge_columns(kinds, [rounded_up(kind) for kind in kinds], counts)
        history = join(counts, kinds) if kinds else {}
        if not certificate.covers(history):
            certificate.counts = {kind: count + count // 32 for kind, count in history.items()}
            certificate.epsilon = epsilon(certificate.counts, self.delta, interval=False, tolerance=3e-3).epsilon
        return certificate.epsilon
