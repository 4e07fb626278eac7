"""A study: many runs side by side, their results in one table, and what the whole sweep spent."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from privfl.config import Experiment
from privfl.errors import ConfigError, PrivflError
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
        name = f"{self.method}-{self.level}-seed{self.experiment.seed}"
        return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)


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

    Runs go side by side in processes of their own, each on one core. A study that was interrupted goes on where it
    was; what is finished is not trained again. Writes ``results.json``, ``results.csv`` and ``study.json``.

    Raises:
        ConfigError: two runs have the same name.
    """
    folders = [cell.folder for cell in cells]
    twice = {folder for folder in folders if folders.count(folder) > 1}
    if twice:
        raise ConfigError(f"two runs of the study are called '{sorted(twice)[0]}'; give them different levels or seeds")
    count = processes or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    failures = []
    console = Console(stderr=True)
    columns = (
        TextColumn("runs"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool, Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(cells))
        waiting = {pool.submit(_run_cell, cell, out / "runs" / cell.folder): cell for cell in cells}
        for future in as_completed(waiting):
            cell = waiting[future]
            try:
                future.result()
            except (PrivflError, OSError) as error:
                failures.append(f"{cell.folder}: {error}")
            bar.update(task, advance=1, description=f"{cell.method}, {cell.level}")
    results = [read_result(cell, out) for cell in cells if (out / "runs" / cell.folder / "summary.json").exists()]
    write_whole(out / "study.json", (json.dumps({"title": title, "failures": failures}, indent=2) + "\n").encode())
    write_results(results, out)
    return results, failures


def _run_cell(cell: Cell, folder: Path) -> None:
    cell.experiment.run(folder, resume=True)


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
        epsilons={name: None if value == float("inf") else value for name, value in epsilons.items()},
        noise_multiplier=summary["noise_multiplier"],
        rounds=summary["rounds"],
        seconds=sum(line["seconds"] for line in read_lines(path / "timing.jsonl")),
        folder=cell.folder,
    )


def write_results(results: Sequence[Result], out: Path) -> None:
    """``results.json`` and ``results.csv``, one row for each run."""
    rows = [asdict(result) for result in results]
    write_whole(out / "results.json", (json.dumps(rows, indent=2) + "\n").encode())
    with (out / "results.csv").open("w", newline="") as file:
        names = [name for name in Result.__dataclass_fields__ if name != "epsilons"]
        writer = csv.DictWriter(file, [*names, *(f"epsilon {cell}" for cell in CELLS)])
        writer.writeheader()
        for row in rows:
            spent = {
                f"epsilon {cell}": "inf" if value is None else value for cell, value in row.pop("epsilons").items()
            }
            writer.writerow(row | spent)


def load_results(out: Path) -> list[Result]:
    """The rows that :func:`write_results` wrote."""
    return [Result(**row) for row in json.loads((out / "results.json").read_text())]


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over the seeds of one method at one level."""

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
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        worst: dict[str, float | None] = {}
        for cell in CELLS:
            values = [member.epsilons[cell] for member in members]
            finite = [value for value in values if value is not None]
            worst[cell] = max(finite) if len(finite) == len(values) else None
        rows.append(Summary(method, level, len(members), statistics.mean(accuracies), spread, worst))
    return rows


def sweep_statement(out: Path, results: Sequence[Result], target_delta: float) -> Statement | None:
    """What all ``results`` together spent, for the example or client that fared worst in every run.

    Runs with different seeds deal the examples to different clients, so each run counts with the most that any client
    released in it: an upper bound whoever holds what. ``None`` if there is no run.
    """
    ledgers = []
    for result in results:
        checkpoint = RunDirectory(out / "runs" / result.folder).checkpoint()
        if checkpoint is not None:
            state = checkpoint.meta["ledger"]
            ledgers.append(_worst_case(Ledger.from_state(state, state["fingerprint"])))
    if not ledgers:
        return None
    return make_statement(Ledger.merged(ledgers), target_delta, reproducible_noise=False)


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
