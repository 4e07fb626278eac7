"""What a run shows of itself after every round to the functions that watch it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.choice import Engine
from privfl.federation.task import Task
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import everywhere, unprotected
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
        metrics: one line for each round done.
        engine: trains and evaluates while the run lasts, as in ``engine.logits(server["parameters"], inputs)``.
        schedule: rounds, seed and evaluations.
        task: data, clients and model.
        algorithm: reads the states: ``algorithm.personal(server, kept[client])`` are a client's own models.
        path: the run directory, ``None`` if everything stays in memory.
    """

    round: int
    server: Tensors
    client_state: dict[int, Tensors]
    metrics: tuple[Metrics, ...]
    engine: Engine | RayEngine
    schedule: Schedule
    task: Task
    algorithm: Algorithm
    path: Path | None


Callback = Callable[[Simulation, Metrics], None]
"""Called after every round with the run in flight and the round's line of metrics; the progress bar is one.

A callback that raises ``StopIteration`` ends the run with that round, whose statement gives no guarantee then
(:func:`counted_until_stopped`). One that raises something else interrupts the run, which can be resumed from its latest
checkpoint.
"""


def tell(
    callbacks: Sequence[Callback], plan: Plan, state: State, engine: Engine | RayEngine, path: Path | None
) -> bool:
    """Show each of ``callbacks`` the round that has just ended; whether one of them wants the run to end."""
    stop = False
    for callback in callbacks:
        server = {name: value.clone() for name, value in state.server.items()}
        shown = server, dict(state.client_state), tuple(state.metrics)
        view = Simulation(state.round, *shown, engine, plan.schedule, plan.task, plan.algorithm, path)
        try:
            callback(view, state.metrics[-1])
        except StopIteration:
            stop = True
    return stop


def stop_warning(plan: Plan, state: State) -> list[str]:
    """What whoever runs a simulation is told if a callback stopped it."""
    if not state.stopped:
        return []
    return [f"The run was stopped by a callback after round {state.round} of {plan.schedule.rounds}."]


def counted_until_stopped(plan: Plan, state: State) -> Ledger:
    """The ledger of ``state``, without any guarantee if a callback stopped the run.

    What the rounds cost covers what they sent, and not when they end: a callback has seen the model, and may have
    decided by it.
    """
    if not state.stopped:
        return state.ledger
    ledger = copy.deepcopy(state.ledger)
    reason = (
        f"a callback stopped the run after round {state.round} of {plan.schedule.rounds}, and when it did may tell of "
        "the data what no round is charged for; plan fewer rounds, or set privacy.budget, which ends a run by its cost"
    )
    ledger.record(everywhere("update", unprotected(reason)), None)
    return ledger
