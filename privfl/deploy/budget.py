"""What one client gives away at most, whatever a server asks, over all runs together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privfl.errors import ConfigError, PrivflError
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.release import Unit
from privfl.privacy.accounting.tracker import EpsilonTracker, Planned
from privfl.privacy.settings import Budget
from privfl.validation import Settings


class BudgetSpent(PrivflError):
    """What the server asks for would cost more than this client gives."""


@dataclass(frozen=True)
class OwnSettings(Settings):
    """What one client sets for itself, and tells nobody.

    Args:
        number: its place in the federation's list of clients, from 0.
        epsilon: what the server may learn of one of its ``unit``, over all runs together, > 0; ``None`` sets no limit.
        unit: ``sample`` or ``client``.
        delta: δ of that ε, in (0, 1).

    Raises:
        ConfigError: a value is out of its range.
    """

    number: int
    epsilon: float | None = None
    unit: Unit = "sample"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ConfigError(f"a client's number is {self.number}; give its place in the list of clients, from 0")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(
                f"a client's own epsilon is {self.epsilon:g}; give a finite number above 0, or leave it out for no "
                "budget of its own"
            )
        if not 0 < self.delta < 1:
            raise ConfigError(f"the delta of a client's own epsilon is {self.delta:g}; give a number between 0 and 1")

    @property
    def budget(self) -> Budget | None:
        """The budget, for what the server sees."""
        return None if self.epsilon is None else Budget(self.epsilon, self.unit, "server")


def afford(
    ledger: Ledger, own: OwnSettings, units: Mapping[Unit, int], what: str, planned: Sequence[Planned]
) -> Ledger:
    """The ``ledger`` of one client after ``planned``; it stays as it is.

    Args:
        units: how many of each unit are protected in the whole federation.
        what: is to be answered, for the sentence.
        planned: releases; whoever they name, it is this client.

    Raises:
        BudgetSpent: they would take its cell beyond its budget, or delta alone would keep it.
    """
    budget, mine = own.budget, [(release, [0], count) for release, _, count in planned]
    if budget is not None:
        tracker = EpsilonTracker(ledger, own.delta, units)
        if tracker.would_be_empty(budget, mine):
            raise BudgetSpent(
                f"{what} keeps the budget only because delta is {own.delta:g}, above one over the number of "
                f"{budget.unit}s; lower it"
            )
        if tracker.would_exceed(budget, mine):
            raise BudgetSpent(
                f"{what} would take the {budget.unit}/server cell of this client beyond its budget of epsilon = "
                f"{budget.epsilon:g}; it is not answered, and nothing was sent"
            )
    return ledger.with_releases(mine)


def over_all_runs(ledger: Ledger, own: OwnSettings, units: Mapping[Unit, int]) -> str:
    """In words, what the server has learnt of one client, whose ``ledger`` this is, and that nothing limits it."""
    statement = make_statement(ledger, own.delta, reproducible_noise=False, units=units, interval=False)
    learnt = " and ".join(f"{round_up(statement.cell(unit, 'server').epsilon)} (unit {unit})" for unit in units)
    return (
        f"what the server has learnt of this client over all runs comes to epsilon = {learnt} at delta = "
        f"{own.delta:g}, and this run adds to it; a target in an experiment holds for each run alone, epsilon in "
        "own.toml for all of them"
    )
