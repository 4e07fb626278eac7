"""A party's folder: what was agreed, what is its own, its data, its certificates and its memory.

experiment.toml  federation.toml  own.toml  data.npz  startup/  state/

The first two are the same at every party, the others at nobody else. A server has no ``own.toml``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privfl.deploy.agreement import Federation
from privfl.deploy.budget import OwnSettings
from privfl.deploy.client import FederationClient
from privfl.deploy.diary import SIGNING_KEY, Diary
from privfl.deploy.kits import KIT
from privfl.deploy.server import FederationServer
from privfl.deploy.split import AGREED, DATA, OWN, STATE
from privfl.deploy.transport import Transport
from privfl.experiment import Experiment
from privfl.files import read_json
from privfl.privacy.secagg.store import FolderStore
from privfl.schema import build, read_toml
from privfl.simulation.fingerprint import Fingerprint


def agreed(folder: Path) -> tuple[Experiment, Federation]:
    """This party's own copies of what was agreed.

    Raises:
        ConfigError: a file is missing, or a setting is unknown or impossible.
    """
    experiment, federation = (folder / name for name in AGREED)
    return Experiment.from_toml(experiment), Federation.from_toml(federation)


def client_of(folder: Path, say: Callable[[str], None]) -> FederationClient:
    """The client whose folder this is; ``say`` is told what it refuses.

    Raises:
        ConfigError: a file is missing or impossible.
        DataError: its data are not what was agreed.
    """
    experiment, federation = agreed(folder)
    own = build(OwnSettings, read_toml(folder / OWN, "a client's own settings"))
    return FederationClient(folder / STATE, own, experiment, federation, folder / DATA, say)


def server_of(folder: Path, connect: Callable[[Federation, Path], Transport]) -> FederationServer:
    """The server whose folder this is; ``connect`` gives its transport, from the federation and its certificates.

    Raises:
        ConfigError: a file is missing or impossible.
    """
    experiment, federation = agreed(folder)
    return FederationServer(folder / STATE, experiment, federation, folder / DATA, connect(federation, folder / KIT))


def identity_of(simulation: Path) -> bytes:
    """What tells the noise of a simulation apart, by its run directory.

    Raises:
        DataError: it is no run directory.
    """
    return Fingerprint(read_json(simulation / "fingerprint.json")["parts"], {}).digest


def key_of(folder: Path) -> str:
    """The public key of the party whose folder this is, 64 hexadecimal digits; drawn on the first call.

    Raises:
        DataError: the key is missing from a folder that has been used.
    """
    state = folder / STATE
    if not (state / SIGNING_KEY).exists():
        Diary(state)  # a client's account is as old as its key, so that a key alone is what is left of a loss
    return FolderStore(state).verification_key().hex()
