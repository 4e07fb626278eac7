"""Runs of parts that no configuration file can name: own data, own algorithms, own losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privfl.algorithms import Algorithm
from privfl.federation.recipe import Recipe
from privfl.federation.task import Task, call_for_task
from privfl.references import reference
from privfl.simulation.callbacks import Callback
from privfl.simulation.result import Run
from privfl.simulation.settings import RunConfig, Schedule
from privfl.simulation.simulation import simulate


@dataclass(frozen=True)
class PythonRun:
    """One run put together in code; a study takes it wherever it takes an experiment.

    Args:
        task: builds the task from the seed. For runs in processes of their own it is a function at the top of a module,
            or a ``functools.partial`` of one.
        algorithm: one of privfl's or one's own.
        schedule: rounds, seed and evaluations; the seed is handed to ``task`` as well.
        arguments: further arguments of :func:`privfl.simulation.simulation.simulate`.
    """

    task: Callable[[int], Task]
    algorithm: Algorithm
    schedule: Schedule
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What tells this run apart from another one; builds the task, to know who holds which rows."""
        chosen = {name: value for name, value in self.arguments.items() if value is not None}
        return (
            RunConfig(schedule=self.schedule, algorithm=self.algorithm, **chosen).for_task(self.build_task()).to_dict()
        )

    def run(self, out: Path | str | None = None, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Run:
        """Run it; see :func:`privfl.simulation.simulation.simulate`."""
        return simulate(
            self.build_task(),
            self.algorithm,
            **vars(self.schedule),
            out=out,
            resume=resume,
            callbacks=callbacks,
            **self.arguments,
        )

    def build_task(self) -> Task:
        """The task; where it is not known how to load it, its function is named."""
        task = call_for_task(self.task, self.schedule.seed)
        named = task.recipe is not None or not hasattr(self.task, "__qualname__")
        return task if named else task.made_by(Recipe(task=reference(self.task)))
