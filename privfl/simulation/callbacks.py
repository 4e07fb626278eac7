"""What a run shows of itself after every round to the functions that watch it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.choice import Engine
from privfl.federation.task import Task
from privfl.privacy.accounting.release import everywhere, unprotected
from privfl.privacy.door.untouched import sampled
from privfl.references import of_privfl
from privfl.simulation.plan import Plan
from privfl.simulation.ray_engine import RayEngine
from privfl.simulation.run_directory import Metrics
from privfl.simulation.settings import Schedule
from privfl.simulation.state import State


@dataclass(frozen=True)
class Simulation:
    """A run in flight, to look at: it goes on from its own state of the server, whatever becomes of this one.

    What clients keep is shown as it is, without copies: look at it only.

    Args:
        round: rounds done.
        server: the server's state.
        kept: what clients keep, by client; who has kept nothing yet is missing.
        metrics: one line for each round done, a copy whenever it is read.
        engine: trains and evaluates while the run lasts, as in ``engine.logits(server["parameters"], inputs)``.
        schedule: rounds, seed and evaluations.
        task: data, clients and model.
        algorithm: reads the states: ``algorithm.personal(server, kept[client])`` are a client's own models.
        path: the run directory, ``None`` if everything stays in memory.
    """

    round: int
    server: Tensors
    client_state: dict[int, Tensors]
    metrics: Sequence[Metrics]
    engine: Engine | RayEngine
    schedule: Schedule
    task: Task
    algorithm: Algorithm
    path: Path | None


CHANGED_DATA = (
    "a callback changed what clients train on after round {}, and one client's example may be in all others' by that; "
    "let callbacks look only, and change data before a run"
)
Callback = Callable[[Simulation, Metrics], None]
"""Called after every round with the run in flight and the round's line of metrics; the progress bar is one.

A callback that raises ``StopIteration`` ends the run with that round, whose statement gives no guarantee then
(:func:`count_stop`). One that raises something else interrupts the run, which can be resumed from its latest
checkpoint.
"""


def tell(
    callbacks: Sequence[Callback], plan: Plan, state: State, engine: Engine | RayEngine, path: Path | None
) -> None:
    """Show each of ``callbacks`` the round that has just ended, and let one end the run that wants to.

    That counts (:func:`count_stop`), and so does it if one changes what clients train on. Lines of metrics are copies.
    """
    more, own = state.round < plan.schedule.rounds, [one for one in callbacks if not of_privfl(one)]
    before = _data(plan.task) if own else []
    for callback in callbacks:
        server = {name: value.clone() for name, value in state.server.items()}
        shown = server, dict(state.client_state), Lines(state.metrics)
        view = Simulation(state.round, *shown, engine, plan.schedule, plan.task, plan.algorithm, path)
        try:
            callback(view, copy.deepcopy(state.metrics[-1]))
        except StopIteration:
            state.stopped = more
    if state.stopped:
        count_stop(plan, state)
    if more and own and _data(plan.task) != before:
        state.ledger.record(everywhere("update", unprotected(CHANGED_DATA.format(state.round))), None)


class Lines(Sequence[Metrics]):
    """Lines of metrics to read: each is a copy."""

    def __init__(self, lines: Sequence[Metrics]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, place: int) -> Metrics: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Metrics]: ...
    def __getitem__(self, place: int | slice) -> Metrics | Sequence[Metrics]:
        return copy.deepcopy(self._lines[place])


def _data(task: Task) -> list[Hashable]:
    """What clients train on, as what is equal while nobody writes to it: versions, and a sample of the numbers."""
    parts = task.inputs, task.targets, task.clients.rows
    return [(part._version, sampled(part)) for part in parts if isinstance(part, Tensor)]


def stop_warning(plan: Plan, state: State) -> list[str]:
    """What whoever runs a simulation is told if a callback stopped it."""
    if not state.stopped:
        return []
    return [f"The run was stopped by a callback after round {state.round} of {plan.schedule.rounds}."]


def count_stop(plan: Plan, state: State) -> None:
    """Take every guarantee from the run of ``state``, which a callback has stopped; also if it goes on later.

    What the rounds cost covers what they sent, and not when they end: a callback has seen the model, and may have
    decided by it.
    """
    reason = (
        f"a callback stopped the run after round {state.round} of {plan.schedule.rounds}, and when it did may tell of "
        "the data what no round is charged for; plan fewer rounds, or set privacy.budget, which ends a run by its cost"
    )
    state.ledger.record(everywhere("update", unprotected(reason)), None)
