"""An experiment's data dealt out to folders, one for each party: to rehearse a federation on one machine."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from privfl.deploy.agreement import Federation
from privfl.deploy.budget import OwnSettings
from privfl.deploy.diary import Diary
from privfl.deploy.tasks import TaskDescription
from privfl.errors import ConfigError, brief
from privfl.experiment import Experiment
from privfl.files import make_folder, write_whole
from privfl.privacy.secagg.store import FolderStore

AGREED = ("experiment.toml", "federation.toml")
OWN = "own.toml"
DATA = "data.npz"
STATE = "state"


def party_folders(out: Path, clients: int) -> dict[str, Path]:
    """The folder of each party by its name."""
    return {name: out / name for name in ("server", *(f"client-{number}" for number in range(clients)))}


def split(
    experiment: Experiment, text: str, out: Path, *, url: str, epsilon: float | None, seconds: float
) -> list[Path]:
    """Write a folder for the server and for each client of ``experiment``, with its own key and rows.

    Args:
        text: of the experiment file, which every party gets a copy of.
        url: where the server will listen.
        epsilon: each client's own budget, ``None`` for none.
        seconds: how long the server waits for one leg.

    Returns:
        The folders, the server's first.

    Raises:
        ConfigError: ``epsilon`` is no budget, ``out`` holds something, or the task cannot be described.
    """
    OwnSettings(0, epsilon)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{brief(str(out))} holds something already; give a new folder")
    task = experiment.task()
    folders = party_folders(out, len(task.clients))
    for folder in folders.values():
        make_folder(folder)
    server = FolderStore(folders["server"] / STATE).verification_key().hex()
    clients = [
        Diary(folder / STATE).store.verification_key().hex() for name, folder in folders.items() if name != "server"
    ]
    federation = Federation(url, server, tuple(clients), TaskDescription.of(task), seconds)
    for folder in folders.values():
        for name, content in zip(AGREED, (text, federation.to_toml()), strict=True):
            write_whole(folder / name, content.encode())
    _save(folders["server"] / DATA, test_inputs=task.test_inputs.numpy(), test_targets=task.test_targets.numpy())
    for number in range(len(task.clients)):
        folder, rows = folders[f"client-{number}"], task.clients[number]
        _save(folder / DATA, inputs=task.inputs[rows].numpy(), targets=task.targets[rows].numpy())
        own = {"number": number, **({} if epsilon is None else {"epsilon": epsilon})}
        write_whole(folder / OWN, tomli_w.dumps(own).encode())
    return list(folders.values())


def _save(file: Path, **arrays: NDArray[Any]) -> None:
    """Write ``arrays`` to a ``file`` that nobody but its owner can read."""
    content = BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_whole(file, content.getvalue(), mode=0o600)
