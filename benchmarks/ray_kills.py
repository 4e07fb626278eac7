"""What a kill -9 costs a run on Ray, and that it changes nothing: of a worker, of a node, of the driver.

    python benchmarks/ray_kills.py --times 10

SCAFFOLD under DP-SGD on digits, six of eight clients in each of 24 rounds, on two workers: one on each of two nodes of
a cluster that is started here. Each trial kills one thing at a random moment of a random round. Then the model, what
clients keep, every line of metrics and the statement are compared with those of the loop engine, bit for bit; a driver
that was killed is started again with ``--resume``. Results go to ``benchmarks/results/ray-kills.json``; trials that are
there are not repeated.
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
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="ray-kills-" + "0" * 32, RAY_USAGE_STATS_ENABLED="0")

import ray

import privfl as pf
from privfl.experiment import Experiment

RESULT = Path(__file__).parent / "results" / "ray-kills.json"
KINDS = ("worker", "node", "driver")
EXPERIMENT = """
rounds = {rounds}
seed = 4
device = "cpu"
dataset.name = "digits"
model.name = "logistic"
partition = {{name = "dirichlet", clients = 8, alpha = 0.5}}
algorithm.name = "scaffold"
cohort = {{name = "fixed", size = 6}}
[privacy]
noise_key = 7
training = {{noise_multiplier = 1.0}}
"""


def free_port() -> int:
    """A port on which nobody listens now."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``ray start --block`` with one CPU, in a session of its own, all of which is killed in the end."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        kill_session(process.pid)
        process.wait()


def session(number: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if entry.name.isdecimal() and int(fields[3]) == number:
            found.append(int(entry.name))
    return found


def kill_session(number: int) -> None:
    """Kill all processes of a session, also those that are started meanwhile."""
    while there := session(number):
        for process in there:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
        if all(is_zombie(process) for process in session(number)):
            return


def is_zombie(process: int) -> bool:
    """Whether a process has ended and only waits to be noticed."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(nodes: int) -> None:
    """Wait until the cluster has so many nodes with a free CPU."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if sum(node["Alive"] for node in ray.nodes()) == nodes and ray.available_resources().get("CPU", 0) == nodes:
            return
        time.sleep(0.2)
    raise SystemExit(f"the cluster has not come to {nodes} free nodes within a minute")


def same(one: Any, other: Any) -> bool:
    """Whether two runs have the same model, state of clients, metrics and statement, bit for bit."""
    states = [
        {client: {name: value.tolist() for name, value in state.items()} for client, state in run.client_state.items()}
        for run in (one, other)
    ]
    return (
        bool((one.parameters == other.parameters).all())
        and states[0] == states[1]
        and one.metrics == other.metrics
        and str(one.statement) == str(other.statement)
    )


def killed_in_a_round(file: Path, kind: str, node: int, coins: random.Random) -> dict[str, Any]:
    """A run in this process, of which a worker or a node is killed at a random moment."""
    experiment = Experiment.from_toml(file)
    at, delay = coins.randrange(2, experiment.schedule.rounds - 2), coins.random() * 0.1
    killed: list[float] = []
    over: list[float] = []

    def kill(run: Any) -> None:
        time.sleep(delay)
        killed.append(time.monotonic())
        if kind == "node":
            kill_session(node)
            return
        workers = run.engine.workers
        chosen = coins.choice(workers.there).name
        os.kill(int(chosen.rpartition("process ")[2].rstrip(")")), signal.SIGKILL)

    def watch(run: Any, line: dict[str, Any]) -> None:
        if run.round == at:
            threading.Thread(target=kill, args=(run,)).start()
        elif killed and len(run.engine.workers.notes) and not over:
            over.append(time.monotonic())

    execution = pf.Execution(engine="ray", workers=2, device="cpu")  # this process is connected
    expected = replace(experiment, execution=pf.Execution(engine="loop", device="cpu")).run()
    began = time.monotonic()
    found = replace(experiment, execution=execution).run(callbacks=[watch])
    return {
        "round": at,
        "noticed": [note for note in found.summary["warnings"] if "died in round" in note],
        "seconds": time.monotonic() - began,
        "seconds_until_the_next_round": over[0] - killed[0] if over else None,
        "same": same(expected, found),
    }


def driver_killed(file: Path, address: str, coins: random.Random) -> dict[str, Any]:
    """A run of the command line that is killed once it has written some rounds, and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        out, lost = Path(folder, "run"), 0
        experiment = Experiment.from_toml(file)
        told = ["--set", "engine=ray", "--set", "workers=2", "--set", f"address={address}"]
        command = [sys.executable, "-m", "privfl", "run", str(file), "--out", str(out), "--set", "checkpoint_seconds=0"]
        at, delay = coins.randrange(1, experiment.schedule.rounds - 2), coins.random() * 0.1
        process = subprocess.Popen([*command, *told], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        metrics = out / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and len(metrics.read_bytes().splitlines()) >= at):
            time.sleep(0.005)
        time.sleep(delay)
        process.kill()
        said = process.communicate()[1]
        if not metrics.exists():
            raise SystemExit(f"the run did not start: {said[-500:]}")
        began = time.monotonic()
        wait_for(2)
        freed = time.monotonic() - began
        lost = len(metrics.read_bytes().splitlines())
        done = subprocess.run([*command, *told, "--resume"], capture_output=True, text=True)
        expected = replace(experiment, execution=pf.Execution(engine="loop", device="cpu")).run()
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        model = np.load(out / "checkpoints" / "latest.npz")["tensor/server/parameters"]
        return {
            "round": lost,
            "exit": done.returncode,
            "stderr": done.stderr[-300:] if done.returncode else "",
            "seconds_until_workers_were_free": freed,
            "seconds": time.monotonic() - began,
            "same": done.returncode == 0
            and lines == json.loads(json.dumps(expected.metrics))
            and bool(np.array_equal(model, expected.parameters.numpy()))
            and (out / "statement.json").read_bytes() == expected.statement.to_json().encode(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="kill parts of runs on Ray")
    parser.add_argument("--times", type=int, default=10, help="trials of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text(encoding="utf-8"))["trials"] if options.out.exists() else []
    port = free_port()
    address = f"127.0.0.1:{port}"
    head = ("--head", "--port", str(port), "--include-dashboard=false")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        started(*head, "--temp-dir", str(Path(folder, "ray"))),  # else the head stays the machine's current cluster
        ExitStack() as nodes,
    ):
        file = Path(folder, "experiment.toml")
        file.write_text(EXPERIMENT.format(rounds=options.rounds), encoding="utf-8")
        connect(address)
        try:
            second: subprocess.Popen[bytes] | None = None
            for kind, trial in ((kind, trial) for kind in options.kinds for trial in range(options.times)):
                if any(row["kind"] == kind and row["trial"] == trial for row in rows):
                    continue
                coins = random.Random(f"{kind} {trial}")
                if second is None or second.poll() is not None:  # a node serves until it is killed
                    wait_for(1)
                    second = nodes.enter_context(started("--address", address))
                wait_for(2)
                if kind == "driver":
                    row = driver_killed(file, address, coins)
                else:
                    row = killed_in_a_round(file, kind, second.pid, coins)
                rows.append({"kind": kind, "trial": trial, **row})
                print(json.dumps(rows[-1]), flush=True)
                about = {"cores": os.cpu_count(), "ray": ray.__version__}
                options.out.write_text(json.dumps({**about, "trials": rows}, indent=1) + "\n", encoding="utf-8")
        finally:
            ray.shutdown()
    if not all(row["same"] for row in rows):
        raise SystemExit("a run came out different")


def connect(address: str) -> None:
    """Connect to a head that may not be there yet."""
    until = time.monotonic() + 60
    while True:
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR")
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    main()
