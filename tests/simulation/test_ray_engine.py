"""Runs on a Ray cluster of real processes: the loop's model and claims, also when a worker is killed in a round."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.simulation.ray_cluster import connected
from privfl.study.cluster import ClusterWorkers
from privfl.study.file import Study
from privfl.study.tables import Format, write_table
from tests.simulation.test_ray_cluster import Locked

ray = pytest.importorskip("ray")

DPSGD = pf.DPSGD(noise_multiplier=1.0)
DIGITS = {"partition": pf.Dirichlet(clients=8, alpha=0.5), "model": "logistic", "seed": 4}


def on_ray(workers=2, **settings):
    return pf.Execution(engine="ray", workers=workers, device="cpu", **settings)


LOOP = pf.Execution(engine="loop", device="cpu")


@pytest.fixture(scope="module")
def cluster():
    """A Ray head with three CPUs, which declares a GPU that is not there, to which this process is connected; its
    address."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}')
        patched.setenv("CUDA_VISIBLE_DEVICES", "0")
        with connected(None, 3):
            yield ray.get_runtime_context().gcs_address


@dataclass(frozen=True)
class Mortal(pf.Scaffold):
    """SCAFFOLD one of whose processes kills itself, without any farewell, when it finds the file ``trap``."""

    name: ClassVar[str] = "mortal"
    trap: str = ""

    def finish(self, local, received, training):
        try:
            Path(self.trap).unlink()
        except OSError:
            return super().finish(local, received, training)
        os.kill(os.getpid(), signal.SIGKILL)


def same(one, other):
    """Whether two runs have the same model, state of clients, metrics and claims, bit for bit."""
    states = [
        {client: {name: value.tolist() for name, value in state.items()} for client, state in run.client_state.items()}
        for run in (one, other)
    ]
    assert torch.equal(one.parameters, other.parameters)
    assert states[0] == states[1]
    assert one.metrics == other.metrics
    assert str(one.statement) == str(other.statement)


@pytest.mark.slow
def test_a_worker_killed_in_a_round_costs_its_share_and_neither_model_nor_claim(cluster, tmp_path):
    trap = tmp_path / "trap"
    task, algorithm = pf.load("digits", **DIGITS), Mortal(trap=str(trap))
    settings = {"rounds": 4, "seed": 4, "cohort": pf.FixedCohort(6), "privacy": pf.Privacy(training=DPSGD, noise_key=7)}
    expected = pf.simulate(task, algorithm, execution=LOOP, **settings)
    there = []

    def watch(run, line):
        workers = run.engine.workers
        if run.round == 1:
            trap.touch()
        until = time.monotonic() + 120
        while run.round == 2 and len(workers.there) < 2 and time.monotonic() < until:  # what died is replaced
            workers.welcome()
            time.sleep(0.05)
        there.append(len(workers.there))

    found = pf.simulate(task, algorithm, execution=on_ray(), callbacks=[watch], **settings)
    assert not trap.exists()
    assert there == [2, 2, 2, 2]
    same(expected, found)
    (died,) = [one for one in found.summary["warnings"] if "died in round 1" in one]
    assert "clients were trained anew by the others" in died


@pytest.mark.slow
def test_stacks_on_workers_are_those_of_one_process_also_when_a_worker_is_killed(cluster, tmp_path):
    task = pf.load("digits", **DIGITS)
    settings = {"rounds": 3, "seed": 4, "cohort": pf.FixedCohort(7), "privacy": pf.Privacy(training=DPSGD, noise_key=7)}
    loop = pf.simulate(task, pf.Scaffold(), execution=LOOP, **settings)
    stacked = pf.Execution(engine="vectorised", workers=2, device="cpu")
    expected = pf.simulate(task, pf.Scaffold(), execution=stacked, **settings)
    execution, out = on_ray(inside="vectorised"), tmp_path / "run"

    def watch(run, line):
        if run.round == 1:
            os.kill(int(run.engine.workers.there[0].name.rpartition("process ")[2].rstrip(")")), signal.SIGKILL)

    found = pf.simulate(task, pf.Scaffold(), execution=execution, callbacks=[watch], out=out, **settings)
    same(expected, found)
    assert json.loads((out / "engine.json").read_text(encoding="utf-8"))["chunk"] == 4
    assert torch.allclose(loop.parameters, found.parameters, atol=1e-5)
    assert [one for one in found.summary["warnings"] if "died in round 1" in one]


VOLUME = [1.0]


@dataclass(frozen=True)
class Loud(pf.FedAvg):
    """Reads a global of this module, which workers import themselves; without ``assert``, which pytest writes anew."""

    name: ClassVar[str] = "loud"

    def finish(self, local, received, training):
        found = super().finish(local, received, training)
        return {name: value * VOLUME[0] for name, value in found.items()}


def test_workers_that_import_another_state_of_ones_own_module_are_refused(cluster, monkeypatch):
    task = pf.load("digits", **DIGITS)
    monkeypatch.setattr(sys.modules[__name__], "VOLUME", [4.0])
    with pytest.raises(ConfigError, match=r"the Ray worker on .* has not the algorithm of this process: a module of"):
        pf.simulate(task, Loud(), rounds=1, execution=on_ray(1))
    monkeypatch.undo()
    assert len(pf.simulate(task, Loud(), rounds=1, execution=on_ray(1)).metrics) == 1


@pytest.mark.slow
def test_a_gpu_is_handed_to_a_worker_and_one_that_pytorch_does_not_find_is_named(cluster):
    task = pf.load("digits", **DIGITS)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"the Ray worker on .* cannot train: this worker was given GPU 0, and"):
            pf.simulate(task, pf.FedAvg(), rounds=1, execution=on_ray(1, gpus=0.5))
    with pytest.raises(ConfigError, match=r"3 workers need 0\.5 of a GPU each, and of the 1 GPUs that the Ray cluster"):
        pf.simulate(task, pf.FedAvg(), rounds=1, execution=on_ray(3, gpus=0.5))


@pytest.mark.slow
def test_another_process_runs_an_experiment_file_at_the_address_of_the_cluster(cluster, tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(
        """
        rounds = 3
        device = "cpu"
        dataset.name = "digits"
        model.name = "logistic"
        partition = {name = "iid", clients = 6}
        algorithm = {name = "fedsampling", samples_per_round = 300}
        [privacy]
        noise_key = 5
        training = {noise_multiplier = 1.0, noise_at = "server"}
        """,
        encoding="utf-8",
    )
    experiment = Experiment.from_toml(file)
    expected = replace(experiment, execution=LOOP).run()
    out = tmp_path / "out"
    command = [sys.executable, "-m", "privfl", "run", str(file), "--out", str(out), "--set", "engine=ray"]
    told = ["--set", "workers=2", "--set", f"address={cluster}"]
    done = subprocess.run(
        [*command, *told], env={**os.environ, "RAY_AUTH_MODE": "token"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == json.loads(json.dumps(expected.metrics))
    model = np.load(out / "checkpoints" / "latest.npz")["tensor/server/parameters"]
    assert np.array_equal(model, expected.parameters.numpy())
    assert json.loads((out / "engine.json").read_text(encoding="utf-8"))["engine"] == "ray"


def mortal_square(job):
    """The square of a number; the process that finds the file of a job kills itself, once."""
    number, trap, always = job
    if trap.exists():
        if not always:
            trap.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


@pytest.mark.slow
def test_runs_of_a_study_are_had_on_the_cluster_and_one_that_is_killed_is_had_again(cluster, tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    with ClusterWorkers(2, cluster, tmp_path) as workers:
        jobs = [(2, trap, False), (3, tmp_path / "none", False)]
        assert dict(workers.outcomes(mortal_square, jobs)) == {jobs[0]: 4, jobs[1]: 9}
        trap.touch()
        assert list(workers.outcomes(mortal_square, [(2, trap, True)])) == [((2, trap, True), None)]
    with (
        pytest.raises(ConfigError, match="is not there on a node of the Ray cluster"),
        ClusterWorkers(1, cluster, tmp_path / "elsewhere"),
    ):
        pytest.fail("nobody has that folder")
    file = tmp_path / "study.toml"
    file.write_text(
        """
        rounds = 1
        dataset.name = "digits"
        model.name = "logistic"
        partition = {name = "iid", clients = 4}
        execution.device = "cpu"
        [study]
        seeds = 2
        """.replace("execution.device", "device"),
        encoding="utf-8",
    )
    here, there = (
        Study.from_toml(file).run(tmp_path / name, processes=1, address=address)
        for name, address in (("here", None), ("there", cluster))
    )
    assert [one.state for one in there.members] == ["done", "done"]
    tables = [write_table(one, Format.json).splitlines() for one in (here, there)]
    told = [[line for line in table if "seconds" not in line] for table in tables]
    assert told[0] == told[1]


@pytest.mark.slow
def test_a_worker_without_the_data_is_named_before_any_work(cluster, tmp_path):
    numbers = np.random.default_rng(0)
    arrays = tmp_path / "data.npz"
    np.savez(arrays, inputs=numbers.normal(size=(60, 4)).astype(np.float32), targets=np.arange(60) % 3)
    settings = {"arrays": {"file": str(arrays)}, "partition": {"name": "iid", "clients": 3}, "rounds": 1}
    task = Experiment.from_dict(settings).task()
    arrays.unlink()
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"the Ray worker on .* cannot load the data: .*data\.npz"):
        pf.simulate(task, pf.FedAvg(), rounds=1, execution=on_ray(1), out=out)
    assert not out.exists()


def test_more_workers_than_cpus_are_refused(cluster):
    deadline, said = time.monotonic() + 60, ""
    while "3 are free" not in said and time.monotonic() < deadline:  # workers of earlier tests take a moment to go
        with pytest.raises(ConfigError, match="9 workers need a CPU each, and of the 3 of the Ray cluster") as refusal:
            pf.simulate(pf.load("digits", **DIGITS), pf.FedAvg(), rounds=1, execution=on_ray(9))
        said = str(refusal.value)
    assert "of the 3 of the Ray cluster 3 are free" in said


def test_another_address_than_that_of_the_connection_is_refused(cluster):
    host, port = cluster.rsplit(":", 1)
    with (
        pytest.raises(ConfigError, match=r"this program is connected to the Ray cluster at"),
        connected(f"localhost:{port}", 1),
    ):
        pytest.fail(f"{host} is not localhost by name")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": pf.Centralized()}, "centralized trains on all data as one"),
        ({"record": "server"}, "record = 'server' keeps every upload"),
        ({"privacy": pf.Privacy(update=[pf.SecureSum()])}, "SecureSum adds up what each client encodes"),
        ({"task": pf.Task.from_arrays(np.eye(9, 4, dtype=np.float32), np.arange(9) % 2, partition=pf.IID(clients=3))},
         "the data of this run were handed over in Python"),
        ({"algorithm": Locked(held=threading.Lock())}, "locked cannot be sent to Ray's workers"),
    ],
    ids=["pooled data", "every upload", "secure sum", "data from Python", "unpicklable"],
)  # fmt: skip
def test_what_cannot_be_distributed_is_refused_by_name_before_any_work(settings, said, tmp_path):
    asked = {"task": pf.load("digits", **DIGITS), "algorithm": pf.FedAvg(weighting="uniform"), "rounds": 1, **settings}
    task, algorithm = asked.pop("task"), asked.pop("algorithm")
    with pytest.raises(ConfigError, match=said):
        pf.simulate(task, algorithm, execution=on_ray(), out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()
