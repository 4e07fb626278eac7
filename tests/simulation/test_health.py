"""A run that learns nothing says so: while it goes on, at its end, by its exit code and in a study."""

import json
import logging
import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.experiment import Experiment
from privfl.simulation.health import Health, broken_clients, not_finite
from tests.commands.command_line import privfl

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(48, 5)).astype(np.float32), np.arange(48) % 3
TEST = rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3


def federation(broken=(), value=1e30):
    """Four clients with twelve rows each; those that are ``broken`` hold rows of ``value``."""
    inputs = X.copy()
    for client in broken:
        inputs[12 * client : 12 * (client + 1)] = value
    return pf.Task.from_arrays(inputs, Y, clients=np.repeat(np.arange(4), 12), test=TEST, classes=3)


@dataclass(frozen=True)
class SendsNothingUseful(pf.FedAvg):
    """Every client sends NaN in the rounds of the second half."""

    name: ClassVar[str] = "sends-nothing-useful"
    always: bool = False

    def begin_round(self, server, number):
        return {**server, "late": torch.tensor(float(number >= 2 or self.always))}

    def broadcast(self, server):
        return {**super().broadcast(server), "late": server["late"]}

    def finish(self, local, received, training):
        return {"update": torch.where(received["late"] > 0, torch.nan, local["parameters"] - received["parameters"])}


def train(task, algorithm, rounds=3, *, engine="loop", **settings):
    execution = pf.Execution(device="cpu", engine=engine, workers=1)
    return pf.simulate(task, algorithm, rounds=rounds, execution=execution, **settings)


def test_a_run_that_learns_says_nothing(caplog):
    run = train(federation(), pf.FedAvg("uniform"))
    assert (run.warnings, run.failure, run.summary["failure"]) == ((), "", "")
    assert not caplog.records


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_rounds_without_a_usable_upload_are_told_at_once_and_at_the_end(engine, caplog):
    with caplog.at_level(logging.WARNING, "privfl"):
        run = train(federation(), SendsNothingUseful("uniform"), 4, engine=engine)
    (told,) = caplog.messages
    assert told == "round 2: no upload could be used (4 sent a non-finite 'update')"
    assert run.summary["warnings"] == [
        "In 2 of 4 rounds no upload could be used.",
        "8 of 16 uploads were dropped: 8 sent a non-finite 'update'.",
    ]
    assert run.warnings == tuple(run.summary["warnings"])
    assert run.failure == ""


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("algorithm", [pf.FedSampling(samples_per_round=48), pf.FedAvg(), pf.Scaffold(), pf.FedDyn()])
def test_one_client_with_absurd_rows_does_not_decide_the_model_for_all(engine, algorithm):
    poisoned = train(federation(broken=[2], value=1e26), algorithm, engine=engine)
    assert poisoned.summary["dropped"] == {"sent 'update' longer than max_upload_norm = 1e+12": 3}
    assert float(poisoned.parameters.abs().max()) < 10
    open_door = train(federation(broken=[2], value=1e26), algorithm, engine=engine, max_upload_norm=math.inf)
    assert not float(open_door.parameters.abs().max()) < 1e20


def test_a_run_whose_every_round_failed_keeps_its_results_and_says_why(tmp_path):
    run = train(federation(), SendsNothingUseful("uniform", always=True), out=tmp_path / "run")
    assert run.failure.startswith("no upload could be used in any of 3 rounds (12 sent a non-finite 'update'); lower")
    assert len(run.metrics) == 3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failure"] == run.failure
    again = train(federation(), SendsNothingUseful("uniform", always=True), out=tmp_path / "run", resume=True)
    assert (again.failure, again.warnings) == (run.failure, run.warnings)


def test_a_model_that_never_moves_is_a_failure_and_one_whose_clients_were_never_asked_too():
    still = train(federation(), pf.FedAvg("uniform"), training=pf.LocalTraining(learning_rate=1e-60))
    assert still.failure == "the model never moved, because every upload was zero; raise training.learning_rate"
    alone = train(federation(), pf.FedAvg("uniform"), cohort=pf.PoissonCohort(1e-9))
    assert alone.failure.startswith("the model never moved, because no client was asked in any round")


@dataclass(frozen=True)
class StaysWhereItIs(pf.FedAvg):
    """A server that makes nothing of what it is sent."""

    name: ClassVar[str] = "stays-where-it-is"

    def aggregate(self, server, total, round, training):
        return server


def test_a_server_that_makes_nothing_of_uploads_is_not_said_to_have_had_none(tmp_path):
    settings = {"algorithm": StaysWhereItIs("uniform"), "out": tmp_path / "run"}
    still = train(federation(), **settings)
    assert still.failure.startswith(
        "the model never moved, although uploads were not zero: the algorithm's aggregate left the server's state as"
    )
    assert train(federation(), **settings, resume=True).failure == still.failure


def test_own_models_that_are_not_finite_are_named_by_client(caplog):
    with caplog.at_level(logging.WARNING, "privfl"):
        some = train(federation(broken=[1, 3], value=3e38), pf.Local())
    assert caplog.messages == ["round 1: what clients 1, 3 keep is not finite"]
    assert (some.warnings, some.failure) == (("What clients 1, 3 keep is not finite (2 of 4 clients).",), "")
    every = train(federation(broken=range(4), value=3e38), pf.Local())
    assert every.failure == (
        "the model has diverged: what every client keeps is not finite; lower training.learning_rate"
    )
    assert broken_clients({0: {"own": torch.ones(2)}, 1: {"own": torch.tensor([1.0, torch.inf])}}, [0, 1, 2]) == [1]


def test_what_was_not_finite_at_the_start_is_not_held_against_a_run():
    start = {"losses": torch.full((3,), torch.nan), "parameters": torch.zeros(2)}
    end = {"losses": start["losses"], "parameters": torch.tensor([1.0, torch.nan])}
    assert not_finite(end, start) == ["parameters"]


NOISE = pf.GaussianNoise(1.0, at="client")


def test_uploads_that_count_as_zeros_are_told_to_the_experimenter_and_to_no_file(tmp_path):
    chain = pf.Privacy(update=(pf.Clip(1.0), NOISE))
    run = train(federation(), SendsNothingUseful("uniform", always=True), privacy=chain, out=tmp_path / "run")
    assert "12 of 12 uploads counted as zeros: 12 sent a non-finite 'update'." in run.warnings
    assert run.failure.startswith("no upload could be used in any of 3 rounds")
    published = [path for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl", ".toml")]
    assert len(published) >= 5
    for path in published:
        assert "zeros" not in path.read_text(), path
        assert "failure" not in path.read_text(), path
        assert "non-finite" not in path.read_text(), path


def test_under_a_secret_draw_no_file_tells_what_the_draw_decides(tmp_path):
    chain = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0)))
    settings = {"privacy": chain, "cohort": pf.PoissonCohort(0.9), "out": tmp_path / "run"}
    run = train(federation(), SendsNothingUseful("uniform", always=True), **settings)
    assert run.failure
    assert run.warnings[0] == "In 3 of 3 rounds no upload could be used."
    for name in ("metrics.jsonl", "summary.json", "statement.json"):
        text = (tmp_path / "run" / name).read_text()
        assert not any(word in text for word in ("upload", "failure", "non-finite")), name


def test_counts_survive_a_checkpoint():
    health = Health(3, 1, 12, Counter({"sent a non-finite 'update'": 2}), moved=True)
    assert Health.from_state(json.loads(json.dumps(health.state()))) == health


def test_the_command_ends_with_a_reason_and_a_study_goes_on(tmp_path):
    settings = {
        "rounds": 2,
        "engine": "loop",
        "workers": 1,
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "two-nn"},
        "training": {"learning_rate": 1e6, "epochs": 2},
    }
    bad = Experiment.from_dict(settings)
    (tmp_path / "bad.toml").write_text(bad.to_toml())
    code, out, err = privfl("run", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert code == 1
    assert "Privacy statement" in out
    assert "warning: In 2 of 2 rounds no upload could be used." in err
    assert err.splitlines()[-1].startswith("privfl: the run failed: no upload could be used in any of 2 rounds (")

    variants = (pf.Variant("bad"), pf.Variant("good", {"training": {"learning_rate": 0.1}}))
    study = pf.Study(settings, title="rates", variants=variants)
    for _ in range(2):  # the second time nothing is left to train, and the same is told
        failed, done = study.run(tmp_path / "study", processes=1).members
        assert (done.method, done.state, failed.state) == ("good", "done", "failed")
        assert failed.reason.startswith("the run ended without having learnt: no upload could be used")


@pytest.mark.parametrize(
    ("reason", "mend"),
    [
        ("First made an update of shape (3,) of one of (9,); let …", "correct that mechanism of privacy.update"),
        ("First made a NoneType of an update; let …", "correct that mechanism of privacy.update"),
        ("First sent a 'told' outside of ±1", "correct side_report of that mechanism of privacy.update"),
        ("the mechanisms of privacy.update made an update that is not finite", "lower training.learning_rate or look"),
        ("sent a non-finite 'update'", "lower training.learning_rate or look at what clients hold"),
        ("sent 'update' longer than max_upload_norm = 1e+12", "lower training.learning_rate or look at what clients"),
        ("sent no 'update'", "let the algorithm's finish() return what its fields() declare"),
        ("sent 'update' of shape (3,)", "let the algorithm's finish() return what its fields() declare"),
        ("did not answer within 3 s", "start the clients, and look at the federation's url"),
        ("agreed to another policy", "let every client agree to the policy of this run"),
        ("took part in a secure sum that was aborted", "look at what clients hold"),
    ],
)
def test_the_mend_is_that_of_the_most_frequent_reason(reason, mend):
    dropped = Counter({reason: 3, "sent a non-finite 'other'": 1})
    if "secure sum" in reason:
        dropped = Counter({reason: 3})
    told = Health(rounds=2, failed=2, asked=4).failure(dropped)
    assert told.startswith("no upload could be used in any of 2 rounds (3 ")
    assert told.rpartition("); ")[2].startswith(mend)
