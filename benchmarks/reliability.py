"""Faults, tried one after the other: ``python benchmarks/reliability.py WHAT``, from the folder of the repository.

    points    every step on the disk of a run, a study, an attack and an audit: killed before it, in the middle of a
              write, and without power; what was interrupted is repeated and compared with what nobody interrupted
    kills     SIGKILL at a random moment, 500 times
    damage    5,000 copies of run directories, one file of each damaged
    starts    two processes that begin on one directory at the same instant, 100 times

Each writes its raw results to benchmarks/results/reliability/WHAT.jsonl as it goes, and goes on from there when it is
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
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from privfl.commands.demo import run_demo, studies  # noqa: E402
from privfl.errors import PrivflError  # noqa: E402
from privfl.simulation.run_directory import RunDirectory  # noqa: E402
from tests.runs import disk, interrupted_work  # noqa: E402
from tests.runs.damage import damage, sentence  # noqa: E402

Work = Callable[[Path], Any]
Row = dict[str, Any]


def demo(out: Path) -> None:
    """``privfl demo`` with one seed and five rounds, in one process; with a fixed key and engine."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    small = studies(seeds=1, rounds=5, epochs=2, canaries=20)
    fixed = [dict(one.base, engine="loop", privacy={**one.base.get("privacy", {}), "noise_key": 7}) for one in small]
    run_demo(out, [replace(one, base=base) for one, base in zip(small, fixed, strict=True)], processes=1)


def study_of_processes(out: Path) -> None:
    """A study of four runs in two processes."""
    interrupted_work.small_study(seeds=4, rounds=2).run(out, processes=2)


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


def came_to(out: Path) -> dict[str, Any]:
    """What the work in ``out`` came to: of a store its runs, since its index holds seconds and is made of them.

    An audit of the demo draws noise and coins of its own, so of these it counts that they are there.
    """
    if not (out / "results.sqlite").exists():
        return disk.result(out)
    found = disk.result(out / "runs")
    return {name: "there" if Path(name).parent.name == "audits" else content for name, content in found.items()}


def prepared(name: str, root: Path) -> Path:
    """A folder below ``root`` in which the work ``name`` can begin."""
    out = root / "runs" / "out"
    out.parent.mkdir(parents=True)
    if name == "an attack":
        interrupted_work.recorded(out)
    return out


class Results:
    """The rows of one campaign, one a line, written down as they come, by any number of processes."""

    def __init__(self, name: str) -> None:
        self.path = RESULTS / f"{name}.jsonl"

    def rows(self) -> list[Row]:
        """All rows so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def add(self, row: Row) -> None:
        """Add ``row``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write((json.dumps(row) + "\n").encode())


def side_by_side(work: Callable[[int, int], None], processes: int) -> None:
    """``work(part, processes)`` for each part, in processes of their own; all imports are done before."""
    with tempfile.TemporaryDirectory() as folder:
        interrupted_work.study(Path(folder) / "runs" / "imports")
        interrupted_work.run(Path(folder) / "runs" / "more imports")
    if processes == 1:
        return work(0, 1)
    for child in [fork(functools.partial(work, part, processes)) for part in range(processes)]:
        assert waited(child) == 0
    return None


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


def points(part: int, parts: int) -> None:
    """Every step of every kind of work."""
    results = Results("points")
    done = {row["work"] for row in results.rows()}
    for name in [name for name in STEPWISE[part::parts] if name not in done]:
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


def kills(part: int, parts: int) -> None:
    """SIGKILL at random moments."""
    results = Results("kills")
    for name, (work, count) in KINDS.items():
        done = {row["number"] for row in results.rows() if row["work"] == name}
        numbers = [number for number in range(part, count, parts) if number not in done]
        if not numbers:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = prepared(name, Path(folder) / "whole")
            began = time.monotonic()
            assert waited(fork(functools.partial(work, out))) == 0
            takes, whole = time.monotonic() - began, came_to(out)
            before = prepared(name, Path(folder) / "killed")
            start = disk.tree(before)
            for number in numbers:
                results.add({"work": name, "number": number, **kill(work, before, start, whole, takes, number)})


def kill(
    work: Work, out: Path, start: dict[str, bytes | None], whole: dict[str, Any], takes: float, number: int
) -> Row:
    """Kill ``work``, which ``takes`` so many seconds from ``start``, at a random moment, and repeat it."""
    draw, late = random.Random(number), 0
    while True:
        disk.lay(out, start)
        moment = draw.random() * takes
        child = fork(functools.partial(work, out))
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        if waited(child) == -signal.SIGKILL:
            break
        late, takes = late + 1, 0.9 * takes  # the machine is faster than it was
    left = len(disk.tree(out))
    ended = waited(fork(functools.partial(work, out)))
    same = ended == 0 and came_to(out) == whole
    return {"after": round(moment, 3), "came late": late, "files": left, "same": same}


def in_flight(folder: Path) -> dict[str, dict[str, bytes | None]]:
    """Run directories to damage, by what they are: their content."""
    out = folder / "runs" / "out"
    out.parent.mkdir(parents=True)
    _, states = disk.interruptions(out, functools.partial(interrupted_work.run, out))
    finished = disk.tree(out)
    saves = ("write", "checkpoints/latest.npz.part")
    killed = [state for step, how, state in states if how == "killed" and step == saves]
    return {"before its first checkpoint": killed[0], "in flight": killed[2], "finished": finished}


def damages(part: int, parts: int, count: int = 5000) -> None:
    """Damaged copies, of which each is refused in a sentence or gives the same numbers."""
    results = Results("damage")
    done = {row["number"] for row in results.rows()}
    with tempfile.TemporaryDirectory() as folder:
        kinds = in_flight(Path(folder))
        out = Path(folder) / "runs" / "out"
        disk.lay(out, kinds["finished"])
        whole = disk.result(out)
        for number in range(part, count, parts):
            if number not in done:
                kind = sorted(kinds)[number % len(kinds)]
                disk.lay(out, kinds[kind])
                how, file = damage(out, number)
                results.add({"number": number, "run": kind, "how": how, "file": file, **outcome(out, whole, kind)})


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


LONG = 400
"""Rounds of a run that outlasts the second's patience; a shorter one ends, and the second reads what it finds."""


def starts(part: int, parts: int, count: int = 100) -> None:
    """Two processes that begin at the same instant on one directory."""
    results = Results("starts")
    done = {row["number"] for row in results.rows()}
    for number in (number for number in range(part, count, parts) if number not in done):
        with tempfile.TemporaryDirectory() as folder:
            out, told = Path(folder) / "out", [Path(folder) / name for name in "ab"]
            instant = time.monotonic() + 0.2

            def start(path: Path, out: Path = out, instant: float = instant) -> None:
                while time.monotonic() < instant:
                    pass
                try:
                    interrupted_work.run(out, rounds=LONG)
                    path.write_text("finished", encoding="utf-8")
                except PrivflError as error:
                    path.write_text(str(error), encoding="utf-8")

            children = [fork(functools.partial(start, path)) for path in told]
            codes = [waited(child) for child in children]
            said = [path.read_text(encoding="utf-8") for path in told]
            winners = [child for child, text in zip(children, said, strict=True) if text == "finished"]
            named = len(winners) == 1 and any(f"in use by process {winners[0]} on" in text for text in said)
            lines = len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
            good = codes == [0, 0] and named and lines == LONG
            loser = next((text for text in said if text != "finished"), "")
            row = {"number": number, "winners": len(winners), "loser": loser.replace(str(out), "RUN"), "lines": lines}
            results.add({**row, "good": good})


def main() -> None:
    """Run what was asked for."""
    campaigns = {"points": points, "kills": kills, "damage": damages, "starts": starts}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=campaigns)
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    options = parser.parse_args()
    logging.getLogger("privfl.lock").setLevel(logging.ERROR)  # each takeover would be told
    side_by_side(campaigns[options.what], options.processes)


if __name__ == "__main__":
    main()
