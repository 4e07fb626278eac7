"""How close do audits of DP-SGD come to its claim? White box, one run or two, with rare tokens as canaries.

    python examples/audit_dpsgd.py --out results/audits            # some minutes
    python examples/audit_dpsgd.py --out results/audits --small    # in small form

Every row is an ordinary federation of one client that trains with DP-SGD, audited from what the server saw. Each bound
is certified at 95 % by itself. The last rows audit broken runs: noise of half the deviation that is charged, and
a sampler that takes everybody. What is finished is kept: an interrupted call goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import privfl as pf
from audits.canaries.canaries import rare_token_canaries, rare_token_task
from audits.canaries.gradient_canaries import audit_one_run, audit_two_worlds
from audits.result import AuditResult
from privfl.federation.task import Task
from privfl.files import write_whole
from privfl.privacy.noise.source import NoiseStream
from privfl.simulation.result import Run

CLIP = 0.5


@dataclass(frozen=True)
class RunContext:
    """One DP-SGD run: noise multiplier, sampling rate, rounds of one step, and how many canaries audit it."""

    noise: float
    rate: float
    rounds: int
    canaries: int

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"z = {self.noise:g}, q = {self.rate:g}, T = {self.rounds}, m = {self.canaries}"


FULL = (
    RunContext(1.0, 1.0, 1, 1000),
    RunContext(4.0, 1.0, 16, 1000),
    RunContext(4.0, 1.0, 16, 5000),
    RunContext(4.0, 1.0, 16, 20_000),
    RunContext(1.0, 0.1, 100, 1000),
    RunContext(1.0, 0.1, 100, 5000),
    RunContext(0.7, 0.25, 50, 5000),
)
SMALL = (RunContext(1.0, 1.0, 1, 300), RunContext(1.0, 0.25, 4, 300))
FAULTS = ("half the noise", "everybody in every batch")


def trainer(setting: RunContext, key: int | None) -> Callable[[Task], Run]:
    """Trains with the setting; with a ``key`` the noise is reproducible, and the run must not be released."""

    def train(task: Task) -> Run:
        return pf.simulate(
            task,
            pf.FedAvg(weighting="uniform"),
            rounds=setting.rounds,
            training=pf.LocalTraining(learning_rate=0.01, batch_size=1000, steps=1),
            privacy=pf.Privacy(
                training=pf.DPSGD(noise_multiplier=setting.noise, max_grad_norm=CLIP, sample_rate=setting.rate),
                noise_key=key,
            ),
            record=["server"],
            execution=pf.Execution(engine="loop"),
            evaluate_every=setting.rounds,
        )

    return train


def audits(setting: RunContext, seed: int) -> Iterator[tuple[str, AuditResult]]:
    """Four bounds, each at 95 % by itself."""
    task = rare_token_task(setting.canaries)
    canaries, train = rare_token_canaries(task, setting.canaries), trainer(setting, None)
    three = audit_one_run(task, train, canaries, confidence=0.85, seed=seed)
    for name, bound in zip(("one run", "one run, f-DP", "trials of one run"), three.bounds, strict=True):
        yield name, AuditResult(**{**vars(three), "bounds": (bound,), "confidence": bound.confidence})
    yield "two worlds", audit_two_worlds(task, train, canaries, seed=seed)


@contextmanager
def broken(fault: str) -> Iterator[None]:
    """The toolkit with a ``fault`` for a while."""
    add, sample = NoiseStream.add_gaussian_, NoiseStream.poisson_sample

    def half(stream: NoiseStream, tensor: Tensor, deviation: float) -> Tensor:
        return add(stream, tensor, deviation / 2)

    def everybody(stream: NoiseStream, n: int, rate: float) -> NDArray[np.int64]:
        return np.arange(n)

    if fault == FAULTS[0]:
        NoiseStream.add_gaussian_ = half  # type: ignore[method-assign]
    else:
        NoiseStream.poisson_sample = everybody  # type: ignore[method-assign]
    try:
        yield
    finally:
        NoiseStream.add_gaussian_, NoiseStream.poisson_sample = add, sample  # type: ignore[method-assign]


class Store:
    """Rows in ``audits.json``, kept from call to call."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "audits.json"
        self.rows: list[dict[str, Any]] = (
            json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else []
        )

    def has(self, setting: str) -> bool:
        """Whether this setting is finished."""
        return any(row["setting"] == setting for row in self.rows)

    def add(self, setting: str, found: list[tuple[str, AuditResult]]) -> None:
        """Keep the results of one setting."""
        self.rows += [{"setting": setting, "name": name, **result.to_json()} for name, result in found]
        write_whole(self.file, (json.dumps(self.rows, indent=1) + "\n").encode())
        for name, result in found:
            print(line(setting, name, result), flush=True)


def line(setting: str, name: str, result: AuditResult) -> str:
    """One row of the table."""
    verdict = "refuted" if result.refuted else f"{result.looseness:.3g}"
    return f"{setting:42}  {name:18}  claim {result.claim:6.3f}  bound {result.bound.epsilon:6.3f}  {verdict}"


def main() -> None:
    """Run what is not finished yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    store = Store(arguments.out)
    settings = SMALL if arguments.small else FULL
    for seed in range(arguments.seeds):
        for setting in settings:
            label = f"{setting.name}, seed {seed}"
            if not store.has(label):
                store.add(label, list(audits(setting, seed)))
    bad = RunContext(1.5, 0.25, 8, 300 if arguments.small else 2000)
    for fault in FAULTS:
        if not store.has(fault):
            with broken(fault):
                store.add(fault, [found for found in audits(bad, 0) if found[0] == "trials of one run"])


if __name__ == "__main__":
    main()
