"""A study killed at random moments and one that nobody interrupted: do they come to the same?

    python benchmarks/interrupted_study.py examples/studies/tradeoff.toml --work scratch --out kills.json

The study runs to its end in ``WORK/whole``. In ``WORK/killed`` it runs again, is ended by SIGKILL at random rounds,
and goes on by the same command each time. Then both are compared: every figure of every run in the store but seconds,
and every file below ``runs/`` as the tests of interruptions compare them. Exits with 1 if anything differs, or if the
study was over before it could be killed as often as asked. A ``WORK/whole`` that is complete is taken as it is.

Two things are fixed in both, since without them two runs of one study differ although nobody interrupts either: the key
of privacy noise, which is fresh otherwise, and the engine, which is otherwise the one that is faster at the moment and
decides the last digits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from privfl.study.results import Results  # noqa: E402
from privfl.study.store import FILE, RUNS, Store  # noqa: E402
from tests.runs import disk  # noqa: E402

FIXED = ("privacy.noise_key=7", "engine=loop")
ENVIRONMENT = "environment.json"
"""Not compared: it names the checkout, in which people may work while this runs."""
GLANCE = 0.05
"""Seconds between looks at how far a study is."""
JITTER = 0.1
"""Seconds within which it is killed after that, so that not every kill follows the end of a round."""


class Command:
    """``privfl study run`` of one file into one store, as often as wanted."""

    def __init__(self, file: Path, store: Path, processes: int, overrides: list[str]) -> None:
        self.file, self.store = file, store
        settings = [word for one in (*FIXED, *overrides) for word in ("--set", one)]
        words = ["study", "run", str(file.resolve()), "--out", str(store), "--processes", str(processes), *settings]
        self.words = [sys.executable, "-m", "privfl", *words]

    def start(self) -> subprocess.Popen[bytes]:
        """A process that goes on with the study."""
        log = (self.store.with_name(f"{self.store.name}.log")).open("ab")
        return subprocess.Popen(self.words, cwd=ROOT, stdout=log, stderr=log)

    def finish(self) -> dict[str, Any]:
        """Let it run to its end."""
        began = time.monotonic()
        code = self.start().wait()
        return {"exit": code, "seconds": round(time.monotonic() - began, 1)}

    def killed(self, rounds: int, later: float) -> dict[str, Any] | None:
        """Start it, and kill it ``later`` seconds after it has trained ``rounds``; ``None`` if it had ended before."""
        began, process = time.monotonic(), self.start()
        while _trained(self.store) <= rounds and process.poll() is None:
            time.sleep(GLANCE)
        time.sleep(later)
        if process.poll() is not None:
            return None
        process.send_signal(signal.SIGKILL)
        process.wait()
        states = list(_states(self.store, self.file.stem).values())
        return {
            "after rounds": rounds,
            "rounds on disk": _trained(self.store),
            "seconds after its start": round(time.monotonic() - began, 2),
            "runs done": states.count("done"),
            "runs begun": states.count("running"),
        }


def _trained(store: Path) -> int:
    """How many rounds all runs in ``store`` have trained and written down."""
    found = 0
    for path in (store / RUNS).glob("*/timing.jsonl"):
        try:
            found += path.read_bytes().count(b"\n")
        except FileNotFoundError:  # put in its place anew meanwhile
            continue
    return found


def _states(store: Path, study: str) -> dict[str, str]:
    if not (store / FILE).exists():
        return {}
    found = Store(store, create=False)
    return {one.run: one.state for one in found.members(study)} if found.source(study) else {}


def rows(store: Path, study: str) -> list[dict[str, Any]]:
    """Every figure of every run of ``study`` but seconds, NaN as a text so that it equals itself."""
    told = Results.of(Store(store, create=False), study).table()
    return [
        {name: "NaN" if value != value else value for name, value in row.items() if not name.startswith("seconds")}
        for row in told
    ]


def differences(whole: Path, killed: Path, study: str) -> dict[str, list[str]]:
    """What differs between two stores: runs by their rows, and files of runs."""
    one, other = rows(whole, study), rows(killed, study)
    named = [f"{row['method']}, {row['level']}, seed {row['seed']}" for row in one]
    wrong = [name for name, *pair in zip(named, one, other, strict=True) if pair[0] != pair[1]]
    files, there = disk.result(whole / RUNS), disk.result(killed / RUNS)
    names = sorted(name for name in files.keys() | there.keys() if Path(name).name != ENVIRONMENT)
    return {"rows": wrong, "files": [name for name in names if files.get(name, "") != there.get(name, "")]}


def measure(file: Path, work: Path, kills: int, processes: int, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Run, kill, compare."""
    load = [os.getloadavg()[0]]
    whole, killed = (Command(file, work / name, processes, overrides) for name in ("whole", "killed"))
    if killed.store.exists():
        raise SystemExit(f"{killed.store} is there already; remove it, or name another folder by --work")
    alone = whole.finish()
    told = work / "whole.json"  # how long it took when it was not complete yet
    if not told.exists():
        told.write_text(json.dumps(alone), encoding="utf-8")
    takes = json.loads(told.read_text(encoding="utf-8"))["seconds"]
    draw, total = random.Random(seed), _trained(whole.store)
    moments = sorted(draw.sample(range(total), kills))  # by rounds, since machines are now slower, now faster
    tried = [killed.killed(moment, draw.uniform(0, JITTER)) for moment in moments]
    found = [one for one in tried if one is not None]
    last = killed.finish()
    load.append(os.getloadavg()[0])
    return {
        "study": file.name,
        "set": [*FIXED, *overrides],
        "runs": len(rows(whole.store, file.stem)),
        "rounds": total,
        "processes": processes,
        "load": load,
        "uninterrupted": {**alone, "seconds": takes},
        "kills": found,
        "kills asked for": kills,
        "after the last kill": last,
        "compared": {"runs": len(rows(killed.store, file.stem)), "files": len(disk.result(killed.store / RUNS))},
        "differing": differences(whole.store, killed.store, file.stem),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="study file")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the result")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of privfl study run")
    parser.add_argument("--work", type=Path, help="folder of both stores, which stays; by default one that goes")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        found = measure(options.file, work.resolve(), options.kills, options.processes, options.seed, options.set)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    wrong = (
        any(found["differing"].values()) or len(found["kills"]) < options.kills or found["after the last kill"]["exit"]
    )
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
