"""Whether Ray's workers give the loop engine's bits, for every algorithm under every kind of noise.

``python benchmarks/ray_equality.py`` trains each algorithm on digits, 8 clients of whom 5 train in each of 3 rounds,
once in this process and once on two workers of a local Ray cluster, under one noise key. Compared are the model, what
clients keep, every line of metrics and the statement. What the loop refuses is no case; what Ray alone refuses is said.
The table goes to ``benchmarks/results/ray-equality.json``, where rows of algorithms that were not asked for stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, ClassVar

import ray
import torch

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.errors import PrivflError
from privfl.simulation import ray_engine
from privfl.simulation.ray_engine import RayWorkers

RESULT = Path(__file__).parent / "results" / "ray-equality.json"
PRIVACY = {
    "no noise": lambda: pf.Privacy(),
    "DP-SGD at the client": lambda: pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0), noise_key=1),
    "DP-SGD at the server": lambda: pf.Privacy(
        training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
        size=pf.LaplaceSize(epsilon=4, bound=400),
        noise_key=1,
    ),
    "noise on updates at the client": lambda: pf.Privacy(
        update=[pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")], noise_key=1
    ),
    "noise on the sum of updates": lambda: pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)], noise_key=1),
}


def trained(task: pf.Task, name: str, privacy: str, engine: str) -> tuple[Any, float]:
    """The run, or the sentence that refuses it, and its seconds."""
    began = time.perf_counter()
    kind = ALGORITHMS[name]
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "samples_per_round":
            settings[field.name] = 400
        if field.name == "weighting" and "updates" in privacy:
            settings[field.name] = "uniform"
    try:
        run = pf.simulate(
            task,
            kind(**settings),
            rounds=3,
            seed=5,
            cohort=pf.Everyone() if "fedsampling" in name else pf.FixedCohort(5),
            training=pf.LocalTraining(batch_size=20, learning_rate=0.05),
            privacy=PRIVACY[privacy](),
            execution=pf.Execution(engine=engine, workers=2, device="cpu"),
        )
    except PrivflError as error:
        return str(error), time.perf_counter() - began
    return run, time.perf_counter() - began


class Reused(RayWorkers):
    """Workers whose processes live on from run to run: starting them would take most of the table's time."""

    actors: ClassVar[list[Any]] = []

    def _start(self) -> None:
        super()._start(self.actors.pop() if self.actors else None)

    def close(self) -> None:
        self.actors += [one.actor for one in self.there]
        self.there = []
        super().close()


def differences(one: Any, other: Any) -> list[str]:
    """What is not the same in two runs."""
    found = []
    if not torch.equal(one.parameters, other.parameters):
        found.append(f"parameters, by at most {float((one.parameters - other.parameters).abs().max()):.3g}")
    states = [
        {client: {name: value.numpy().tobytes() for name, value in state.items()} for client, state in kept.items()}
        for kept in (one.client_state, other.client_state)
    ]  # as bytes: a NaN is not equal to itself
    if states[0] != states[1]:
        found.append("what clients keep")
    if json.dumps(one.metrics, sort_keys=True) != json.dumps(other.metrics, sort_keys=True):
        found.append("metrics")
    if str(one.statement) != str(other.statement):
        found.append("the statement")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", help="names; default all")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    task = pf.load("digits", partition=pf.Dirichlet(clients=8, alpha=0.5), local_tests=pf.LocalTests(), seed=5)
    ray_engine.RayWorkers = Reused  # type: ignore[misc]
    os.environ.setdefault("RAY_worker_niceness", "0")  # as in a cluster that privfl starts
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        for name in asked.algorithms or sorted(ALGORITHMS):
            for privacy in PRIVACY:
                loop, seconds = trained(task, name, privacy, "loop")
                row: dict[str, Any] = {"algorithm": name, "privacy": privacy, "loop_seconds": round(seconds, 2)}
                if isinstance(loop, str):
                    keep({**row, "result": "no case", "why": loop}, asked.out)
                    continue
                there, seconds = trained(task, name, privacy, "ray")
                row["ray_seconds"] = round(seconds, 2)
                if isinstance(there, str):
                    row |= {"result": "refused by Ray alone", "why": there}
                else:
                    different = differences(loop, there)
                    row |= {"result": "different" if different else "equal", "differences": different}
                keep(row, asked.out)
                print(json.dumps(row), flush=True)
    finally:
        ray.shutdown()


def keep(row: dict[str, Any], out: Path) -> None:
    """Put ``row`` into the table in ``out``, in the place of what was measured of it before."""
    conditions = {
        "date": datetime.date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
    }
    before = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    this = row["algorithm"], row["privacy"]
    rows = [row, *(one for one in before if (one["algorithm"], one["privacy"]) != this)]
    rows.sort(key=lambda one: (one["algorithm"], [*PRIVACY].index(one["privacy"])))
    out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
