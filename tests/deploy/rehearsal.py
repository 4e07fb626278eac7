"""Whole federations within a test: a server and clients in folders of their own, over a loopback transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import privfl as pf
from privfl.deploy.agreement import Federation
from privfl.deploy.budget import OwnSettings
from privfl.deploy.client import FederationClient
from privfl.deploy.server import FederationServer
from privfl.deploy.split import DATA, OWN, STATE, party_folders, split
from privfl.deploy.transport import Answer, Loopback
from privfl.experiment import Experiment
from privfl.schema import build, read_toml
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.plan import prepare

CLIENTS = 4
LOOP = pf.Execution(engine="loop", device="cpu")
BASE: Mapping[str, Any] = {
    "rounds": 2,
    "seed": 3,
    "device": "cpu",
    "dataset": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": CLIENTS, "alpha": 0.5},
    "model": {"name": "logistic"},
    "training": {"epochs": 1, "batch_size": 64},
    "privacy": {"noise_key": 11},
}


@dataclass
class Rehearsal:
    """A federation whose parties have folders under ``root``."""

    root: Path
    experiment: Experiment
    seconds: float = 30.0
    epsilon: float | None = None
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folders = party_folders(self.root, CLIENTS)
        if not self.root.exists():
            text = self.experiment.to_toml()
            split(self.experiment, text, self.root, url="none", epsilon=self.epsilon, seconds=self.seconds)

    @property
    def federation(self) -> Federation:
        return Federation.from_toml(self.folders["server"] / "federation.toml")

    def client(self, number: int, experiment: Experiment | None = None) -> FederationClient:
        folder = self.folders[f"client-{number}"]
        own = build(OwnSettings, read_toml(folder / OWN, "own settings"))
        agreed = Experiment.from_toml(folder / "experiment.toml")
        files = self.federation, folder / DATA, self.said.append
        return FederationClient(folder / STATE, own, experiment or agreed, *files)

    def clients(self) -> dict[int, Answer]:
        return {number: self.client(number).answer for number in range(CLIENTS)}

    def server(self, transport: Any) -> FederationServer:
        folder = self.folders["server"]
        agreed = Experiment.from_toml(folder / "experiment.toml")
        return FederationServer(folder / STATE, agreed, self.federation, folder / DATA, transport)

    def run(self, transport: Any = None, **options: Any) -> Any:
        chosen = Loopback(self.clients()) if transport is None else transport
        return self.server(chosen).run(self.root / "run", identity=identity(self.experiment), **options)


def experiment(**settings: Any) -> Experiment:
    return Experiment.from_dict({**BASE, **settings})


def identity(experiment: Experiment) -> bytes:
    """What tells the noise of this experiment's simulation apart, when it is under a fixed key."""
    from privfl.deploy.local import settings_of

    asked = replace(settings_of(experiment, experiment.task()), execution=experiment.execution)
    return Fingerprint.of(asked, prepare(asked), fresh=False).digest
