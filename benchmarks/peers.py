"""privfl's rounds against a bare loop, pfl and Flower: the same work, every run in a fresh process, one after another.

The work is defined, and the peers are driven, by the scripts ``common.py``, ``fedavg_floor.py``, ``fedavg_pfl.py`` and
``fedavg_flwr.py`` of one folder; ``peers_pfl.py`` and ``peers_flower.py`` add the client-level noise that these lack.
Three environment variables say where things are, and what is not there is left out with a sentence:

    python3.11 -m venv pflenv && pflenv/bin/pip install torch==2.13.0 pfl==0.6.0
    python3.11 -m venv flwrenv && flwrenv/bin/pip install torch==2.13.0 "flwr[simulation]==1.41.0"
    export PRIVFL_BENCH_PEERS=../shared/bench            # the folder with the scripts
    export PRIVFL_BENCH_PFL=pflenv/bin/python
    export PRIVFL_BENCH_FLOWER=flwrenv/bin/python

One intra-op thread per process for the bare loop and the peers; privfl runs with its defaults, and so on all cores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from networks import WORKS
from rounds import BATCH_SIZE, CLIENTS, ENGINES, LEARNING_RATE, WARMUP, write_images
from workload import Seconds

from privfl.products import has_bfloat16_units

HERE = Path(__file__).resolve().parent
REPEATS = 3
SECONDS_ALLOWED = 600
PFL, PFL_TWICE, FLOWER, BARE, PRIVFL = "pfl", "pfl, two processes", "Flower", "bare loop", "privfl"
BFLOAT16 = "privfl, bfloat16"
INSTALL = {
    "PRIVFL_BENCH_PFL": "pflenv/bin/pip install torch==2.13.0 pfl==0.6.0",
    "PRIVFL_BENCH_FLOWER": 'flwrenv/bin/pip install torch==2.13.0 "flwr[simulation]==1.41.0"',
}
"""What to run in a fresh environment of Python 3.11 for the interpreter that a variable names."""
FASTEST = "the faster of pfl on one and on two processes"
TARGETS: dict[str, dict[str, tuple[tuple[str, ...], float | None]]] = {
    "small": {
        PFL: ((PFL,), 0.2),
        PFL_TWICE: ((PFL_TWICE,), None),
        FLOWER: ((FLOWER,), 0.048),
        BARE: ((BARE,), None),
    },
    "mlp": {
        PFL: ((PFL,), 0.4),
        PFL_TWICE: ((PFL_TWICE,), None),
        FLOWER: ((FLOWER,), 0.05),
        BARE: ((BARE,), None),
    },
    "cnn": {FASTEST: ((PFL, PFL_TWICE), 0.72), FLOWER: ((FLOWER,), 0.4), BARE: ((BARE,), None)},
}
"""For each work: what privfl is compared with, the runs of which the fastest counts, and the target."""
NARROW = {FASTEST: ((PFL, PFL_TWICE), 0.5)}
"""The same for the CNN in bfloat16, where the processor multiplies in it."""


@dataclass(frozen=True)
class Peers:
    """Where the peers are: the folder of scripts and the interpreters; ``None`` for what is not there."""

    scripts: Path | None = None
    pfl: str | None = None
    flower: str | None = None

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> tuple[Peers, list[str]]:
        """What ``environment`` names and exists, and a sentence for everything that is missing."""
        folder = Path(environment.get("PRIVFL_BENCH_PEERS") or "-").absolute()
        if not (folder / "common.py").is_file():
            return cls(), [
                "Bare loop, pfl and Flower are left out: PRIVFL_BENCH_PEERS names no folder with common.py; set it to "
                "that of the shared scripts, for instance ../shared/bench."
            ]
        pythons: dict[str, str | None] = {}
        missing = []
        for name, variable in ((PFL, "PRIVFL_BENCH_PFL"), (FLOWER, "PRIVFL_BENCH_FLOWER")):
            python = Path(environment.get(variable) or "-").absolute()  # resolved, a link would leave its environment
            pythons[name] = str(python) if python.is_file() else None
            if pythons[name] is None:
                missing.append(
                    f"{name} is left out: {variable} names no interpreter; install it in a fresh environment with "
                    f"`{INSTALL[variable]}` and set the variable to that environment's python."
                )
        return cls(folder, pythons[PFL], pythons[FLOWER]), missing

    def with_mlp(self, folder: Path) -> Peers:
        """The same peers; their scripts, copied to ``folder``, take our MLP (``networks.py``) for their small model."""
        assert self.scripts is not None
        folder.mkdir()
        for script in self.scripts.glob("fedavg_*.py"):
            shutil.copy(script, folder)
        shutil.copy(self.scripts / "common.py", folder / "peers_common.py")
        shutil.copy(HERE / "mlp_common.py", folder / "common.py")
        shutil.copy(HERE / "networks.py", folder)
        return replace(self, scripts=folder)

    def commands(self, *, noise: bool) -> dict[str, list[str]]:
        """How each one that is there is started, without the work; the bare loop has no noise."""
        if self.scripts is None:
            return {}
        found = {} if noise else {BARE: [sys.executable, str(self.scripts / "fedavg_floor.py")]}
        if self.pfl is not None:
            script = str(HERE / "peers_pfl.py" if noise else self.scripts / "fedavg_pfl.py")
            twice = [self.pfl, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
            found |= {PFL: [self.pfl, script], PFL_TWICE: twice}
        if self.flower is not None:
            script = str(HERE / "peers_flower.py" if noise else self.scripts / "fedavg_flwr.py")
            found[FLOWER] = [self.flower, script, "--actors-cpus", "1"]
        return found

    def environment(self) -> dict[str, str]:
        """The environment of every run: this one's, without its thread settings and without telemetry."""
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        silent = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        path = os.pathsep.join(filter(None, (str(self.scripts or ""), os.environ.get("PYTHONPATH"))))
        return {**kept, **silent, "PYTHONPATH": path}


def work_options(work: str, archive: Path, cohort: int, rounds: int) -> list[str]:
    """The work as the peers' scripts take it on their command line."""
    values = {
        "npz": archive,
        "clients": CLIENTS,
        "cohort": cohort,
        "rounds": rounds,
        "warmup": WARMUP,
        "batch": BATCH_SIZE,
        "epochs": 1,
        "lr": LEARNING_RATE,
        "model": WORKS[work].peers_name,
        "threads": 1,
    }
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]


def result(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run ``command`` and return the line of JSON that it prints; nothing that it started stays behind."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=SECONDS_ALLOWED)
    except BaseException as stopped:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        if isinstance(stopped, subprocess.TimeoutExpired):
            raise SystemExit(_said(f"{' '.join(command)} gave no result in {SECONDS_ALLOWED} s", errors)) from None
        raise
    lines = [line for line in output.splitlines() if line.startswith("{") and "s_per_round_median" in line]
    if process.returncode != 0 or len(lines) != 1:
        ended = f"{' '.join(command)} gave {len(lines)} results and ended with {process.returncode}"
        raise SystemExit(_said(ended, errors))
    found: dict[str, Any] = json.loads(lines[0])
    return found


def _said(what: str, errors: str) -> str:
    return f"{what}:\n" + "\n".join(errors.splitlines()[-20:])


def rows(work: str, noise: bool, seconds: Seconds, details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each comparison whose runs are all there; ratios are taken within each repeat."""
    made = []
    network = {"small": "small model, cohort 20", "mlp": "small MLP, cohort 20", "cnn": "CNN, cohort 10"}[work]
    compared = [(PRIVFL, "round", *one) for one in TARGETS[work].items()]
    compared += [(BFLOAT16, "round in bfloat16", *one) for one in NARROW.items()] if BFLOAT16 in seconds else []
    for own, what, other, (runs, target) in compared:
        if not set(runs) <= set(seconds):
            continue
        fastest = [min(values) for values in zip(*(seconds[run] for run in runs), strict=True)]
        ratios = [mine / best for mine, best in zip(seconds[own], fastest, strict=True)]
        made.append(
            {
                "what": f"{what} / {other}'s round, {network}{', client-level noise' if noise else ''}",
                "target": target,
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
                "milliseconds": {name: 1000 * statistics.median(values) for name, values in seconds.items()},
                **details,
            }
        )
    return made


def run(repeats: int) -> list[dict[str, Any]]:
    """Rows for the peers' own networks."""
    return compare(repeats, ("small", "cnn"))


def compare(repeats: int, works: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for each work, without and with noise; at most three repeats, for Flower takes its time to start."""
    peers, missing = Peers.find(os.environ)
    for sentence in missing:
        print(f"  {sentence}", flush=True)
    made: list[dict[str, Any]] = []
    if peers.scripts is None:
        return made
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "images.npz"
        write_images(archive)
        replaced = peers.with_mlp(Path(folder) / "mlp")
        for work, noise in ((work, noise) for noise in (False, True) for work in works):
            WORKS[work].check()
            driven = replaced if WORKS[work].of_our_own else peers
            commands = {
                name: [*command, *work_options(work, archive, WORKS[work].cohort, WORKS[work].rounds)]
                for name, command in driven.commands(noise=noise).items()
            }
            for engine in ENGINES[:1] if noise else ENGINES:
                own = [sys.executable, str(HERE / "rounds.py"), "--work", work, "--engine", engine]
                commands[PRIVFL if engine == "auto" else f"privfl, {engine}"] = own + ["--noise"] * noise
                if (work, engine) == ("cnn", "auto") and not noise and has_bfloat16_units():
                    commands[BFLOAT16] = [*own, "--precision", "bfloat16"]
            seconds: Seconds = {name: [] for name in commands}
            accuracies: dict[str, float] = {}
            trained_by: dict[str, str] = {}
            for _ in range(min(repeats, REPEATS)):
                for name, command in commands.items():
                    line = result(command, driven.environment())
                    seconds[name].append(line["s_per_round_median"])
                    accuracies[name] = line["test_accuracy"]
                    what = f"{work}, noise" if noise else work
                    print(f"    {what}: {name} {1000 * seconds[name][-1]:.1f} ms", flush=True)
                    if "trained_by" in line:
                        trained_by[name] = line["trained_by"]
            made += rows(work, noise, seconds, {"test_accuracy": accuracies, "trained_by": trained_by})
    return made
