"""What a paper's table is: columns of a data set, its clients and their training; rows of methods; seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import privfl as pf
from privfl.simulation.callbacks import Simulation

Judge = Callable[[Simulation], dict[str, float]]
"""From a run after its last round to its measures, in the units of the paper."""


@dataclass(frozen=True)
class Tuned:
    """A setting for which the paper gives no value: the best of ``grid``, and of one value beyond an end that is best.

    It is chosen by the column's first measure on training examples that are held back, of a seed that is not compared.
    """

    setting: str
    grid: tuple[float, ...]

    def beyond(self, best: float) -> float | None:
        """The next value after ``best`` if that is an end of the grid, as far from it as its neighbour is."""
        ends = {self.grid[0]: self.grid[1], self.grid[-1]: self.grid[-2]}
        return round(best * best / ends[best], 9) if best in ends else None


@dataclass(frozen=True)
class Method:
    """A row.

    Args:
        algorithm: with the paper's settings.
        training: what it trains otherwise than the column says, by the names of ``LocalTraining``.
        given: further arguments of ``simulate``; what can be called is called with the task.
        tuned: a setting of ``algorithm`` that has to be chosen.
    """

    algorithm: Any
    training: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    tuned: Tuned | None = None

    def at(self, value: float | None) -> Any:
        """The algorithm with ``value`` for its tuned setting."""
        return self.algorithm if self.tuned is None or value is None else self._with(value)

    def _with(self, value: float) -> Any:
        assert self.tuned is not None
        return replace(self.algorithm, **{self.tuned.setting: value})


@dataclass(frozen=True, eq=False)
class Column:
    """Methods that are compared on one federation.

    Args:
        name: what ``--only`` calls it.
        data: loads the data set.
        divide: makes the task of the data, a number of clients and a seed.
        clients: their number; 0 where the data decide.
        rounds: their number, or what computes it from the task.
        training: of all methods that say nothing else.
        methods: the rows.
        judge: what is reported of a run.
        measures: what of that the table shows, the first compared by pairs, each with its number of decimals.
        ours: the paper's own method, of which the others are subtracted.
        given: further arguments of ``simulate``; what can be called is called with the task.
        seeds: what is run unless ``--seeds`` says otherwise.
        curve: the model is evaluated after every round, not after the last alone.
        assumed: settings that the paper does not give, or that differ from it, a phrase each.
    """

    name: str
    data: Callable[[], pf.Dataset]
    divide: Callable[[pf.Dataset, int, int], pf.Task]
    rounds: int | Callable[[pf.Task], int]
    training: pf.LocalTraining
    methods: Mapping[str, Method]
    judge: Judge
    measures: Mapping[str, int]
    ours: str
    clients: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    curve: bool = False
    assumed: tuple[str, ...] = ()

    def rounds_of(self, task: pf.Task) -> int:
        """The number of rounds on ``task``."""
        return self.rounds if isinstance(self.rounds, int) else self.rounds(task)

    def arguments(self, name: str, task: pf.Task) -> dict[str, Any]:
        """What ``simulate`` is told of the row ``name`` besides algorithm, rounds and seed."""
        method = self.methods[name]
        training = replace(self.training, **method.training)
        given = {**self.given, **method.given}
        asked = {key: value(task) if callable(value) else value for key, value in given.items()}
        cohort = asked.get("cohort")
        if isinstance(cohort, pf.FixedCohort):  # fewer clients than the paper's are only asked for to try things out
            asked["cohort"] = pf.FixedCohort(min(cohort.size, len(task.clients)))
        return {"training": training, **asked}


@dataclass(frozen=True)
class Table:
    """The tables of one paper.

    Args:
        paper: whose, in a line.
        columns: all of them, of all its tables.
    """

    paper: str
    columns: tuple[Column, ...]


def percent(values: Mapping[str, float]) -> dict[str, float]:
    """``values`` in per cent."""
    return {name: 100 * value for name, value in values.items()}


def last_line(*names: str) -> Judge:
    """Measures that the last line of ``metrics.jsonl`` has under these names without ``test_``, in per cent."""

    def judge(simulation: Simulation) -> dict[str, float]:
        line = simulation.metrics[-1]
        return percent({name: line[f"test_{name}"] for name in names})

    return judge
