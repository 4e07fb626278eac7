"""What a finished run leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors
from privfl.errors import ConfigError
from privfl.models.flat_network import trained_parameters
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

    def network(self, parameters: Tensor | None = None) -> nn.Module:
        """The trained model as a PyTorch module of its own, on the CPU and in evaluation mode.

        Args:
            parameters: others to put into it, [size], such as a client's own model; by default the run's.

        Raises:
            ConfigError: the run does not know its task, or these are not as many numbers as the model has.
        """
        if self.asked is None:
            raise ConfigError("this run knows no task to build its network of; take it from the run of pf.simulate")
        network = self.asked.task.model(self.asked.schedule.seed)
        trained = list(trained_parameters(network).values())
        given, sizes = self.parameters if parameters is None else parameters, [one.numel() for one in trained]
        if given.shape != (sum(sizes),):
            raise ConfigError(f"parameters have shape {tuple(given.shape)}; give {sum(sizes)} numbers in one row")
        with torch.no_grad():
            for one, values in zip(trained, torch.split(given, sizes), strict=True):
                one.copy_(values.view_as(one))
        return network.cpu().eval()

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
