"""A study at work: what is not finished yet is trained, one directory and one line of the store for each run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from filelock import Timeout

from privfl.errors import PrivflError
from privfl.experiment import Experiment
from privfl.files import write_whole
from privfl.simulation.plan import prepare
from privfl.simulation.run_directory import RunDirectory
from privfl.simulation.state import State
from privfl.study.clients import record_clients, write_clients
from privfl.study.display import Display
from privfl.study.locks import lock_of
from privfl.study.members import settings_of
from privfl.study.record import TRAFFIC, Values, read_run, record_traffic, write_traffic
from privfl.study.store import Store
from privfl.study.workers import DIED, Workers

Outcome = Literal["done", "failed", "busy"]
Examine = Callable[[Path, Mapping[str, Any]], None]
"""Attacks and audits the run in a directory, as tables say, and files what it finds there."""


@dataclass(frozen=True)
class Job:
    """One run to be had.

    Args:
        store: folder of the store.
        run: name of the run's directory.
        experiment: the run.
        settings: its own, as resolved, for the store.
        tables: attacks and audits, as their files hold them.
        examine: carries them out; at the top of a module, so that another process can import it.
    """

    store: Path
    run: str
    experiment: Experiment
    settings: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    examine: Examine | None = None


def execute(store: Store, jobs: Sequence[Job], workers: Workers, display: Display) -> None:
    """Have every job done or failed by ``workers``; those that another study is at come last."""
    busy: list[Job] = []
    for wait in (False, True):
        asked, busy = (busy if wait else list(jobs)), []
        if not asked:
            continue
        for job, outcome in workers.outcomes(partial(perform, wait=wait), asked):
            if outcome == "busy":
                busy.append(job)
                continue
            if outcome is None:
                store.fail(job.run, DIED)
            display.ended(job.run)


def perform(job: Job, *, wait: bool) -> Outcome:
    """Train, attack and audit one run, unless that was done before, and note in the store what came of it.

    Args:
        wait: whether to wait for another process that is at the same run; otherwise it is left to that one.
    """
    store = Store(job.store)
    folder = store.path(job.run)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_of(folder)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        return "busy"
    with lock:
        if store.ended([job.run]).get(job.run) == "done":
            return "done"
        store.begin(job.run)
        values: Values = {}
        try:
            values, reason = _perform(job, folder)
        except (PrivflError, OSError) as error:
            reason = str(error)
        except Exception as error:  # an algorithm or a loss of the user's own may raise anything
            write_whole(folder / "error.txt", traceback.format_exc().encode())
            reason = f"{type(error).__name__}: {error} (see {folder / 'error.txt'})"
        else:
            (folder / "error.txt").unlink(missing_ok=True)
        if reason:
            store.fail(job.run, reason, values)
            return "failed"
        store.finish(job.run, values, job.settings)
        return "done"


def _perform(job: Job, folder: Path) -> tuple[Values, str]:
    """What the run reached, and why it failed if it did."""
    RunDirectory(folder).settle()
    if not ((folder / "summary.json").exists() and (folder / "statement.json").exists()):
        job.experiment.run(folder, resume=True, callbacks=[record_clients, record_traffic])
    if not (folder / TRAFFIC).exists():  # an interruption came between the last round and the callbacks
        task = job.experiment.task()
        plan = prepare(settings_of(job.experiment, task))
        write_clients(folder, task)
        write_traffic(folder, plan.algorithm, State.start(plan).server)
    values, failure = read_run(folder)
    if failure:
        return values, f"the run ended without having learnt: {failure}"
    if job.examine is not None:
        job.examine(folder, job.tables)
        values, _ = read_run(folder)
    return values, ""
