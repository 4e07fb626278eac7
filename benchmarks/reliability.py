"""Faults, tried one after the other: ``python benchmarks/reliability.py WHAT``, from the folder of the repository.

    points    every step on the disk of a run, a study, an attack and an audit: killed before it, in the middle of a
              write, and without power; what was interrupted is repeated and compared with what nobody interrupted
    kills     SIGKILL at a random moment, 500 times
    damage    5,000 copies of run directories, one file of each damaged
    starts    two processes that begin on one directory at the same instant, 100 times
    cost      seconds of a round, with and without forcing files to disk
    table     the table of docs/reliability.md from what the others wrote

Each writes its raw results to benchmarks/results/reliability/WHAT.json as it goes, and goes on from there when it is
started again. Work is done in processes forked from this one, so that nothing has to be imported twice (Linux, macOS).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from privfl.errors import PrivflError  # noqa: E402
from privfl.simulation.run_directory import RunDirectory  # noqa: E402
from privfl.study.demo import run_demo  # noqa: E402
from tests.runs import disk, interrupted_work  # noqa: E402
from tests.runs.damage import damage, sentence  # noqa: E402

Work = Callable[[Path], Any]
Row = dict[str, Any]


def demo(out: Path) -> None:
    """``privfl demo`` with one seed and two rounds, in one process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    run_demo(out, seeds=1, rounds=5)


def study_of_processes(out: Path) -> None:
    """A study of four cells in two processes."""
    from privfl.study.grid import Cell, run_study

    cells = [Cell("FedAvg", "plain", interrupted_work.experiment(seed)) for seed in range(4)]
    run_study(cells, out, title="t", processes=2)


KINDS: dict[str, tuple[Work, int]] = {
    "a run with noise": (interrupted_work.run, 150),
    "a run on the vectorised engine": (interrupted_work.vectorised_run, 80),
    "a run with banded noise": (interrupted_work.banded_run, 70),
    "a study": (interrupted_work.study, 50),
    "a study in two processes": (study_of_processes, 12),
    "the demo": (demo, 18),
    "an attack": (interrupted_work.attack, 60),
    "an audit": (interrupted_work.audit, 60),
}
"""What is killed, and how often."""
STEPWISE = [name for name in KINDS if name not in ("a study in two processes", "the demo")]


def prepared(name: str, root: Path) -> Path:
    """A folder below ``root`` in which the work ``name`` can begin."""
    out = root / "runs" / "out"
    out.parent.mkdir(parents=True)
    if name == "an attack":
        interrupted_work.recorded(out)
    return out


class Results:
    """The rows of one campaign, written down as they come."""

    def __init__(self, name: str) -> None:
        self.path = RESULTS / f"{name}.json"
        self.rows: list[Row] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else []

    def add(self, row: Row, *, write: bool = True) -> None:
        """Add ``row``."""
        self.rows.append(row)
        if write:
            self.write()

    def write(self) -> None:
        """Write all rows, one a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "[\n" + ",\n".join(json.dumps(row) for row in self.rows) + "\n]\n"
        beside = self.path.with_suffix(".part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.path)


def fork(work: Callable[[], Any]) -> int:
    """Start ``work`` in a process of its own, which says nothing; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        work()
        code = 0
    finally:
        os._exit(code)


def waited(child: int) -> int:
    """The exit status of ``child``, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def points() -> None:
    """Every step of every kind of work."""
    results = Results("points")
    for name in STEPWISE:
        if any(row["work"] == name for row in results.rows):
            continue
        work = KINDS[name][0]
        with tempfile.TemporaryDirectory() as folder:
            out = prepared(name, Path(folder))
            steps, states = disk.interruptions(out, functools.partial(work, out))
            whole, tried, differing = disk.result(out), Counter[str](), []
            for step, how, state in states:
                disk.lay(out, state)
                try:
                    work(out)
                    same = disk.result(out) == whole
                except Exception as error:  # whatever an interrupted piece of work raises is a finding
                    same = False
                    step = (*step, f"{type(error).__name__}: {error}")
                tried[how] += 1
                differing += [] if same else [[how, *step]]
        kinds = Counter(kind for kind, _ in steps)
        row = {"work": name, "steps": len(steps), **kinds, "states": dict(tried), "differing": differing}
        results.add(row)
        print(f"{name}: {len(steps)} steps, {sum(tried.values())} states, {len(differing)} differ", flush=True)


def kills() -> None:
    """SIGKILL at random moments."""
    results = Results("kills")
    for name, (work, count) in KINDS.items():
        done = [row for row in results.rows if row["work"] == name]
        with tempfile.TemporaryDirectory() as folder:
            interrupted_work.run(Path(folder) / "imports")
            study = Path(folder) / "more" / "runs" / "imports"
            interrupted_work.study(study)
            out = prepared(name, Path(folder) / "whole")
            began = time.monotonic()
            assert waited(fork(functools.partial(work, out))) == 0
            takes, whole = time.monotonic() - began, disk.result(out)
            before = prepared(name, Path(folder) / "killed")
            start = disk.tree(before)
            draw, missed = random.Random(f"{name} {len(done)}"), 0
            for number in range(len(done), count):
                while True:
                    disk.lay(before, start)
                    moment, died = draw.random() * takes, 0
                    child = fork(functools.partial(work, before))
                    time.sleep(moment)
                    os.kill(child, signal.SIGKILL)
                    died = waited(child)
                    if died == -signal.SIGKILL:
                        break
                    missed += 1
                    takes *= 0.9  # the machine is faster than it was
                left = len(disk.tree(before))
                ended = waited(fork(functools.partial(work, before)))
                same = ended == 0 and disk.result(before) == whole
                row = {"work": name, "number": number, "after": round(moment, 3), "files": left, "same": same}
                results.add(row, write=number % 10 == 9 or not same)
        results.write()
        rows = [row for row in results.rows if row["work"] == name]
        print(
            f"{name}: {len(rows)} kills, {sum(not row['same'] for row in rows)} differ ({missed} came late)", flush=True
        )


def in_flight(folder: Path) -> dict[str, dict[str, bytes | None]]:
    """Run directories to damage, by what they are: their content."""
    out = folder / "runs" / "out"
    out.parent.mkdir(parents=True)
    _, states = disk.interruptions(out, functools.partial(interrupted_work.run, out))
    finished = disk.tree(out)
    saves = ("write", "checkpoints/latest.npz.part")
    killed = [state for step, how, state in states if how == "killed" and step == saves]
    return {"before its first checkpoint": killed[0], "in flight": killed[2], "finished": finished}


def damages(count: int = 5000) -> None:
    """Damaged copies, of which each is refused in a sentence or gives the same numbers."""
    results = Results("damage")
    with tempfile.TemporaryDirectory() as folder:
        kinds = in_flight(Path(folder))
        out = Path(folder) / "runs" / "out"
        whole = disk.result(out)
        for number in range(len(results.rows), count):
            kind = sorted(kinds)[number % len(kinds)]
            disk.lay(out, kinds[kind])
            how, file = damage(out, number)
            results.add({"run": kind, "how": how, "file": file, **outcome(out, whole, kind)}, write=number % 100 == 99)
            if results.rows[-1]["outcome"] not in ("sentence", "same numbers"):
                print(number, results.rows[-1], flush=True)
    results.write()
    print(dict(Counter(row["outcome"] for row in results.rows)), flush=True)


def outcome(out: Path, whole: dict[str, Any], kind: str) -> Row:
    """What becomes of the damaged run in ``out``: one that was ``finished`` is read; it is resumed, and read again."""
    try:
        if kind == "finished":
            RunDirectory(out).ending()
        interrupted_work.run(out)
        RunDirectory(out).ending()
    except PrivflError as error:
        told = str(error).replace(str(out), "RUN")
        return {"outcome": "sentence" if sentence(error) else "no sentence", "told": told}
    except Exception as error:  # a traceback is what is looked for
        return {"outcome": "traceback", "told": f"{type(error).__name__}: {error}".replace(str(out), "RUN")}
    found = disk.result(out)
    differing = [name for name in whole if found.get(name) != whole[name]]
    return {"outcome": "other numbers", "told": ", ".join(differing)} if differing else {"outcome": "same numbers"}


def starts(count: int = 100) -> None:
    """Two processes that begin at the same instant on one directory."""
    results = Results("starts")
    with tempfile.TemporaryDirectory() as folder:
        interrupted_work.run(Path(folder) / "imports")  # what is imported here, no child has to import
    for number in range(len(results.rows), count):
        with tempfile.TemporaryDirectory() as folder:
            out, told = Path(folder) / "out", [Path(folder) / name for name in "ab"]
            instant = time.monotonic() + 0.2

            def start(path: Path, out: Path = out, instant: float = instant) -> None:
                while time.monotonic() < instant:
                    pass
                try:
                    interrupted_work.run(out, rounds=40)
                    path.write_text("finished", encoding="utf-8")
                except PrivflError as error:
                    path.write_text(str(error), encoding="utf-8")

            children = [fork(functools.partial(start, path)) for path in told]
            codes = [waited(child) for child in children]
            said = [path.read_text(encoding="utf-8") for path in told]
            winners = [child for child, text in zip(children, said, strict=True) if text == "finished"]
            named = len(winners) == 1 and any(f"in use by process {winners[0]} on" in text for text in said)
            lines = len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
            good = codes == [0, 0] and named and lines == 40
            loser = next((text for text in said if text != "finished"), "")
            row = {"number": number, "winners": len(winners), "loser": loser.replace(str(out), "RUN"), "lines": lines}
            results.add({**row, "good": good})
    print(f"{len(results.rows)} starts, {sum(row['good'] for row in results.rows)} with one winner, named", flush=True)


def main() -> None:
    """Run what was asked for."""
    campaigns = {"points": points, "kills": kills, "damage": damages, "starts": starts}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=campaigns)
    logging.getLogger("privfl.lock").setLevel(logging.ERROR)  # each takeover would be told
    campaigns[parser.parse_args().what]()


if __name__ == "__main__":
    main()
