"""Small pieces of work that write to a folder: each can be interrupted, and done again from what is there."""

import contextlib
import io
import json
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np

import privfl as pf
from privfl.commands.attack import attack_run
from privfl.commands.audit import audit_experiment
from privfl.experiment import Experiment
from privfl.privacy.noise.source import NoiseSource
from privfl.study.report import report_directory

ONE_CORE = {"device": "cpu", "workers": 1, "checkpoint_seconds": 0.0}


def task(seed=0):
    """60 examples of 5 numbers and 3 classes at 4 clients."""
    draw = np.random.default_rng(7)
    targets = np.arange(60) % 3
    inputs = draw.normal(size=(60, 5)) + np.eye(5)[targets]
    return pf.Task.from_arrays(inputs.astype(np.float32), targets, partition=pf.IID(clients=4))


def run(out, *, rounds=3, engine="loop", key=7, checkpoint_seconds=0.0):
    """Noise at the server, fresh size answers every round, drop-outs, and a transcript of everybody."""
    pf.simulate(
        task(),
        pf.FedSampling(samples_per_round=20),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.5),
        privacy=pf.Privacy(
            training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
            size=pf.LaplaceSize(epsilon=3.0, bound=40, lower=5, refresh="every_round"),
            max_size_error=1e3,
            noise_key=key,
        ),
        availability=pf.Bernoulli(0.8),
        record=True,
        out=out,
        resume=True,
        execution=pf.Execution(engine=engine, **{**ONE_CORE, "checkpoint_seconds": checkpoint_seconds}),
    )


def banded_run(out):
    """Correlated noise, whose state the server keeps from round to round."""
    pf.simulate(
        task(),
        pf.FedAvg("uniform"),
        rounds=4,
        training=pf.LocalTraining(learning_rate=0.5, steps=1, batch_size=5),
        privacy=pf.Privacy(update=[pf.Clip(1.0), pf.BandedNoise(1.0)], noise_key=7),
        cohort=pf.Rotation(2),
        out=out,
        resume=True,
        execution=pf.Execution(engine="loop", **ONE_CORE),
    )


def seldom_saved_run(out):
    """The same without a checkpoint before the end, so that every round is repeated."""
    run(out, checkpoint_seconds=600.0)


def extended_run(out):
    """The same for twice as many rounds, from where a shorter one ended."""
    run(out, rounds=4)


def vectorised_run(out):
    """The same with clients side by side."""
    run(out, rounds=2, engine="vectorised")


FEDAVG = {
    "dataset": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg"},
    "training": {"learning_rate": 0.5, "batch_size": 100},
    "engine": "loop",
    "privacy": {"update": [{"name": "clip", "max_norm": 1.0}], "noise_key": 7},
    **ONE_CORE,
}
"""FedAvg on digits."""


def small_study(seeds, rounds):
    """FedAvg on digits, with that many seeds."""
    return pf.Study(FEDAVG | {"rounds": rounds}, title="small", seeds=seeds)


def study(out):
    """Two runs and their page."""
    small_study(seeds=2, rounds=1).run(out, name="small", processes=1)
    report_directory(out / "small")


def recorded(out):
    """A finished run that attacks read."""
    Experiment.from_dict(FEDAVG | {"rounds": 2, "record": True}).run(out)


def attack(out):
    """An attack on the run in ``out``."""
    plan = out.with_name(f"{out.name}-attack.toml")
    plan.write_text(f"run = {json.dumps(str(out))}\n[[attack]]\nname = 'label-counts'\n", encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        attack_run(plan)


def audit(out):
    """An audit whose results go to ``out``, which is ``runs/EXPERIMENT`` of the folder above.

    Audits draw fresh noise from the operating system, whatever the settings; here a fixed key stands in for it, so that
    two of them can be compared.
    """
    folder = out.parent.parent
    settings = {"rounds": 1, "dataset": {"name": "digits"}, "partition": {"name": "iid", "clients": 4}}
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict))
    for name, table in settings.items():
        if isinstance(table, dict):
            text += f"\n[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    text += "\n[privacy]\nnoise_key = 7\n[privacy.size]\nname = 'laplace'\nepsilon = 1.0\nbound = 800\n"
    (folder / f"{out.name}.toml").write_text(text, encoding="utf-8")
    plan = folder / "audit.toml"
    plan.write_text(f"experiment = '{out.name}.toml'\n[[audit]]\nname = 'size-response'\n", encoding="utf-8")
    noise = patch.object(NoiseSource, "from_os", lambda: NoiseSource(bytes(32), reproducible=False))
    with inside(folder), contextlib.redirect_stdout(io.StringIO()), noise:
        audit_experiment(Path("audit.toml"))


@contextlib.contextmanager
def inside(folder):
    """Work in ``folder``."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
