"""What a run shows of itself after every round to the functions that watch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.choice import Engine
from privfl.federation.task import Task
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

A callback that raises ``StopIteration`` ends the run with that round, which has its statement then like any other. One
that raises something else interrupts the run, which can be resumed from its latest checkpoint.
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


def stop_caveat(plan: Plan, state: State) -> list[str]:
    """What a reader of the statement must know then: when a run stops may tell something of the data."""
    if not state.stopped:
        return []
    done, planned = state.round, plan.schedule.rounds
    return [
        f"A callback stopped the run after round {done} of {planned}, and the table counts these {done}: it holds as "
        "it stands if nothing learnt from the data decided when to stop. If figures that are published anyway decided "
        f"it, claim what {planned} rounds cost; if the callback looked at more than these, no claim covers that."
    ]
