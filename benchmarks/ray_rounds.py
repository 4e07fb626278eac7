"""Seconds of a round on Ray's workers beside those of the best engine of one process, round by round in turns.

    python benchmarks/ray_rounds.py small-100 cnn-10 cnn-100 --rounds 12

Every case is FedAvg on random images 28×28, 100 clients with 50 each, on two workers of a cluster that is started here,
and on two threads of this process. The runs take turns: one trains a round while the others wait. ``overhead`` is what
a round takes beyond its slowest worker. ``memory`` runs drivers in processes of their own and tells the most that each
took. Results go to ``benchmarks/results/ray-rounds.json``, and replace those of the same case.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import privfl as pf
from privfl.experiment import Experiment
from privfl.simulation import ray_engine
from privfl.simulation.ray_cluster import connected

RESULT = Path(__file__).parent / "results" / "ray-rounds.json"
CLIENTS, SAMPLES, WARMUP, NEVER = 100, 50, 2, 10**9
MODELS = {"small": ("tiny-cnn", 5_386), "cnn": ("cnn-1m", 1_199_882)}
CASES = ("small-100", "small-20", "cnn-10", "cnn-100")
ONE_PROCESS = {"loop": pf.Execution(engine="loop", workers=2), "stacked": pf.Execution(engine="vectorised", workers=2)}
ON_RAY = {
    "ray": pf.Execution(engine="ray", workers=2),
    "ray, stacked": pf.Execution(engine="ray", workers=2, inside="vectorised"),
}


def experiment(model: str, cohort: int, file: Path, rounds: int) -> Experiment:
    """The run of one case."""
    return Experiment.from_dict(
        {
            "rounds": rounds,
            "evaluate_every": NEVER,
            "device": "cpu",
            "arrays": {"file": str(file)},
            "partition": {"name": "iid", "clients": CLIENTS},
            "model": {"name": MODELS[model][0]},
            "algorithm": {"name": "fedavg", "weighting": "uniform"},
            "cohort": {"name": "fixed", "size": cohort},
            "training": {"learning_rate": 0.05, "batch_size": 10},
        }
    )


def write_images(file: Path) -> None:
    """Random images; what is in them does not matter for time."""
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(CLIENTS * SAMPLES + 100, 1, 28, 28)).astype(np.float32)
    np.savez(file, inputs=inputs, targets=np.arange(len(inputs)) % 10)


@dataclass
class Turns:
    """Lets several runs train their rounds in turn."""

    names: list[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    slowest: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now, self.ready, self.changed = 0, set[str](), threading.Condition()

    def after(self, name: str) -> None:
        """A round of ``name`` has ended: note it, and wait for the next turn."""
        ended = time.perf_counter()
        with self.changed:
            if name in self.ready:
                self.seconds.setdefault(name, []).append(ended - self.began)
                self.now += 1
            self.ready.add(name)  # the first round begins whenever it likes
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.ready) == len(self.names) and self.whose == name)
            self.began = time.perf_counter()

    def leave(self, name: str) -> None:
        """``name`` has ended."""
        with self.changed:
            place = self.names.index(name)
            self.now -= self.now % len(self.names) > place
            self.names.remove(name)
            self.ready.discard(name)
            self.changed.notify_all()

    @property
    def whose(self) -> str:
        """Whose turn it is."""
        return self.names[self.now % len(self.names)]


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Seconds of the rounds of each engine, and of the slowest worker in them."""
    model, cohort = case.rsplit("-", 1)
    ways = {**ONE_PROCESS, **ON_RAY} if model == "small" else {"loop": ONE_PROCESS["loop"], "ray": ON_RAY["ray"]}
    turns = Turns([*ways])
    joined = ray_engine._joined

    def noting(shares: Any, *rest: Any) -> Any:
        turns.slowest.setdefault(turns.whose, []).append(max(share.seconds for share in shares))
        return joined(shares, *rest)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        write_images(file)
        asked = experiment(model, int(cohort), file, WARMUP + rounds + 1)

        def train(name: str) -> None:
            run = replace(asked, execution=replace(ways[name], device="cpu"))
            run.run(callbacks=[lambda simulation, line: turns.after(name)])
            turns.leave(name)

        ray_engine._joined = noting
        try:
            with connected(None, 4):
                threads = [threading.Thread(target=train, args=(name,)) for name in ways]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()
        finally:
            ray_engine._joined = joined
    spent = {name: values[WARMUP - 1 : -1] for name, values in turns.seconds.items()}
    slowest = {name: values[-len(spent[name]) - 1 : -1] for name, values in turns.slowest.items()}
    medians = {name: statistics.median(values) for name, values in spent.items()}
    best = min((name for name in ways if name in ONE_PROCESS), key=medians.__getitem__)
    there = min((name for name in ways if name in ON_RAY), key=medians.__getitem__)
    ratios = [one / other for one, other in zip(spent[best], spent[there], strict=True)]
    beyond = [whole - worker for whole, worker in zip(spent[there], slowest[there], strict=True)]
    return {
        "case": case,
        "parameters": MODELS[model][1],
        "best of one process": best,
        "best on Ray": there,
        "one process / Ray": round(statistics.median(ratios), 3),
        "from": round(min(ratios), 3),
        "to": round(max(ratios), 3),
        "overhead, ms": round(1000 * statistics.median(beyond), 1),
        "milliseconds": {name: [round(1000 * one, 1) for one in values] for name, values in spent.items()},
        "slowest worker, ms": {name: [round(1000 * one, 1) for one in values] for name, values in slowest.items()},
        "load": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
    }


def most_memory(cohort: int) -> None:
    """Print the most memory, MB, that a driver takes with a ``cohort`` of clients of the CNN."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        write_images(file)
        execution = replace(ON_RAY["ray"], device="cpu")
        replace(experiment("cnn", cohort, file, 3), execution=execution).run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def memory() -> dict[str, Any]:
    """The most memory of drivers, by cohort."""
    found = {}
    for cohort in (10, 50, 100):
        command = [sys.executable, __file__, "--driver", str(cohort)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[str(cohort)] = round(float(done.stdout.splitlines()[-1]))
    return {"case": "memory", "driver, MB, by cohort": found, "date": datetime.date.today().isoformat()}


def main() -> None:
    parser = argparse.ArgumentParser(description="rounds on Ray and in one process")
    parser.add_argument("cases", nargs="*", help=", ".join([*CASES, "memory"]))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        most_memory(given.driver)
        return
    for case in given.cases or [*CASES, "memory"]:
        row = memory() if case == "memory" else measure(case, given.rounds)
        print(json.dumps({name: value for name, value in row.items() if not isinstance(value, dict)}), flush=True)
        rows = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else []
        rows = [*(one for one in rows if one["case"] != case), row]
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
