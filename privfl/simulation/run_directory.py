"""A run on disk: what it was, what it measured, what it may claim, and where to go on after an interruption.

    config.toml  environment.json  metrics.jsonl  timing.jsonl  statement.json  summary.json  checkpoints/  figures/

Every file appears whole or not at all: it is written beside its place, forced to disk and moved. Checkpoints are NumPy
archives read without pickle. ``metrics.jsonl`` may run ahead of the checkpoint; a resumed run cuts it back first.
While a run is in flight ``noise.key`` (readable by the owner only) holds the key of its privacy noise, so that a
resumed run repeats the noise of a round instead of spending it twice; it is erased when the run ends.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from privfl.errors import ConfigError, DataError, PrivflError
from privfl.schema import read_toml

Metrics = dict[str, Any]
_PACKAGES = ("privfl", "opacus", "numpy", "scipy", "cryptography", "dp-accounting", "scikit-learn")


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write ``content`` so that ``path`` holds either the old or the new content, whenever the machine stops.

    Raises:
        PrivflError: the disk is full or refuses; the old content is intact.
    """
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> PrivflError:
    return PrivflError(
        f"cannot write {path}: {error.strerror}; what was saved before is intact, make room and resume with --resume"
    )


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after ``round`` finished rounds: tensors by name, and JSON-able ``meta``."""

    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class RunDirectory:
    """The files of one run under ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_file = path / "checkpoints" / "latest.npz"
        self.key_file = path / "noise.key"

    def begin(self, config: Mapping[str, Any], *, resume: bool) -> Checkpoint | None:
        """Start or go on; returns the checkpoint to go on from, ``None`` for a fresh start.

        Raises:
            ConfigError: the folder holds another run, or a run and ``resume`` is off.
            DataError: the checkpoint cannot be read, or the settings were changed since.
        """
        begun = (self.path / "environment.json").exists()
        if begun and not resume:
            raise ConfigError(
                f"{self.path} already holds a run; go on with --resume or choose another folder with --out"
            )
        if begun:
            if differing := self.differences(config):
                raise ConfigError(
                    f"{self.path} holds a run with other settings: {'; '.join(differing)}; repeat its config.toml or "
                    "choose another --out"
                )
        else:
            text = tomli_w.dumps(config).encode()
            write_whole(self.path / "config.toml", text)
            self.write_json("environment.json", {**environment(), "config_sha256": hashlib.sha256(text).hexdigest()})
        checkpoint = self.checkpoint()
        self._cut_metrics(checkpoint.round if checkpoint else 0)
        return checkpoint

    def differences(self, config: Mapping[str, Any]) -> list[str]:
        """Which settings of the run that is here ``config`` has otherwise, each with both values.

        Raises:
            ConfigError: ``config.toml`` is missing.
            DataError: it was changed since the run began.
        """
        path = self.path / "config.toml"
        there, here = _flat(read_toml(path, "a run's config.toml")), _flat(config)
        began_with = json.loads((self.path / "environment.json").read_text(encoding="utf-8")).get("config_sha256")
        if hashlib.sha256(path.read_bytes()).hexdigest() != began_with:
            raise DataError(f"{path} was changed since the run began; restore it, or start anew with another --out")
        # Where both hash the data, it does not matter whose function returned them; where one does not yet, it does.
        hashed = all(any(key.startswith("data.") for key in side) for side in (there, here))
        ignored = ("task",) if hashed else tuple(key for key in there if "task" in there and key.startswith("data."))
        return [
            f"{key} is {there.get(key, 'not set')!r} there and {here.get(key, 'not set')!r} here"
            for key in sorted(there.keys() | here.keys(), key=lambda key: (key.startswith("data."), key))
            if key not in (*INDIFFERENT, *ignored) and there.get(key) != here.get(key)
        ]

    def write_json(self, name: str, content: Any) -> None:
        """Write ``content`` as JSON to the file ``name``."""
        write_whole(self.path / name, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """What the JSON file ``name`` holds, ``None`` if there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append one JSON line to the file ``name``."""
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise _cannot_write(self.path / name, error) from error

    def metrics(self) -> list[Metrics]:
        """All complete lines of ``metrics.jsonl``."""
        return read_lines(self.path / "metrics.jsonl")

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        buffer = io.BytesIO()
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in checkpoint.tensors.items()}
        meta = json.dumps({"round": checkpoint.round, **checkpoint.meta}).encode()
        named: dict[str, Any] = {f"tensor/{name}": array for name, array in arrays.items()}
        np.savez(buffer, meta=np.frombuffer(meta, np.uint8), **named)
        write_whole(self.checkpoint_file, buffer.getvalue())

    def noise_key(self, fresh: bytes) -> bytes:
        """The key of this run's noise: the stored one, or ``fresh``, stored now."""
        if self.key_file.exists():
            return bytes.fromhex(self.key_file.read_text(encoding="utf-8"))
        write_whole(self.key_file, fresh.hex().encode(), mode=0o600)
        return fresh

    def erase_key(self) -> None:
        """Forget the key: from now on nobody can repeat the noise."""
        if self.key_file.exists():
            self.key_file.write_bytes(bytes(self.key_file.stat().st_size))
            self.key_file.unlink()

    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint, ``None`` if there is none.

        Raises:
            DataError: it cannot be read.
        """
        if not self.checkpoint_file.exists():
            return None
        try:
            with np.load(self.checkpoint_file, allow_pickle=False) as archive:
                meta = json.loads(archive["meta"].tobytes())
                tensors = {
                    name.removeprefix("tensor/"): torch.from_numpy(archive[name])
                    for name in archive.files
                    if name.startswith("tensor/")
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"cannot read {self.checkpoint_file}: {error}; remove it to start again") from error
        return Checkpoint(int(meta.pop("round")), tensors, meta)

    def _cut_metrics(self, rounds: int) -> None:
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [line for line in read_lines(self.path / name) if line["round"] < rounds]
            if kept or (self.path / name).exists():
                write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in kept).encode())


INDIFFERENT = ("engine", "workers", "checkpoint_seconds")
"""Settings that another start may change: a run keeps its engine; workers change the rounding of stacked sums only."""


def _flat(settings: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """``settings`` as one level, with dotted keys."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{key}{name}.") if isinstance(value, Mapping) else {f"{key}{name}": value}
    return found


def read_lines(path: Path) -> list[Metrics]:
    """The complete JSON lines of ``path``; a last line that was cut short is left out."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def environment() -> dict[str, Any]:
    """Versions and machine, for the record."""
    versions = {"torch": str(torch.__version__)}  # names the build, such as +cpu, which the package's metadata may not
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": versions,
    }
