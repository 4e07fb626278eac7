"""Runs of parts that no configuration file can name: own data, own algorithms, own losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privfl.algorithms import Algorithm
from privfl.description import describe
from privfl.federation.task import Task
from privfl.simulation.callbacks import Callback
from privfl.simulation.result import Run
from privfl.simulation.settings import Schedule
from privfl.simulation.simulation import simulate


@dataclass(frozen=True)
class Composed:
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
        return self._settings(self.task(self.schedule.seed))

    def run(self, out: Path | str | None = None, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Run:
        """Run it; see :func:`privfl.simulation.simulation.simulate`."""
        task = self.task(self.schedule.seed)
        return simulate(
            task,
            self.algorithm,
            **vars(self.schedule),
            out=out,
            resume=resume,
            callbacks=callbacks,
            settings=self._settings(task),
            **self.arguments,
        )

    def _settings(self, task: Task) -> dict[str, Any]:
        given = {name: describe(value) for name, value in self.arguments.items()}
        return {"task": task.describe(), "algorithm": describe(self.algorithm), **vars(self.schedule), **given}
