"""A run on disk: what it was, what it measured, what it may claim, and where to go on after an interruption.

    config.toml  environment.json  fingerprint.json  metrics.jsonl  timing.jsonl  statement.json  summary.json
    checkpoints/  figures/

Every file appears whole or not at all: it is written beside its place, forced to disk and moved. Checkpoints are NumPy
archives read without pickle. ``metrics.jsonl`` may run ahead of the checkpoint; a resumed run cuts it back first.
While a run is in flight ``noise.key`` (readable by the owner only) holds the key of its privacy noise, so that a
resumed run repeats the noise of a round instead of spending it twice; it is erased when the run ends. What differs from
the run that began (``fingerprint.json``) is refused: it would send other messages under the same noise.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import platform
import stat
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from privfl.errors import ConfigError, DataError, PrivflError
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource
from privfl.schema import read_toml
from privfl.simulation.fingerprint import DATA, INDIFFERENT, Fingerprint, versions

Metrics = dict[str, Any]
EXTENSION = "extension.json"
"""For how many rounds a run goes on that was planned for fewer, and under which key."""


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
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        with suppress(OSError, ValueError):
            beside.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError | ValueError) -> PrivflError:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "make room and resume with --resume" if full else "choose another folder, or mend this one"
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return PrivflError(f"cannot write {said_path(path)}: {reason}; what was saved before is intact, {mend}")


def usable_folder(path: Path | str) -> Path:
    """``path``, if a folder can be there.

    Raises:
        ConfigError: a file is in its place or on the way to it, the name is too long or holds a NUL, or the folder
            cannot be looked into.
    """
    folder = Path(path)
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        blocked = not stat.S_ISDIR(os.stat(there).st_mode)
        with suppress(FileNotFoundError, NotADirectoryError):  # it is yet to be made, or there is no place for it
            os.lstat(folder)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"the folder {said_path(folder)} cannot be used: {reason}; choose another one") from error
    if blocked:
        raise ConfigError(f"the folder {said_path(folder)} cannot be made: a file is in its way; choose another one")
    return folder


def said_path(path: Path) -> str:
    """``path`` as a sentence can hold it: on one line, and cut short in the middle where it is very long."""
    text = str(path) if str(path).isprintable() else repr(str(path))
    return text if len(text) <= 200 else f"{text[:90]}…{text[-90:]}"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after ``round`` finished rounds: tensors by name, and JSON-able ``meta``."""

    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class RunDirectory:
    """The files of one run under ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path = usable_folder(path)
        self.checkpoint_file = path / "checkpoints" / "latest.npz"
        self.key_file = path / "noise.key"

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / "environment.json").exists()

    @property
    def finished(self) -> bool:
        """Whether the run that is here came to its end, by its last round or by its budget: it sends nothing more."""
        return (self.path / "summary.json").exists()

    def begin(
        self, config: Mapping[str, Any], fingerprint: Fingerprint, source: NoiseSource, *, noisy: bool, resume: bool
    ) -> tuple[Checkpoint | None, NoiseSource]:
        """Start or go on.

        Args:
            config: the settings as ``config.toml`` holds them.
            fingerprint: what the messages of this run depend on.
            source: the fixed key, or one that was drawn just now.
            noisy: whether any message is hidden by noise.
            resume: go on with the run that is here, if there is one.

        Returns:
            The checkpoint to go on from, ``None`` for a fresh start, and the source with the run's own key.

        Raises:
            ConfigError: the folder holds another run, or a run and ``resume`` is off.
            DataError: the checkpoint or the key cannot be read, or the files were changed since.
        """
        if self.begun and not resume:
            raise ConfigError(
                f"{self.path} already holds a run; go on with --resume or choose another folder with --out"
            )
        if not self.begun:
            self._start(config, fingerprint, source)
            return None, source
        checkpoint = self.checkpoint()
        remains = not self.finished and (checkpoint is None or checkpoint.round < config.get("rounds", math.inf))
        differing = self.differences(config)
        record = self.read_json("fingerprint.json")
        if record is not None and (extension := self.read_json(EXTENSION)) is not None:
            record["key"] = extension["key"]
        if remains and not differing:
            source = self._kept(source, record)
        if record is not None:
            # Where nothing is sent any more, it matters whether this is the run that was asked for, and no more.
            known = record["parts"] if remains else {**fingerprint.parts, **_only(DATA, record["parts"])}
            differing += fingerprint.differences(known, settings=bool(differing), libraries=noisy)
        elif remains and noisy:
            raise DataError(
                f"{self.path} holds no fingerprint.json, so nobody can tell whether its rounds would be repeated as "
                "they were sent; restore it, or start anew with another --out"
            )
        if differing:
            raise ConfigError(
                f"{self.path} holds a run with other settings: {'; '.join(differing)}; repeat its config.toml on what "
                "it began with, or choose another --out"
            )
        self._cut_metrics(checkpoint)
        return checkpoint, source

    def _start(self, config: Mapping[str, Any], fingerprint: Fingerprint, source: NoiseSource) -> None:
        """Write what a run begins with; ``environment.json`` comes last, and with it the run has begun."""
        if self.checkpoint_file.exists() or self.finished:
            raise DataError(
                f"{self.path} holds what is left of a run without its environment.json; restore it, or start anew with "
                "another --out"
            )
        self._cut_metrics(None)
        write_whole(self.key_file, source.key.hex().encode(), mode=0o600)
        text = tomli_w.dumps(config).encode()
        write_whole(self.path / "config.toml", text)
        key = {"fixed": source.reproducible, "check": source.check}
        self.write_json("fingerprint.json", {"parts": dict(fingerprint.parts), "key": key})
        self.write_json("environment.json", {**environment(), "config_sha256": hashlib.sha256(text).hexdigest()})

    def _kept(self, source: NoiseSource, record: Mapping[str, Any] | None) -> NoiseSource:
        """The source of the run that goes on, which is the one that it began with."""
        began = None if record is None else record["key"]
        if began is not None and began["fixed"] != source.reproducible:
            kinds = "a fixed noise_key" if began["fixed"] else "a key from the operating system"
            raise ConfigError(
                f"{self.path} holds a run that began with {kinds}; set privacy.noise_key as it was, or choose another "
                "--out"
            )
        if not source.reproducible:
            source = NoiseSource(self._stored_key(), reproducible=False)
        if began is not None and began["check"] != source.check:
            what = "privacy.noise_key" if source.reproducible else str(self.key_file)
            raise ConfigError(f"{what} is not the key that the run began with; restore it, or choose another --out")
        return source

    def _stored_key(self) -> bytes:
        try:
            key = bytes.fromhex(self.key_file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.key_file} is gone, and what was sent since the checkpoint cannot be repeated under the same "
                "noise without it; restore it, or start anew with another --out"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {self.key_file} ({error}); restore it, or choose another --out") from error
        if len(key) != KEY_BYTES:
            raise DataError(
                f"{self.key_file} holds {len(key)} bytes where a key has {KEY_BYTES}; restore it, or choose another "
                "--out"
            )
        return key

    def differences(self, config: Mapping[str, Any]) -> list[str]:
        """Which settings of the run that is here ``config`` has otherwise, each with both values.

        Raises:
            ConfigError: ``config.toml`` is missing.
            DataError: it was changed since the run began.
        """
        path = self.path / "config.toml"
        extension = self.read_json(EXTENSION) or {}
        there, here = _flat(read_toml(path, "a run's config.toml")), _flat(config)
        there |= {name: value for name, value in extension.items() if name == "rounds"}
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

    def _cut_metrics(self, checkpoint: Checkpoint | None) -> None:
        """Cut off what ran ahead of the checkpoint, and write its own lines where they say otherwise."""
        rounds, stored = (0, None) if checkpoint is None else (checkpoint.round, checkpoint.meta.get("metrics"))
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [line for line in read_lines(self.path / name) if line["round"] < rounds]
            if kept or (self.path / name).exists():
                self.write_lines(name, stored if name == "metrics.jsonl" and stored is not None else kept)

    def write_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file ``name`` of JSON lines."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        write_whole(self.path / name, text.encode())


def _only(names: Mapping[str, str], parts: Mapping[str, str]) -> dict[str, str]:
    return {name: part for name, part in parts.items() if name in names}


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
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version for name, version in versions().items() if name != "Python"},
    }
