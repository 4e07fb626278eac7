"""The results of studies: an index in SQLite over run directories, which survives kills and many writers.

    STORE/results.sqlite   STORE/runs/ALGORITHM-DIGEST/   STORE/STUDY/ (tables, figures, report, log)

The run directories hold the truth. The index can be removed at any time; the next start of a study fills it from them
without training anything. A run is known by the hash of its resolved experiment, so studies share runs.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from privfl.errors import DataError
from privfl.files import cannot_write, sha256, usable_folder
from privfl.study.history import History

FILE = "results.sqlite"
RUNS = "runs"
OWN_PAGE = "."
"""The study whose folder is the store's own; no other one can be called so."""
VERSION = 1
APPLICATION = 0x70667374
"""Marks an SQLite file as a store of privfl."""
PATIENCE = 60.0
"""Seconds that a writer waits for another one."""
MEND = "move it away, and starting the study again fills a new one from the run directories without training anything"
State = Literal["waiting", "running", "done", "failed", "impossible"]
STATES = get_args(State)
CELLS = tuple(f"{unit}/{observer}" for unit in ("sample", "client") for observer in ("server", "public"))
"""The cells of a statement, as figures of runs are called by."""

_TABLES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', process TEXT NOT NULL DEFAULT '',
    began REAL, ended REAL, settings TEXT NOT NULL DEFAULT '{}', rounds INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE metrics (
    run TEXT NOT NULL REFERENCES runs (run) ON DELETE CASCADE, name TEXT NOT NULL, value REAL,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE studies (study TEXT PRIMARY KEY, source TEXT NOT NULL, told TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE members (
    study TEXT NOT NULL REFERENCES studies (study) ON DELETE CASCADE, place INTEGER NOT NULL, method TEXT NOT NULL,
    level TEXT NOT NULL, seed INTEGER NOT NULL, run TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (study, place)
) WITHOUT ROWID;
"""
_ENDINGS = """
CREATE TABLE IF NOT EXISTS endings (
    run TEXT PRIMARY KEY REFERENCES runs (run) ON DELETE CASCADE, summary TEXT NOT NULL, reproducible INTEGER NOT NULL
) WITHOUT ROWID
"""
"""How a run had ended when its figures were read: what ended otherwise by now is read anew."""


@dataclass(frozen=True)
class Ending:
    """How a run has ended: by it is seen whether the figures in the index are still those of its directory.

    Args:
        summary: digest of its summary, empty if there is none.
        reproducible: whether noise came from a fixed key, so that it must not be released.
    """

    summary: str = ""
    reproducible: bool = False

    @classmethod
    def of(cls, folder: Path) -> Self:
        """That of the run in ``folder``."""
        if not (folder / "summary.json").exists():
            return cls()
        try:
            statement = json.loads((folder / "statement.json").read_text(encoding="utf-8"))
            reproducible = bool(statement["reproducible_noise"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            reproducible = False  # whoever reads the run's figures says what is damaged
        return cls(sha256(folder / "summary.json"), reproducible)


@dataclass(frozen=True)
class Member:
    """One run as a study sees it.

    Args:
        method, level, seed: where it stands on the study's axes.
        run: name of its directory; empty if it is impossible.
        state: how far it is.
        reason: why it failed, or is impossible.
        metrics: what it reached, by name; NaN where a figure is not finite or not known, ∞ for ε without a claim.
        began: when its latest start was, in seconds since 1970; 0 if it never was.
        rounds: how many it was asked for.
        reproducible: whether its noise came from a fixed key, so that it must not be released.
    """

    method: str
    level: str
    seed: int
    run: str
    state: State = "waiting"
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    began: float = 0.0
    rounds: int = 0
    reproducible: bool = False

    def __str__(self) -> str:
        return f"{self.method}, {self.level}, seed {self.seed}"


class Store:
    """The index in ``folder``; it may be used by any number of processes at once."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        """Open the store in ``folder``, or begin one.

        Raises:
            ConfigError: no folder can be there.
            DataError: the file there is of another version, or no store at all; or there is none and ``create`` is off.
            PrivflError: the disk refuses.
        """
        self.folder, self.file, self.history = folder, folder / FILE, History(folder)
        if not self.file.exists() and not create:
            raise DataError(
                f"{folder} holds no results yet; start with `privfl study run`, or say where they are by --out"
            )
        try:
            usable_folder(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        with self._open() as database:
            self._prepare(database)

    def path(self, run: str) -> Path:
        """The directory of the run called ``run``.

        Raises:
            DataError: the name leads elsewhere, as none that a study gives does.
        """
        if Path(run).name != run:
            raise DataError(f"{self.file} names the run '{run}', which is no folder of {self.folder / RUNS}; {MEND}")
        return self.folder / RUNS / run

    def enrol(self, study: str, source: str, told: Mapping[str, Any], members: Sequence[Member]) -> None:
        """Say which runs belong to ``study``; what is known of them stays, and those that it had are not forgotten.

        Args:
            source: a hash of what the members follow from, see :meth:`source`.
            told: what tables and reports need to know of the study.
        """
        rows = [
            (study, place, one.method, one.level, one.seed, one.run, one.state, one.reason)
            for place, one in enumerate(members)
        ]
        runs = {(one.run, one.rounds) for one in members if one.run}
        self._keep(study, [one.run for one in members])
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM members WHERE study = ?", (study,))
            database.execute("INSERT OR REPLACE INTO studies VALUES (?, ?, ?)", (study, source, json.dumps(told)))
            database.executemany("INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("INSERT OR IGNORE INTO runs (run, state, rounds) VALUES (?, 'waiting', ?)", runs)
            database.execute("COMMIT")

    def _keep(self, study: str, runs: Sequence[str]) -> None:
        """Note in the history which ``runs`` the ``study`` has, and had: of earlier versions only the index does."""
        with self._open() as database:
            had = database.execute(
                "SELECT m.run, r.state FROM members m LEFT JOIN runs r ON r.run = m.run WHERE m.study = ?", (study,)
            ).fetchall()
        for run, state in had:
            if state == "done" and run:
                self.history.sent(run)
        self.history.enrol(study, [*(run for run, _ in had), *runs])

    def begin(self, run: str) -> None:
        """Note that this process has started ``run``."""
        self.history.begin(run, known=run in self.outdated([run]))
        with self._open() as database:
            database.execute(
                "INSERT INTO runs (run, state, process, began) VALUES (?, 'running', ?, ?) ON CONFLICT (run) DO UPDATE "
                "SET state = 'running', reason = '', process = excluded.process, began = excluded.began, ended = NULL",
                (run, f"{os.getpid()} on {platform.node()}", time.time()),
            )

    def finish(self, run: str, metrics: Mapping[str, float | None], settings: Mapping[str, Any] | None = None) -> None:
        """Note that ``run`` has come to its end with these ``metrics``.

        Args:
            settings: all that decided it; ``None`` leaves those that were noted.
        """
        ending = Ending.of(self.path(run))
        self.history.sent(run)
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            if settings is None:
                (kept,) = database.execute("SELECT settings FROM runs WHERE run = ?", (run,)).fetchone() or ("{}",)
                settings = json.loads(kept)
            self._replace(database, run, "done", "", metrics, settings)
            row = run, ending.summary, ending.reproducible
            database.execute("INSERT OR REPLACE INTO endings VALUES (?, ?, ?)", row)
            database.execute("COMMIT")

    def fail(self, run: str, reason: str, metrics: Mapping[str, float | None] | None = None) -> None:
        """Note why ``run`` failed, with what it had reached."""
        if self.history.standing(run) in ("ended", "open"):
            self.history.sent(run)
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            self._replace(database, run, "failed", reason, metrics or {}, {})
            database.execute("COMMIT")

    def studies(self) -> list[str]:
        """The names of all that were started here, in alphabetical order."""
        with self._open() as database:
            return [name for (name,) in database.execute("SELECT study FROM studies ORDER BY study")]

    def source(self, study: str) -> str:
        """What the members of ``study`` followed from when it was last started, empty if it never was."""
        with self._open() as database:
            row = database.execute("SELECT source FROM studies WHERE study = ?", (study,)).fetchone()
        return "" if row is None else str(row[0])

    def told(self, study: str) -> dict[str, Any]:
        """What :meth:`enrol` was told of ``study``.

        Raises:
            DataError: it was never started here.
        """
        with self._open() as database:
            row = database.execute("SELECT told FROM studies WHERE study = ?", (study,)).fetchone()
        if row is None:
            raise DataError(
                f"{self.folder} holds no study '{study}' (it holds {', '.join(self.studies()) or 'none'}); start it "
                "with `privfl study run`"
            )
        try:
            found = json.loads(row[0])
        except (ValueError, TypeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._damaged(study)
        return found

    def tell(self, study: str, told: Mapping[str, Any]) -> None:
        """Replace what :meth:`enrol` was told of ``study``."""
        with self._open() as database:
            database.execute("UPDATE studies SET told = ? WHERE study = ?", (json.dumps(told), study))

    def ended(self, runs: Sequence[str]) -> dict[str, State]:
        """The states of those of ``runs`` that are known.

        One whose directory is gone is as if it had never been, and one that has ended otherwise since it was noted,
        because it went on, is to be read anew.
        """
        return {run: state for run, (state, current) in self._standing(runs).items() if state != "done" or current}

    def outdated(self, runs: Sequence[str]) -> list[str]:
        """Those of ``runs`` that are noted as done, and whose directories are gone or have ended otherwise since."""
        return [run for run, (state, current) in self._standing(runs).items() if state == "done" and not current]

    def _standing(self, runs: Sequence[str]) -> dict[str, tuple[State, bool]]:
        """The state of each of ``runs`` that is known, and whether it ended as the index says."""
        with self._open() as database:
            rows = database.execute(
                "SELECT r.run, r.state, e.summary FROM runs r LEFT JOIN endings e ON e.run = r.run"
            ).fetchall()
        wanted, found = set(runs), dict[str, tuple[State, bool]]()
        for run, state, summary in rows:
            if run in wanted:
                file = self.path(run) / "summary.json"
                found[run] = state, state == "done" and file.exists() and sha256(file) == summary
        return found

    def members(self, study: str) -> list[Member]:
        """The runs of ``study`` in its order, as far as they are."""
        with self._open() as database:
            database.execute("BEGIN")
            rows = database.execute(
                "SELECT m.method, m.level, m.seed, m.run, m.state, m.reason, r.state, r.reason, r.began, r.rounds, "
                "e.reproducible FROM members m LEFT JOIN runs r ON r.run = m.run LEFT JOIN endings e ON e.run = m.run "
                "WHERE m.study = ? ORDER BY m.place",
                (study,),
            ).fetchall()
            values: dict[str, dict[str, float]] = {}
            for run, name, value in database.execute(
                "SELECT run, name, value FROM metrics WHERE run IN (SELECT run FROM members WHERE study = ?)", (study,)
            ):
                if not (isinstance(name, str) and isinstance(value, int | float | None)):
                    raise self._damaged(study)
                values.setdefault(run, {})[name] = math.nan if value is None else value
            database.execute("COMMIT")
        for *told, state, reason, began, rounds, _ in rows:
            if not all(isinstance(one, int if place == 2 else str) for place, one in enumerate(told)):
                raise self._damaged(study)
            if not (isinstance(reason, str | None) and isinstance(began, int | float | None)):
                raise self._damaged(study)
            if not ({told[4], state} <= {*STATES, None} and isinstance(rounds, int | None)):
                raise self._damaged(study)
        found = []
        for method, level, seed, run, own, because, state, reason, began, rounds, key in rows:
            now: State = own if own == "impossible" else state or "waiting"
            why = because if own == "impossible" else reason or ""
            figures = values.get(run, {})
            found.append(Member(method, level, seed, run, now, why, figures, began or 0.0, rounds or 0, bool(key)))
        return found

    def _damaged(self, study: str) -> DataError:
        """SQLite keeps any value in any column, so one who changed the file may have left what no study writes."""
        return DataError(f"{self.file} is damaged (what it holds of '{study}' no study wrote); {MEND}")

    def _replace(
        self,
        database: sqlite3.Connection,
        run: str,
        state: State,
        reason: str,
        metrics: Mapping[str, float | None],
        settings: Mapping[str, Any],
    ) -> None:
        database.execute(
            "INSERT INTO runs (run, state, reason, ended, settings) VALUES (?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE "
            "SET state = excluded.state, reason = excluded.reason, ended = excluded.ended, "
            "settings = excluded.settings",
            (run, state, reason, time.time(), json.dumps(settings, sort_keys=True)),
        )
        database.execute("DELETE FROM metrics WHERE run = ?", (run,))
        rows = [(run, name, value) for name, value in metrics.items()]
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one errand: none is kept, so that processes may come, go and be killed."""
        try:
            with closing(sqlite3.connect(self.file, timeout=PATIENCE, isolation_level=None)) as database:
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA synchronous = NORMAL")
                yield database
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message quotes what is no text
            if _is_busy(error):
                raise DataError(
                    f"{self.file} has been in use by another process for more than {PATIENCE:g} s; "
                    "wait for it, or end it"
                ) from error
            raise DataError(f"{self.file} cannot be used as a store of results ({error}); {MEND}") from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        _switch_to_wal(database)
        database.execute("BEGIN IMMEDIATE")
        (mark,), (version,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty:
            for statement in filter(str.strip, _TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        if empty or (mark, version) == (APPLICATION, VERSION):
            database.execute(_ENDINGS)  # what earlier versions do not have
        database.execute("COMMIT")
        if not empty and (mark, version) != (APPLICATION, VERSION):
            what = f"a store of version {version}" if mark == APPLICATION else "an SQLite file of another program"
            raise DataError(
                f"{self.file} is {what}, and this privfl reads version {VERSION}; move it away, and starting the study "
                "again fills a new one from the run directories, or choose another --out"
            )


def _is_busy(error: Exception) -> bool:
    """Whether another process has the file, by SQLite's primary code, which is the low byte of the extended one."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _switch_to_wal(database: sqlite3.Connection) -> None:
    """Choose the journal in which readers do not wait for writers.

    SQLite does not wait by itself here: of two processes that begin a store at once each would wait for the other.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as error:
            if not _is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
