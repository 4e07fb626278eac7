"""A study: many runs side by side, and their results in one table."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import statistics
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from privfl.errors import ConfigError, DataError, PrivflError
from privfl.experiment import Experiment
from privfl.federation.task import Task
from privfl.files import remove, write_json, write_whole
from privfl.lock import FolderLock
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.simulation.run_directory import RunDirectory, read_lines
from privfl.study.clients import FILE, record_clients, write_clients
from privfl.study.composed import PythonRun
from privfl.study.record import DAMAGED, why_failed
from privfl.study.workers import DIED, cores, outcomes

CELLS = tuple(f"{unit}/{observer}" for unit in UNITS for observer in OBSERVERS)


def slug(name: str) -> str:
    """``name`` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.replace("ε", "epsilon"))


@dataclass(frozen=True)
class Cell:
    """One run of a study: ``method`` and ``level`` say what it is, runs that differ only in the seed share both."""

    method: str
    level: str
    experiment: Experiment | PythonRun

    @property
    def folder(self) -> str:
        """Name of the run's directory."""
        return _folder(self.method, self.level, self.experiment.schedule.seed)

    def task(self) -> Task:
        """The task of the run."""
        return self.experiment.build_task() if isinstance(self.experiment, PythonRun) else self.experiment.task()


def _folder(method: str, level: str, seed: int) -> str:
    return slug(f"{method}-{level}-seed{seed}")


@dataclass(frozen=True)
class Result:
    """One finished run.

    ``accuracy`` is that of the last evaluation, ``best`` the largest and ``tail`` the mean of the last 10; ``best`` was
    chosen on the test data, so it is no result. ``epsilons`` has ∞ as ``None``.
    """

    method: str
    level: str
    seed: int
    accuracy: float
    best: float
    tail: float
    epsilons: dict[str, float | None]
    noise_multiplier: float | None
    rounds: int
    seconds: float
    folder: str


def run_study(
    cells: Sequence[Cell], out: Path, *, title: str, processes: int | None = None
) -> tuple[list[Result], list[str]]:
    """Run every cell into ``out/runs``; returns the results and a sentence for every run that failed.

    Runs go side by side in ``processes`` processes (default one for each core), each on one core; 1 stays in this
    process. More than one start afresh, so a script that calls this guards its entry with ``if __name__ ==
    "__main__"``. The results do not depend on it. A study that was interrupted goes on where it was, what is finished
    is not repeated, and a run that fails loses no other. Writes ``results.json``, ``results.csv`` and ``study.json``.

    Raises:
        ConfigError: there is no run, two have the same name, ``processes`` < 1, a run cannot go to another process, or
            another process is at work in ``out``.
    """
    folders = [cell.folder for cell in cells]
    twice = {folder for folder in folders if folders.count(folder) > 1}
    if not cells:
        raise ConfigError(f"the study '{title}' has no run; give at least one")
    if twice:
        raise ConfigError(f"two runs of the study are called '{sorted(twice)[0]}'; give them different levels or seeds")
    if processes is not None and processes < 1:
        raise ConfigError(f"a study runs in {processes} processes; give an integer ≥ 1")
    processes = processes or cores()
    if processes > 1:
        _check_portable(cells)
    lock = FolderLock(out)
    with lock.held():
        return _run_study(cells, out, title, processes, lock)


def _run_study(
    cells: Sequence[Cell], out: Path, title: str, processes: int, lock: FolderLock
) -> tuple[list[Result], list[str]]:
    failed: dict[str, str] = {}
    columns = (
        TextColumn("runs"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(cells))
        for cell, reason in _outcomes(cells, out, processes):
            if reason:
                failed[cell.folder] = reason
            bar.update(task, advance=1, description=f"{cell.method}, {cell.level}")
    results = []
    for cell in cells:
        if cell.folder not in failed:
            try:
                results.append(
                    read_result(cell.method, cell.level, cell.experiment.schedule.seed, out / "runs" / cell.folder)
                )
            except DataError as error:
                failed[cell.folder] = str(error)
    failures = [f"{cell.folder}: {failed[cell.folder]}" for cell in cells if cell.folder in failed]
    lock.check()
    write_json(out / "study.json", {"title": title, "failures": failures}, folders=False)
    write_results(results, out)
    return results, failures


def _check_portable(cells: Sequence[Cell]) -> None:
    for cell in cells:
        try:
            ForkingPickler.dumps(cell)
        except Exception as error:  # pickling raises whatever an object's own methods raise
            raise ConfigError(
                f"run '{cell.folder}' cannot be handed to another process ({error}); define its parts at the top of a "
                "module, or set processes = 1"
            ) from error


def _outcomes(cells: Sequence[Cell], out: Path, processes: int) -> Iterator[tuple[Cell, str]]:
    """Every cell with why it failed, or the empty string, in the order in which they end."""
    for cell, reason in outcomes(partial(_start, _run_cell, out), cells, processes):
        yield cell, DIED if reason is None else reason


def _start(run: Callable[[Cell, Path], str], out: Path, cell: Cell) -> str:
    return run(cell, out / "runs" / cell.folder)


def _run_cell(cell: Cell, folder: Path) -> str:
    """Run one cell, unless ``folder`` holds its end already; returns why it failed, or the empty string."""
    try:
        RunDirectory(folder).settle()
        if _finished(cell, folder):
            failure = why_failed(folder)
        else:
            failure = cell.experiment.run(folder, resume=True, callbacks=[record_clients]).failure
        if not (folder / FILE).exists():  # an interruption came between the last round and the callback
            write_clients(folder, cell.task())
        remove(folder / "error.txt")
        if failure:
            return f"the run ended without having learnt: {failure}"
    except (PrivflError, OSError) as error:
        return str(error)
    except Exception as error:  # an algorithm or a loss of the user's own may raise anything
        write_whole(folder / "error.txt", traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} (see {folder / 'error.txt'})"
    return ""


def _finished(cell: Cell, folder: Path) -> bool:
    if not ((folder / "summary.json").exists() and (folder / "statement.json").exists()):
        return False
    return not RunDirectory(folder).differences(cell.experiment.to_dict())


def read_result(method: str, level: str, seed: int, folder: Path) -> Result:
    """The row of one finished run, read from its directory.

    Raises:
        DataError: a file is missing or damaged, or the run was never evaluated.
    """
    try:
        summary, statement, metrics = RunDirectory(folder).ending()
        headline = summary.get("headline", {}).get("name", "test_accuracy")
        if headline != "test_accuracy":
            raise DataError(
                f"the study's table compares accuracies, and the run's task is judged by {headline}; read it from the "
                "run's own summary.json"
            )
        accuracies = [line["test_accuracy"] for line in metrics if "test_accuracy" in line]
        if not accuracies:
            raise DataError(
                f"the run ended after {summary['rounds']} rounds ({summary['stopped']}), before its first evaluation; "
                "set a smaller evaluate_every"
            )
        epsilons = {f"{one.unit}/{one.observer}": one.epsilon for one in statement.cells}
        return Result(
            method=method,
            level=level,
            seed=seed,
            accuracy=accuracies[-1],
            best=max(accuracies),
            tail=statistics.mean(accuracies[-10:]),
            epsilons={name: None if math.isinf(epsilons[name]) else epsilons[name] for name in CELLS},
            noise_multiplier=summary["noise_multiplier"],
            rounds=summary["rounds"],
            seconds=sum(line["seconds"] for line in read_lines(folder / "timing.jsonl")),
            folder=folder.name,
        )
    except DAMAGED as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} cannot be read ({error}); remove it and start the study again") from error


def write_results(results: Sequence[Result], out: Path) -> None:
    """``results.json`` and ``results.csv``, one row for each run."""
    rows = [asdict(result) for result in results]
    write_whole(out / "results.json", (json.dumps(rows, indent=2) + "\n").encode())
    names = [name for name in Result.__dataclass_fields__ if name != "epsilons"]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names, *(f"epsilon {cell}" for cell in CELLS)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        spent = {f"epsilon {cell}": "inf" if value is None else value for cell, value in row.pop("epsilons").items()}
        writer.writerow(row | spent)
    write_whole(out / "results.csv", text.getvalue().encode())


def load_results(out: Path) -> list[Result]:
    """The rows of a study, each read from its run's own files: ``results.json`` only says which runs belong to it.

    Raises:
        DataError: a file of a run is missing or damaged, or ``results.json`` is not what :func:`write_results` wrote.
    """
    try:
        rows = [(row["method"], row["level"], row["seed"], os.fspath(row["folder"])) for row in _rows(out)]
    except DAMAGED as error:
        raise DataError(f"{out / 'results.json'} is damaged ({error}); start the study again") from error
    for method, level, seed, folder in rows:
        if Path(folder).name != folder:
            raise DataError(f"{out / 'results.json'} names the run '{folder}', which is no folder of {out / 'runs'}")
        if folder != _folder(method, level, seed):
            raise DataError(
                f"{out / 'results.json'} is damaged: '{folder}' is not the run of {method}, {level}, seed {seed}; "
                "start the study again"
            )
    return [read_result(method, level, seed, out / "runs" / folder) for method, level, seed, folder in rows]


def _rows(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return rows


@dataclass(frozen=True)
class Summary:
    """Accuracy at the end of the runs of one method at one level: mean and sample standard deviation over seeds.

    ``deviation`` is NaN for one seed.
    """

    method: str
    level: str
    seeds: int
    accuracy: float
    deviation: float
    epsilons: dict[str, float | None]
    """The largest over the seeds."""


def summarise(results: Sequence[Result]) -> list[Summary]:
    """One row for each method and level, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.method, result.level), []).append(result)
    rows = []
    for (method, level), members in groups.items():
        accuracies = [member.accuracy for member in members]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else math.nan
        worst: dict[str, float | None] = {}
        for cell in CELLS:
            values = [member.epsilons[cell] for member in members]
            finite = [value for value in values if value is not None]
            worst[cell] = max(finite) if len(finite) == len(values) else None
        rows.append(Summary(method, level, len(members), statistics.mean(accuracies), spread, worst))
    return rows
