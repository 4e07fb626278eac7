"""ε so far, cheap enough for every round, and whether the next round still fits a budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt

from privfl.privacy.accounting.accountant import check_delta, epsilon
from privfl.privacy.accounting.claims import in_kinds, price, too_large
from privfl.privacy.accounting.events import Kind
from privfl.privacy.accounting.grouping import dominating_history
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.population import exceeds, merge_columns, rounded_up
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Release, Unit

Planned = tuple[Release, Sequence[int] | npt.NDArray[Any] | None, int]
"""A release to come: what, by which clients (``None``: all), how often."""

_MARGIN = 1.01
"""A certificate decides on a budget only from this far below it: numerical looseness is well within it."""

_PLAIN = 64
"""A certificate decides on a budget only up to this many releases: beyond, the claim rounds rates in its own way."""


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

    def covers(self, history: Mapping[Kind, int]) -> bool:
        return all(count <= self.counts.get(kind, 0) for kind, count in history.items())


@dataclass
class _Prices:
    """What the releases of a growing ledger cost in one cell, rates rounded up; each release is priced once."""

    unit: Unit
    observer: Observer
    kinds: list[dict[Kind, int] | None] = field(default_factory=list)
    """For each release of the ledger its kinds, ``None`` if it has no finite price."""

    def history(self, releases: Sequence[Release], most: Sequence[int]) -> dict[Kind, int] | None:
        """The kinds of a client that made each of ``releases`` as often as ``most`` says; ``None`` if it leaks."""
        for release in releases[len(self.kinds) :]:
            cost = price(release, self.unit, self.observer)
            self.kinds.append(None if isinstance(cost, str) else _rounded_up(cost))
        total: Counter[Kind] = Counter()
        for kinds, count in zip(self.kinds, most, strict=True):
            if not count:
                continue
            if kinds is None:
                return None
            for kind, number in kinds.items():
                total[kind] += number * count
        return dict(total)

    def differing(self) -> int:
        """How many releases have a price here: a client that made most of the only one made the longest history."""
        return sum(kinds is None or bool(kinds) for kinds in self.kinds)


class EpsilonTracker:
    """Watches a ledger while a run goes on.

    :meth:`so_far` is an upper bound on the worst client: it prices one history that dominates all clients, at most a
    sixteenth longer than need be, and prices again only when the run has outgrown that. It lies a few per cent
    above the statement's claim where one client leads in everything, further (15 % seen) where rates and participation
    both differ. :meth:`would_exceed` decides by the statement's own claim.

    Whether the price still holds is first asked of a client that made every release as often as whoever made it most:
    that takes no look at the clients. Only where it does not hold are all histories gone through.
    """

    def __init__(self, ledger: Ledger, delta: float, units: Mapping[Unit, int] | None = None) -> None:
        """``units`` says how many of each unit there are: a claim that is empty for so many is none."""
        check_delta(delta)
        self.ledger = ledger
        self.delta = delta
        self._weak = {unit for unit, number in (units or {}).items() if too_large(delta, number)}
        self._certificates = {(unit, observer): _Certificate() for unit in UNITS for observer in OBSERVERS}
        self._prices = {(unit, observer): _Prices(unit, observer) for unit in UNITS for observer in OBSERVERS}

    def so_far(self) -> dict[str, float]:
        """An upper bound on ε for each cell, keyed "unit/observer"; cells at ∞, and empty claims, are left out."""
        bounds = {(unit, observer): self._bound(unit, observer) for unit, observer in self._certificates}
        return {
            f"{unit}/{observer}": bound
            for (unit, observer), bound in bounds.items()
            if math.isfinite(bound) and not (bound == 0 and unit in self._weak and self._seen(unit, observer))
        }

    def _seen(self, unit: Unit, observer: Observer) -> bool:
        """Whether the observer has learnt anything of the unit."""
        return any(release.cost(unit, observer) for release in self.ledger.releases)

    def would_be_empty(self, budget: Limit, planned: Iterable[Planned]) -> bool:
        """Whether the claim in the budget's cell would be 0 for no other reason than a delta that is too large."""
        if budget.unit not in self._weak:
            return False
        histories = self.ledger.with_releases(planned).histories(budget.unit, budget.observer)
        priced = [price(release, budget.unit, budget.observer) for release in histories.releases]
        kinds, counts, leaking = in_kinds(histories, priced)
        return bool(kinds) and not leaking.any() and not exceeds(kinds, counts, self.delta, 0.0)

    def would_exceed(self, budget: Limit, planned: Iterable[Planned]) -> bool:
        """Whether the statement's claim in the budget's cell would exceed it, were ``planned`` recorded as well."""
        trial = self.ledger.with_releases(planned)
        unit, observer = budget.unit, budget.observer
        certificate, known = self._certificates[unit, observer], self._prices[unit, observer]
        if certificate.epsilon * _MARGIN <= budget.epsilon and len(trial.releases) <= _PLAIN:
            longest = replace(known, kinds=list(known.kinds)).history(trial.releases, trial.most())
            if longest is not None and certificate.covers(longest):
                return False
        histories = trial.histories(unit, observer)
        priced = [price(release, unit, observer) for release in histories.releases]
        kinds, counts, leaking = in_kinds(histories, priced)
        return bool(leaking.any()) or (bool(kinds) and exceeds(kinds, counts, self.delta, budget.epsilon))

    def _bound(self, unit: Unit, observer: Observer) -> float:
        certificate = self._certificates[unit, observer]
        longest = self._prices[unit, observer].history(self.ledger.releases, self.ledger.most())
        if longest is None:
            return math.inf
        if certificate.covers(longest):
            return certificate.epsilon
        history = longest
        if self._prices[unit, observer].differing() > 1:  # who made most of one need not have made most of another
            histories = self.ledger.histories(unit, observer)
            priced = [price(release, unit, observer) for release in histories.releases]
            kinds, counts, _ = in_kinds(histories, priced)
            kinds, counts = merge_columns(kinds, [rounded_up(kind) for kind in kinds], counts)
            history = dominating_history(counts, kinds) if kinds else {}
        if not certificate.covers(history):
            counted = {kind: _lengthened(count) for kind, count in history.items()}
            same = [other for other in self._certificates.values() if other.counts == counted]
            certificate.epsilon = same[0].epsilon if same else self._price(counted)
            certificate.counts = counted
        return certificate.epsilon

    def _price(self, history: Mapping[Kind, int]) -> float:
        return epsilon(history, self.delta, interval=False, tolerance=3e-3).epsilon


def _lengthened(count: int) -> int:
    """``count`` with five significant binary digits, rounded up.

    It depends on nothing but the count, so that a resumed run prices the same histories as one that went through.
    """
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


def _rounded_up(kinds: Mapping[Kind, int]) -> dict[Kind, int]:
    rounded: Counter[Kind] = Counter()
    for kind, number in kinds.items():
        rounded[rounded_up(kind)] += number
    return dict(rounded)
