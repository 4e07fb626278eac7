"""What a finished run leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.plan import RunSettings
from privfl.simulation.run_directory import Metrics
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class Run:
    """What a finished run leaves: the model, its metrics round by round, and what may be claimed.

    ``server`` and ``client_state`` are the states that the server and the clients ended in, and ``algorithm`` reads
    them: ``run.algorithm.personal(run.server, run.client_state[client])`` are a client's own models. ``transcript``
    holds what observers saw, if it was recorded. ``warnings`` are the sentences that whoever ran it should read, and
    ``failure`` says why nothing was learnt, where the model never moved, has diverged, or no round had a usable upload;
    it is empty for every other run. ``ledger`` is what the statement was computed from; it names clients, so it is for
    whoever ran the experiment. ``asked`` are the settings that ``simulate`` was given, the task among them.
    """

    parameters: Tensor
    metrics: list[Metrics]
    statement: Statement
    summary: dict[str, Any]
    path: Path | None = None
    algorithm: Algorithm | None = None
    server: Tensors = field(default_factory=dict)
    client_state: dict[int, Tensors] = field(default_factory=dict)
    transcript: Transcript | None = None
    warnings: tuple[str, ...] = ()
    failure: str = ""
    ledger: Ledger | None = None
    asked: RunSettings | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        what = f"{self.summary.get('algorithm')} on {self.summary.get('dataset')}"
        size = f"{len(self.metrics)} rounds, {self.parameters.numel():,} parameters"
        tests = [
            f"{name} {value:.4g}"
            for name, value in self.summary.items()
            if name.startswith("test_") and value is not None
        ]
        cells = [f"ε = {value:.4g} ({cell})" for cell, value in self.statement.finite().items()]
        return f"Run({what}: {', '.join([size, *tests, *(cells or ['no finite ε'])])})"
