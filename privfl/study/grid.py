"""A study: many runs side by side, their results in one table, and what the whole sweep spent."""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import os
import re
import statistics
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from privfl.config import Experiment
from privfl.errors import ConfigError, DataError, PrivflError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Release
from privfl.privacy.accounting.statement import Statement, make_statement
from privfl.run_directory import RunDirectory, read_lines, write_whole

CELLS = tuple(f"{unit}/{observer}" for unit in UNITS for observer in OBSERVERS)


@dataclass(frozen=True)
class Cell:
    """One run of a study: ``method`` and ``level`` say what it is, runs that differ only in the seed share both."""

    method: str
    level: str
    experiment: Experiment

    @property
    def folder(self) -> str:
        """Name of the run's directory."""
        name = f"{self.method}-{self.level}-seed{self.experiment.seed}".replace("ε", "epsilon")
        return re.sub(r"[^A-Za-z0-9.]+", "-", name)


@dataclass(frozen=True)
class Result:
    """One finished run. ``epsilons`` has ∞ as ``None``; ``tail`` is the mean accuracy of the last 10 evaluations."""

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
        ConfigError: there is no run, two have the same name, or ``processes`` < 1.
    """
    folders = [cell.folder for cell in cells]
    twice = {folder for folder in folders if folders.count(folder) > 1}
    if not cells:
        raise ConfigError(f"the study '{title}' has no run; give at least one")
    if twice:
        raise ConfigError(f"two runs of the study are called '{sorted(twice)[0]}'; give them different levels or seeds")
    if processes is not None and processes < 1:
        raise ConfigError(f"a study runs in {processes} processes; give an integer ≥ 1")
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
        for cell, reason in _outcomes(cells, out, processes or _cores()):
            if reason:
                failed[cell.folder] = reason
            bar.update(task, advance=1, description=f"{cell.method}, {cell.level}")
    results = [read_result(cell, out) for cell in cells if cell.folder not in failed]
    failures = [f"{folder}: {failed[folder]}" for folder in folders if folder in failed]
    write_whole(out / "study.json", (json.dumps({"title": title, "failures": failures}, indent=2) + "\n").encode())
    write_results(results, out)
    return results, failures


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _outcomes(cells: Sequence[Cell], out: Path, processes: int) -> Iterator[tuple[Cell, str]]:
    """Every cell with why it failed, or the empty string, in the order in which they end."""
    if processes == 1:
        yield from ((cell, _run_cell(cell, out / "runs" / cell.folder)) for cell in cells)
        return
    orphans = []
    with _pool(min(processes, len(cells))) as pool:
        waiting = {pool.submit(_run_cell, cell, out / "runs" / cell.folder): cell for cell in cells}
        try:
            for future in as_completed(waiting):
                try:
                    yield waiting[future], future.result()
                except BrokenProcessPool:
                    orphans.append(waiting[future])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for cell in orphans:  # a process was killed and took its pool along; alone, each run shows whether it was the one
        with _pool(1) as pool:
            try:
                yield cell, pool.submit(_run_cell, cell, out / "runs" / cell.folder).result()
            except BrokenProcessPool:
                yield cell, "its process died (killed, out of memory, or the script has no `if __name__` guard)"


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


def _run_cell(cell: Cell, folder: Path) -> str:
    """Run one cell, unless ``folder`` holds its end already; returns why it failed, or the empty string."""
    try:
        if not _finished(cell, folder):
            cell.experiment.run(folder, resume=True)
    except (PrivflError, OSError) as error:
        return str(error)
    except Exception as error:  # an algorithm or a loss of the user's own may raise anything
        write_whole(folder / "error.txt", traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} (see {folder / 'error.txt'})"
    return ""


def _finished(cell: Cell, folder: Path) -> bool:
    ended = (folder / "summary.json").exists() and (folder / "statement.json").exists()
    return ended and (folder / "config.toml").read_text() == cell.experiment.to_toml()


def read_result(cell: Cell, out: Path) -> Result:
    """The row of one finished run, read from its directory."""
    path = out / "runs" / cell.folder
    accuracies = [line["test_accuracy"] for line in RunDirectory(path).metrics() if "test_accuracy" in line]
    statement = Statement.from_json((path / "statement.json").read_text())
    summary = json.loads((path / "summary.json").read_text())
    epsilons = {f"{one.unit}/{one.observer}": one.epsilon for one in statement.cells}
    return Result(
        method=cell.method,
        level=cell.level,
        seed=cell.experiment.seed,
        accuracy=accuracies[-1],
        best=max(accuracies),
        tail=statistics.mean(accuracies[-10:]),
        epsilons={name: None if math.isinf(value) else value for name, value in epsilons.items()},
        noise_multiplier=summary["noise_multiplier"],
        rounds=summary["rounds"],
        seconds=sum(line["seconds"] for line in read_lines(path / "timing.jsonl")),
        folder=cell.folder,
    )


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
    """The rows that :func:`write_results` wrote."""
    return [Result(**row) for row in json.loads((out / "results.json").read_text())]


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


def sweep_statement(out: Path, results: Sequence[Result]) -> Statement:
    """What all ``results`` together spent, for the example or client that fared worst in every run.

    Runs with different seeds deal the examples to different clients, so each run counts with the most that any client
    released in it: an upper bound whoever holds what. δ is the largest that any of the runs claims.

    Raises:
        DataError: a run's statement or ledger is missing or damaged, or there is no run.
    """
    if not results:
        raise DataError("a sweep of no runs spends nothing that could be told; give the results of at least one")
    ledgers, statements = [], []
    for result in results:
        folder = out / "runs" / result.folder
        checkpoint = RunDirectory(folder).checkpoint()
        if checkpoint is None:
            raise DataError(f"{folder} has no checkpoint, so what it spent is not known; run it again")
        state = checkpoint.meta["ledger"]
        ledgers.append(_worst_case(Ledger.from_state(state, state["fingerprint"])))
        statements.append(Statement.from_json((folder / "statement.json").read_text()))
    return make_statement(
        Ledger.merged(ledgers),
        max(statement.delta for statement in statements),
        reproducible_noise=any(statement.reproducible_noise for statement in statements),
    )


def _worst_case(ledger: Ledger) -> Ledger:
    """A ledger of one client that made every release as often as the client who made it most often."""
    most: dict[Release, int] = {}
    for unit in UNITS:
        for observer in OBSERVERS:
            histories = ledger.histories(unit, observer)
            largest = histories.counts.max(axis=0).toarray().reshape(-1) if histories.releases else []
            for release, count in zip(histories.releases, largest, strict=True):
                most[release] = max(most.get(release, 0), int(count))
    worst = Ledger(1, ledger.declared)
    for release, count in most.items():
        worst.record(release, None, count)
    return worst
