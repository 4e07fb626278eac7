"""Mutates the files that users write or keep, and counts what becomes of each: taken, refused in a sentence, traceback.

    python benchmarks/mutated_files.py --number 20000 --out benchmarks/results/mutated-files.json

Experiment, study, attack and audit files are mutated as parsed tables and as text, the index of a store likewise;
every mutant goes through what its command does with it. An experiment is read, its task is made, its settings are
checked, and every fiftieth that passes is trained; of a study all runs are resolved, and every twentieth that passes is
run; the others run as their commands run them. What takes longer than ``--limit`` seconds of CPU is cut off and
counted, because a mutant may ask for a million rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from mutations import ATTACK, AUDIT, EXPERIMENTS, STORABLE, STUDY, mutated_table, mutated_text

from privfl.cli import report
from privfl.commands.attack import attack_run
from privfl.commands.audit import audit_experiment
from privfl.commands.examine import check, examine
from privfl.errors import LONGEST, ConfigError, PrivflError
from privfl.experiment import Experiment
from privfl.simulation.plan import RunSettings, prepare
from privfl.simulation.recorder import recorded_observers
from privfl.study.conduct import told
from privfl.study.file import Study
from privfl.study.results import Results
from privfl.study.store import FILE as INDEX
from privfl.study.store import Store


class CutOff(BaseException):
    """The time of one mutant is up; no handler of ordinary exceptions may take it."""


class Bench:
    """The files that are mutated, and what is done with a mutant of each kind."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit, self.passed, self.studies = folder, limit, 0, 0
        self.tasks: dict[str, Any] = {}
        experiment = folder / "private.toml"
        experiment.write_text(EXPERIMENTS[1], encoding="utf-8")
        recorded = folder / "run"
        Experiment.from_toml(experiment, ["record=true"]).run(recorded)
        Study(tomllib.loads(EXPERIMENTS[0]), title="mutants", seeds=2).run(folder / "store", name="of", processes=1)
        with closing(sqlite3.connect(folder / "store" / INDEX)) as index:
            index.execute("PRAGMA journal_mode = DELETE")  # everything in one file
        self.index = (folder / "store" / INDEX).read_bytes()
        self.sources: dict[str, tuple[str, ...]] = {
            "experiment": EXPERIMENTS,
            "attack": (ATTACK.format(run=recorded),),
            "audit": (AUDIT.format(experiment=experiment),),
            "study": STUDY,
            "index": ("",),
        }
        self.does: dict[str, Callable[[Path], Any]] = {
            "experiment": self.experiment,
            "study": self.study,
            "attack": attack_run,
            "audit": audit_experiment,
        }

    def experiment(self, path: Path) -> None:
        """Read the file, make its task, check its settings, and train one in fifty."""
        experiment = Experiment.from_toml(path)
        recipe = repr((experiment.recipe, experiment.schedule.seed))
        if recipe not in self.tasks:
            self.tasks = {recipe: experiment.task()}
        task, names = self.tasks[recipe], ("algorithm", "schedule", "training", "privacy", "cohort", "availability")
        parts = {name: getattr(experiment, name) for name in (*names, "execution")}
        prepare(RunSettings(task=task, record=recorded_observers(experiment.record), **parts))
        self.passed += 1
        if self.passed % 50 == 0:
            out = self.folder / "trained"
            shutil.rmtree(out, ignore_errors=True)
            experiment.run_on(task, out)

    def study(self, path: Path) -> None:
        """Read the file and resolve every run; of one in twenty that pass, have them too."""
        study = Study.from_toml(path)
        resolved = check(study, study.resolve())
        if sentences := told(resolved):
            raise ConfigError(" ".join(sentences)[:LONGEST])
        self.studies += 1
        if self.studies % 20 == 0 and len(resolved) < 20:
            out = self.folder / "trained"
            shutil.rmtree(out, ignore_errors=True)
            study.run(out, processes=1, examine=examine, check=check)

    def read_index(self, content: bytes) -> None:
        """Read the store with ``content`` as its index, and write the study's page."""
        store = self.folder / "store"
        for leftover in store.glob(f"{INDEX}-*"):
            leftover.unlink()
        (store / INDEX).write_bytes(content)
        Results.of(Store(store, create=False), "of").table()
        report(store / "of")

    def mutated_index(self, die: random.Random) -> tuple[str, bytes]:
        """Some bytes of the index exchanged, or one of its values, where its rules allow for that."""
        if die.random() < 0.5:
            content = bytearray(self.index)
            for _ in range(die.choice((1, 3, 30))):
                content[die.randrange(len(content))] = die.randrange(256)
            return "text", bytes(content)
        path = self.folder / "mutant.sqlite"
        path.write_bytes(self.index)
        with closing(sqlite3.connect(path, isolation_level=None)) as index:
            table = die.choice([name for (name,) in index.execute("SELECT name FROM sqlite_master ORDER BY name")])
            column = die.choice([row[1] for row in index.execute(f"PRAGMA table_info({table})")])
            value = die.choice([*STORABLE, "[]", "null", '{"title": 3}', b"\xff"])
            with contextlib.suppress(sqlite3.IntegrityError):
                index.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        return "parsed", path.read_bytes()

    def mutant(self, kind: str, number: int, die: random.Random) -> tuple[str, bytes, int]:
        """How the next mutant was made, its content, and which file it was made of."""
        which = number % len(self.sources[kind])
        if kind == "index":
            return *self.mutated_index(die), which
        text = self.sources[kind][which]
        if die.random() < 0.5:
            return "text", mutated_text(text, die), which
        try:
            return "parsed", tomli_w.dumps(mutated_table(tomllib.loads(text), die)).encode(), which
        except (TypeError, UnicodeError):  # TOML has no null
            return "text", mutated_text(text, die), which

    def outcome(self, kind: str, content: bytes, which: int) -> tuple[str, str]:
        """What becomes of the file ``content``, and what was said of it."""
        path = self.folder / "mutant.toml"
        path.write_bytes(content)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self.read_index(content) if kind == "index" else self.does[kind](path)
        except CutOff:
            return "cut off", ""
        except PrivflError as error:
            sentence = str(error)
            fine = sentence.isprintable() and 10 < len(sentence) <= LONGEST
            return "refused" if fine else "no sentence", sentence
        except (Exception, SystemExit):  # whatever else it is, it is what this looks for
            return "traceback", traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return "taken", ""


@contextmanager
def cutting() -> Iterator[None]:
    """The timer of a mutant cuts it off."""

    def cut(*_: object) -> None:
        raise CutOff

    before = signal.signal(signal.SIGVTALRM, cut)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def unsaid() -> Iterator[None]:
    """Nobody is warned of what thousands of files have in common."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


SHARES = {"experiment": 14, "attack": 2, "audit": 2, "study": 6, "index": 1}


def campaign(number: int, seed: int, limit: float, seconds: float, show: bool, first: int = 0) -> dict[str, Any]:
    """The counts of the mutants from ``first`` to ``number``, or of as many as fit into ``seconds``."""
    began, done = time.monotonic(), Counter[str]()
    counts: dict[str, Counter[str]] = {}
    findings = []
    with tempfile.TemporaryDirectory() as folder, cutting(), unsaid():
        bench = Bench(Path(folder), limit)
        kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
        for index in range(first, number):
            if time.monotonic() - began > seconds:
                break
            kind = kinds[index % len(kinds)]
            die = random.Random(f"{seed} {index}")
            how, content, which = bench.mutant(kind, index // len(kinds), die)
            result, said = bench.outcome(kind, content, which)
            counts.setdefault(f"{kind} {how}", Counter())[result] += 1
            done[result] += 1
            if result in ("traceback", "no sentence"):
                findings.append({"index": index, "kind": kind, "said": said[-1500:], "content": repr(content[:3000])})
                if show:
                    print(index, kind, said[-600:], file=sys.stderr, flush=True)
    return {
        "first": first,
        "asked": number,
        "seed": seed,
        "limit": limit,
        "tried": done.total(),
        "outcomes": dict(done),
        "by kind": {kind: dict(found) for kind, found in sorted(counts.items())},
        "findings": findings,
    }


def main() -> None:
    """Run the campaign of the command line, and write its counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="go on from this mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="CPU seconds for one mutant")
    parser.add_argument("--seconds", type=float, default=1e9, help="of the whole campaign")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # a mutant that asks for too much is told so
    found = campaign(options.number, options.seed, options.limit, options.seconds, show=True, first=options.first)
    text = json.dumps(found, indent=2) + "\n"
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(bool(found["findings"]))


if __name__ == "__main__":
    main()
