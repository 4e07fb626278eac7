"""The settings of a run: a schedule, which changes the numbers, and an execution, which changes time and rounding."""

from __future__ import annotations

from dataclasses import dataclass

from privfl.engine.choice import EngineName
from privfl.privacy.door.precision import Precision
from privfl.validation import Settings, check_count, check_number


@dataclass(frozen=True)
class Schedule(Settings):
    """How long a run trains and when it is tested: part of the experiment.

    Args:
        rounds: number of rounds, ≥ 1.
        seed: root of all experiment randomness; never of privacy noise.
        evaluate_every: rounds between evaluations on the held-out data, ≥ 1; the last round is always evaluated.
    """

    rounds: int = 50
    seed: int = 0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        for name in ("rounds", "evaluate_every"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class Execution(Settings):
    """How a run is computed: changes its time and the rounding of its sums, never a claim.

    Args:
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda``, …
        engine: ``loop`` trains clients one by one on every core, ``vectorised`` stacks them into one kernel, ``auto``
            measures which is faster. They agree up to the rounding of sums.
        precision: of gradients: ``float32``; ``tf32`` (CUDA) or ``bfloat16`` for speed.
        workers: clients side by side; ``None`` takes all cores. The loop gives the same bits for any number of them,
            the vectorised engine for the same number and chunk (``engine.json`` in the run directory says which).
        checkpoint_seconds: seconds between checkpoints, ≥ 0.
    """

    device: str = "auto"
    engine: EngineName = "auto"
    precision: Precision = "float32"
    workers: int | None = None
    checkpoint_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers)
        check_number("checkpoint_seconds", self.checkpoint_seconds, 0)
