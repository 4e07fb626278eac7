"""Trials: runs that see nothing but training data, a part of which they hold out to be judged by.

Which rows are for validation is decided for each row by a hash of its own inputs, so that one row more or less moves no
other one, and copies of a row are never on both sides. A row that any run of the study is tested on, whatever its seed,
takes no part in a trial. The trial's ``test_…``, ``local_…`` and ``personal_…`` figures are those of validation rows.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.data.mapped import Rows
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.federation.client_index import ClientIndex
from privfl.federation.read_off import validated
from privfl.federation.task import Task
from privfl.files import read_json
from privfl.simulation.callbacks import Callback, Simulation
from privfl.simulation.result import Run
from privfl.simulation.run_directory import Metrics, RunDirectory

FILE = "trial.json"
_PIECE = 4096
"""Rows hashed at once: what is larger than memory is read piece by piece."""
_tests: dict[str, _Tests] = {}
"""What a process has read already, by recipe and seed: all trials of a study ask for the same."""


@dataclass(frozen=True)
class HeldOut:
    """What trials hold out of the training data.

    Args:
        share: of the rows, for validation, in (0, 1).
        seed: decides which.
        tested: the seeds of the study's runs, whose test rows no trial sees.
    """

    share: float
    seed: int
    tested: tuple[int, ...]


@dataclass(frozen=True)
class Trial(Experiment):
    """An experiment that holds validation rows out of its training data and is judged by them."""

    held: HeldOut = field(kw_only=True)

    @classmethod
    def of(cls, experiment: Experiment, held: HeldOut) -> Self:
        """The trial that differs from ``experiment`` in its data alone."""
        return cls(**{item.name: getattr(experiment, item.name) for item in fields(Experiment)}, held=held)

    def to_dict(self) -> dict[str, Any]:
        """The settings of the experiment."""
        return self._experiment(self.schedule.seed).to_dict()

    def task(self) -> Task:
        """The experiment's task without the rows that are tested on anywhere, and with validation rows for its tests.

        Raises:
            ConfigError: nothing is left to train on, or to validate by; or the experiment has no task.
        """
        whole = self._experiment(self.schedule.seed).task()
        barred = self._barred(whole)
        judges = _for_validation(row_hashes(whole.inputs), self.held)
        train, judged = [], []
        for client in range(len(whole.clients)):
            rows = whole.clients[client].cpu().numpy()
            rows = rows[~barred[rows]]
            train.append(rows[~judges[rows]])
            judged.append(rows[judges[rows]])
            if not len(train[-1]):
                raise ConfigError(
                    f"client {client} keeps no row for tuning (of {len(whole.clients[client])}, {len(rows)} are test "
                    f"rows of no seed, {len(judged[-1])} of them for validation); fix the division by dataset.seed, or "
                    "choose a smaller validation or another seed in study.tuning"
                )
        index = ClientIndex.allowing_empty(judged)
        held = torch.sort(index.rows).values
        if not len(held):
            raise ConfigError("tuning holds no row out for validation; raise study.tuning.validation")
        own = whole.local_tests is not None
        return replace(
            whole,
            clients=ClientIndex.of(train),
            test_inputs=whole.inputs[held],
            test_targets=whole.targets[held],
            local_tests=index if own else None,
            local_validations=None,
            read_off=validated(whole.read_off),
            report=None,
        )

    def run(self, out: Path | str | None = None, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Run:
        """Run it, and note beside its results what it held out."""
        return self.run_on(self.task(), out, resume=resume, callbacks=[*callbacks, self._note])

    def _note(self, simulation: Simulation, line: Metrics) -> None:
        if simulation.path is not None and not (simulation.path / FILE).exists():
            told = {"validation_rows": len(simulation.task.test_targets), "experiment": self.to_toml()}  # TOML holds ∞
            RunDirectory(simulation.path).write_json(FILE, told)

    def _experiment(self, seed: int) -> Experiment:
        given = {item.name: getattr(self, item.name) for item in fields(Experiment)}
        return Experiment(**{**given, "schedule": replace(self.schedule, seed=seed)})

    def _barred(self, whole: Task) -> NDArray[np.bool_]:
        """Which rows [N] of ``whole`` some run of the study is tested on."""
        barred = np.zeros(len(whole.inputs), dtype=bool)
        own, foreign = whole.content(), set[bytes]()
        if whole.local_tests is not None:
            barred[whole.local_tests.rows.cpu().numpy()] = True
        for seed in self.held.tested:
            tests = self._tests_of(seed)
            if tests.held_out != own["test_inputs"]:  # the same test rows are none of this task's
                foreign |= tests.hashes
            if tests.inputs == own["inputs"]:
                barred[tests.local] = True
            else:
                foreign |= tests.local_hashes
        if foreign:
            barred |= np.array([one in foreign for one in row_hashes(whole.inputs)])
        return barred

    def _tests_of(self, seed: int) -> _Tests:
        recipe = {item.name: self.to_dict().get(item.name) for item in fields(self.recipe)}
        key = json.dumps([recipe, seed], sort_keys=True, default=str)
        if key not in _tests:
            _tests[key] = _Tests.of(self._experiment(seed).task())
        return _tests[key]


@dataclass(frozen=True)
class _Tests:
    """The rows that a run is tested on: hashes of whole arrays, of each row, and which rows clients hold back."""

    held_out: str
    inputs: str
    local: NDArray[np.int64]
    task: Task

    @classmethod
    def of(cls, task: Task) -> _Tests:
        content = task.content()
        local = np.empty(0, dtype=np.int64) if task.local_tests is None else task.local_tests.rows.cpu().numpy()
        return cls(content["test_inputs"], content["inputs"], local, task)

    @cached_property
    def hashes(self) -> frozenset[bytes]:
        return frozenset(row_hashes(self.task.test_inputs))

    @cached_property
    def local_hashes(self) -> frozenset[bytes]:
        return frozenset(row_hashes(self.task.inputs[torch.from_numpy(self.local)])) if len(self.local) else frozenset()


def row_hashes(inputs: Rows) -> list[bytes]:
    """16 bytes for each row of ``inputs`` [N, ...], the same for equal rows."""
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for piece in _pieces(inputs) for row in piece]


def validation_rows(run: Path) -> int:
    """How many validation rows the trial in the directory ``run`` was judged by.

    Raises:
        DataError: it is no trial, or its file is damaged.
    """
    return int(_told(run)["validation_rows"])


def trial_settings(run: Path) -> dict[str, Any]:
    """The settings of the experiment of which the run in ``run`` is a trial; raises as :func:`validation_rows`."""
    experiment = _told(run)["experiment"]
    return tomllib.loads(experiment) if isinstance(experiment, str) else dict(experiment)


def _told(run: Path) -> dict[str, Any]:
    if not (run / FILE).exists():
        raise DataError(f"{run} holds no {FILE}, so what the trial held out is not known; remove it and start again")
    return read_json(run / FILE, "remove the run and start the study again")


def _for_validation(hashes: Sequence[bytes], held: HeldOut) -> NDArray[np.bool_]:
    """For each row whether it is for validation: a coin that the row itself throws."""
    salt = f"validation {held.seed} ".encode()
    coins = [int.from_bytes(hashlib.blake2b(salt + one, digest_size=8).digest(), "little") for one in hashes]
    return np.array(coins, dtype=np.uint64) < np.uint64(int(held.share * 2**64))


def _pieces(inputs: Rows) -> Iterator[NDArray[Any]]:
    for start in range(0, len(inputs), _PIECE):
        piece: torch.Tensor = inputs[start : start + _PIECE]
        yield piece.cpu().contiguous().reshape(len(piece), -1).numpy()
