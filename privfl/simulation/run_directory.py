"""A run on disk: what it was, what it measured, what it may claim, and where to go on after an interruption.

    config.toml  environment.json  fingerprint.json  metrics.jsonl  timing.jsonl  statement.json  summary.json
    checkpoints/  figures/  run.lock

Every file appears whole or not at all: it is written beside its place, forced to disk and moved. JSON files and
archives carry digests, and ``summary.json`` those of the statement and the metrics. ``metrics.jsonl`` may run ahead of
the checkpoint, or behind it after a power cut; a resumed run writes it anew from the checkpoint.
While a run is in flight ``noise.key`` holds the key of its privacy noise, so that a resumed run repeats the noise of a
round instead of spending it twice; it is erased when the run ends, or by whoever opens the folder next. What differs
from the run that began (``fingerprint.json``) is refused: it would send other messages under the same noise. Whether
a repeated round sent the same is seen from ``rounds.jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w
import torch

from privfl.errors import ConfigError, DataError
from privfl.files import (
    append,
    cannot_write,
    make_folder,
    read_json,
    read_lines,
    sha256,
    usable_folder,
    write_json,
    write_whole,
)
from privfl.lock import FolderLock
from privfl.privacy.accounting.statement import Statement
from privfl.privacy.noise.source import NoiseSource
from privfl.schema import read_toml
from privfl.simulation.checkpoint import Checkpoint, read_checkpoint
from privfl.simulation.commit import commit
from privfl.simulation.fingerprint import DATA, INDIFFERENT, Fingerprint, versions
from privfl.simulation.noise_key import KeyFile
from privfl.simulation.repeated_rounds import ROUNDS, check_shown, read_rounds

Metrics = dict[str, Any]
EXTENSION = "extension.json"
"""For how many rounds a run goes on that was planned for fewer, under which key, and, if it had ended, from where."""
CHECKPOINT = "checkpoints/latest.npz"
ENDED = ("metrics.jsonl", "statement.json")
"""What a finished run is read from, beside its summary, which holds their digests."""


class RunDirectory:
    """The files of one run under ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path = usable_folder(path)
        self.checkpoint_file = path / CHECKPOINT
        self.key_file = KeyFile(path)
        self.waiting: Mapping[str, Any] | None = None  # what EXTENSION is going to hold, of a run that is extended
        self._lock = FolderLock(path)

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / "environment.json").exists()

    @property
    def sent(self) -> bool:
        """Whether the run that is here has ended a round."""
        return self.checkpoint_file.exists() or bool(self.metrics())

    @property
    def finished(self) -> bool:
        """Whether the run that is here came to its end, by its last round or by its budget: it sends nothing more."""
        return self.waiting is None and (self.path / "summary.json").exists()

    @property
    def extension(self) -> Mapping[str, Any]:
        """What :data:`EXTENSION` holds, or is going to; empty for a run that is as long as it was planned."""
        return (self.read_json(EXTENSION) or {}) if self.waiting is None else self.waiting

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out, and end what an interruption left undone.

        Raises:
            ConfigError: another process holds the folder; the sentence names it.
            PrivflError: the disk refuses.
        """
        with self._lock.held():
            self._end_erasure()
            yield

    def settle(self) -> None:
        """End what an interruption of a finished run left undone, unless a process is at work here."""
        if self.finished and self.key_file.there:
            with self.held():
                pass
        elif self.finished:
            self._lock.clear()

    def _end_erasure(self) -> None:
        if self.finished and self.key_file.there:
            self.key_file.erase()

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
            PrivflError: the disk refuses.
        """
        if self.begun and not resume:
            raise ConfigError(
                f"{self.path} already holds a run; go on with --resume or choose another folder with --out (from "
                f"Python: resume=True, or another out=)"
            )
        if not self.begun:
            self._start(config, fingerprint, source, noisy=noisy)
            return None, source
        checkpoint, run = read_checkpoint(self.checkpoint_file) if self.checkpoint_file.exists() else (None, None)
        remains = not self.finished and (checkpoint is None or checkpoint.round < config.get("rounds", math.inf))
        differing = self.differences(config)
        record = self.read_json("fingerprint.json")
        if record is not None:
            self._check_extended(checkpoint, run)
            record["key"] = (self.extension or record)["key"]
        if self.finished:
            self.check_ended()
        if remains and not differing:
            source = self.key_file.source_of(record, source)
        if record is not None:
            # Where nothing is sent any more, it matters whether this is the run that was asked for, and no more.
            data = {name: part for name, part in record["parts"].items() if name in DATA}
            known = record["parts"] if remains else {**fingerprint.parts, **data}
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
        if remains and noisy:
            check_shown(self, 0 if checkpoint is None else checkpoint.round, always="rounds" in self._record)
        self._cut_metrics(checkpoint)
        return checkpoint, source

    def _check_extended(self, checkpoint: Checkpoint | None, run: str | None) -> None:
        """See that ``checkpoint``, which names ``run``, is this run's, and none from before it ended and was extended.

        The rounds that an ended run had sent would come out again under the key of its extension, charged to nobody.
        """
        extension, mend = self.extension, "restore it, or choose another --out"
        first, key = extension.get("from"), self._record["key"]
        if checkpoint is None:
            # Another key is that of a run which had ended, also where an earlier version did not say from where.
            if first is not None or extension.get("key", key) != key:
                raise DataError(f"{self.checkpoint_file} is missing, from which the run was to go on; {mend}")
        elif run == self._run:
            return
        elif first is None and run is not None:
            raise DataError(f"{self.checkpoint_file} belongs to another run; {mend}")
        elif first is not None and sha256(self.checkpoint_file) != extension["checkpoint"]:
            raise DataError(
                f"{self.checkpoint_file} is from before round {first}, from which the run was extended when it had "
                f"ended, or belongs to another run; {mend}"
            )

    def check_ended(self) -> None:
        """See that the checkpoint, and what rounds came to, are those that the run ended with.

        Raises:
            DataError: one of them is missing, or another one.
        """
        summary = read_json(self.path / "summary.json")
        kept = (ROUNDS,) if ROUNDS in summary.get("sha256", {}) else ()  # of noise only, and not by earlier versions
        self._compare(summary, (CHECKPOINT, *kept), "restore it, or choose another --out")

    def _compare(self, summary: Mapping[str, Any], names: Sequence[str], mend: str) -> None:
        """See that the files ``names`` are those that the run ended with."""
        digests = summary.get("sha256", {})
        for name in names:
            if sha256(self.path / name) != digests.get(name):
                raise DataError(f"{self.path / name} is damaged or was changed since the run ended; {mend}")

    def _start(self, config: Mapping[str, Any], fingerprint: Fingerprint, source: NoiseSource, *, noisy: bool) -> None:
        """Write what a run begins with; ``environment.json`` comes last, and with it the run has begun."""
        if self.sent or self.finished or read_rounds(self.path / ROUNDS):
            raise DataError(
                f"{self.path} holds what is left of a run without its environment.json; restore it, or start anew with "
                "another --out"
            )
        self.make_folder(self.checkpoint_file.parent.name)
        self._cut_metrics(None)
        self.write_lines(ROUNDS, []) if noisy else (self.path / ROUNDS).unlink(missing_ok=True)
        self.key_file.store(source)
        text = tomli_w.dumps(config).encode()
        self.write("config.toml", text)
        key = {"fixed": source.reproducible, "check": source.check}
        rounds = {"rounds": ROUNDS} if noisy else {}  # from now on that file is there
        self.write_json("fingerprint.json", {"parts": dict(fingerprint.parts), "key": key, **rounds})
        self.write_json("environment.json", {**environment(), "config_sha256": hashlib.sha256(text).hexdigest()})

    def config_file(self) -> Path:
        """The file of the settings that the run began with.

        Raises:
            DataError: it is missing, or was changed since.
        """
        path = self.path / "config.toml"
        if sha256(path) != read_json(self.path / "environment.json").get("config_sha256"):
            raise DataError(
                f"{path} is damaged or was changed since the run began; restore it, or start anew with another --out"
            )
        return path

    def differences(self, config: Mapping[str, Any]) -> list[str]:
        """Which settings of the run that is here ``config`` has otherwise, each with both values.

        Raises:
            DataError: ``config.toml`` is missing, or was changed since the run began.
        """
        there, here = _flat(read_toml(self.config_file(), "a run's config.toml")), _flat(config)
        there |= {name: value for name, value in self.extension.items() if name == "rounds"}
        # Where both hash the data, it does not matter whose function returned them; where one does not yet, it does.
        hashed = all(any(key.startswith("data.") for key in side) for side in (there, here))
        ignored = ("task",) if hashed else tuple(key for key in there if "task" in there and key.startswith("data."))
        return [
            f"{key} is {there.get(key, 'not set')!r} there and {here.get(key, 'not set')!r} here"
            for key in sorted(there.keys() | here.keys(), key=lambda key: (key.startswith("data."), key))
            if key not in (*INDIFFERENT, *ignored) and there.get(key) != here.get(key)
        ]

    @property
    def _record(self) -> dict[str, Any]:
        """What ``fingerprint.json`` holds."""
        return read_json(self.path / "fingerprint.json")

    @property
    def _run(self) -> str:
        """What tells this run apart from every other one: a hash of what it depends on and of its key.

        Of a run that was extended when it had ended, also a hash of where it goes on: then it is another one.
        """
        told: list[Any] = [self._record]
        if "from" in (extension := self.extension):
            told.append({name: extension[name] for name in ("key", "from", "checkpoint")})
        text = json.dumps(told if len(told) > 1 else told[0], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def make_folder(self, name: str) -> None:
        """Make the folder ``name`` if it is missing; raises what :meth:`write` raises."""
        self._lock.check()
        try:
            make_folder(self.path / name)
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def write(self, name: str, content: bytes) -> None:
        """Replace the file ``name`` as a whole.

        Raises:
            PrivflError: the disk refuses, or the folder is no longer this process's own.
        """
        self._lock.check()
        write_whole(self.path / name, content, folders=False)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace the JSON file ``name``; raises what :meth:`write` raises."""
        self._lock.check()
        write_json(self.path / name, content, folders=False)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What the JSON file ``name`` holds, ``None`` if there is none.

        Raises:
            DataError: it is damaged or was changed.
        """
        return read_json(self.path / name) if (self.path / name).exists() else None

    def append(self, name: str, line: Mapping[str, Any], *, durable: bool = False) -> None:
        """Append a JSON line to the file ``name``; ``durable`` waits for the disk. Raises what :meth:`write` raises."""
        self._lock.check()
        append(self.path / name, json.dumps(line, allow_nan=False) + "\n", durable=durable)

    def metrics(self) -> list[Metrics]:
        """All complete lines of ``metrics.jsonl``."""
        return read_lines(self.path / "metrics.jsonl")

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; raises what :meth:`write` raises."""
        self.write(CHECKPOINT, checkpoint.encode(self._run))

    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint, ``None`` if there is none.

        Raises:
            DataError: it cannot be read.
        """
        return read_checkpoint(self.checkpoint_file)[0] if self.checkpoint_file.exists() else None

    def end(self, checkpoint: Checkpoint, metrics: Sequence[Metrics], statement: Statement, summary: Metrics) -> None:
        """Write down how the run ended, and erase its key; raises what :meth:`write` raises."""
        self.save(checkpoint)
        self.write_lines("metrics.jsonl", metrics)
        self.write("statement.json", statement.to_json().encode())
        kept = (ROUNDS,) if (self.path / ROUNDS).exists() else ()  # an extension compares its rounds with these
        files = {name: sha256(self.path / name) for name in (CHECKPOINT, *ENDED, *kept)}
        self.write_json("summary.json", {**summary, "sha256": files})
        self.key_file.erase()

    def ending(self) -> tuple[Metrics, Statement, list[Metrics]]:
        """How the run ended: its summary, its statement, and its lines of metrics.

        Raises:
            DataError: one of the files is missing, damaged, or not the one that the run ended with.
        """
        summary = read_json(self.path / "summary.json")
        self._compare(
            summary, ENDED, f"`privfl run {quote(str(self.path))} --resume` writes it anew from the checkpoint"
        )
        del summary["sha256"]
        text = (self.path / "statement.json").read_text(encoding="utf-8")
        return summary, Statement.from_json(text), self.metrics()

    def _cut_metrics(self, checkpoint: Checkpoint | None) -> None:
        """Cut off what ran ahead of the checkpoint, and write the lines that it holds, also those that are missing."""
        rounds, stored = (0, None) if checkpoint is None else (checkpoint.round, checkpoint.meta.get("metrics"))
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [line for line in read_lines(self.path / name) if _round(line) < rounds]
            if stored is not None and name == "metrics.jsonl":
                kept = stored
            if kept or (self.path / name).exists():
                self.write_lines(name, kept)

    def write_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file ``name`` of JSON lines."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        self.write(name, text.encode())


def _round(line: Any) -> float:
    """The round that a line tells of; a damaged line tells of none, so that it comes after all."""
    number = line.get("round") if isinstance(line, dict) and _is_finite(line) else None
    return number if isinstance(number, int) else math.inf


def _is_finite(line: Mapping[str, Any]) -> bool:
    """Whether ``line`` holds no number such as 1e999, which can be read and not be written again."""
    try:
        json.dumps(line, allow_nan=False)
    except ValueError:
        return False
    return True


def _flat(settings: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """``settings`` as one level, with dotted keys."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{key}{name}.") if isinstance(value, Mapping) else {f"{key}{name}": value}
    return found


def environment() -> dict[str, Any]:
    """Versions and machine, for the record."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": commit(),
        "packages": {name: version for name, version in versions().items() if name != "Python"},
    }
