"""What a run shows of itself after every round to the functions that watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.choice import Engine
from privfl.federation.task import Task
from privfl.simulation.ray_engine import RayEngine
from privfl.simulation.run_directory import Metrics
from privfl.simulation.settings import Schedule


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

A callback that raises ends the run, which can be resumed from its latest checkpoint.
"""
