"""A run goes on for more rounds as if they had been planned from the start, or says why it cannot."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.files import sha256, write_json
from privfl.simulation.run_directory import CHECKPOINT, EXTENSION, RunDirectory
from tests.commands.command_line import privfl
from tests.simulation.extended_runs import NOISY, SETTINGS, Stopped, stop_after, train


def same(run, other):
    assert torch.equal(run.parameters, other.parameters)
    assert run.metrics == other.metrics
    assert run.statement.to_json() == other.statement.to_json()
    assert {**run.summary} == {**other.summary}
    for client, kept in other.client_state.items():
        assert all(torch.equal(run.client_state[client][name], value) for name, value in kept.items())
    for name in ("metrics.jsonl", "statement.json"):
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes()
    ours, theirs = (RunDirectory(one.path).ending()[0] for one in (run, other))
    assert ours == theirs


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_goes_on_equals_one_that_was_planned_so_long(tmp_path, name):
    whole = train(tmp_path / "whole", 8, **SETTINGS[name])
    short = train(tmp_path / "longer", 5, **SETTINGS[name])
    assert len(short.metrics) == 5
    same(train(tmp_path / "longer", 8, resume=True, **SETTINGS[name]), whole)
    same(train(tmp_path / "longer", 8, resume=True, **SETTINGS[name]), whole)
    assert not (tmp_path / "longer" / "noise.key").exists()


def test_one_that_was_interrupted_goes_on_for_more_and_so_does_an_extension(tmp_path):
    settings = SETTINGS["a secret draw"]
    whole = train(tmp_path / "whole", 8, **settings)
    for rounds, moment in ((5, 2), (8, 4), (8, 6)):
        with pytest.raises(Stopped):
            train(tmp_path / "cut", rounds, resume=True, callbacks=stop_after(moment), **settings)
    same(train(tmp_path / "cut", 8, resume=True, **settings), whole)


def test_a_statement_is_gone_before_what_it_does_not_cover_is_sent(tmp_path):
    settings = SETTINGS["a secret draw"]
    train(tmp_path / "run", 3, **settings)
    with pytest.raises(Stopped):
        train(tmp_path / "run", 6, resume=True, callbacks=stop_after(3), **settings)
    assert not (tmp_path / "run" / "statement.json").exists()
    assert not RunDirectory(tmp_path / "run").finished


@pytest.mark.parametrize("done", [0, 1])
def test_an_extension_that_was_interrupted_before_it_began_is_begun_anew(tmp_path, monkeypatch, done):
    """Killed with its record on disk while the run still counts as ended, with its statement or without."""
    settings = {"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0)))}
    ended, removed, run = train(tmp_path / "run", 3, **settings), [], tmp_path / "run"

    def remove(path):
        if len(removed) == done:
            raise Stopped
        removed.append(path)
        path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("privfl.simulation.extension.remove", remove)
        with pytest.raises(Stopped):
            train(run, 6, resume=True, **settings)
    assert RunDirectory(run).finished
    assert (run / "statement.json").exists() == (done == 0)
    longer = train(run, 6, resume=True, **settings)
    assert longer.metrics[:2] == ended.metrics[:2]
    assert len(longer.metrics) == 6
    assert longer.statement.to_json() == train(tmp_path / "whole", 6, **settings).statement.to_json()


def test_a_run_whose_key_is_erased_goes_on_under_another_one_and_is_charged_for_all_rounds(tmp_path):
    settings = {"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0)))}
    keys = []

    def note(simulation, line):
        keys.append((line["round"], (simulation.path / "noise.key").read_text()))

    train(tmp_path / "run", 3, callbacks=[note], **settings)
    longer = train(tmp_path / "run", 6, resume=True, callbacks=[note], **settings)
    assert [round for round, _ in keys] == list(range(6))
    assert len({key for _, key in keys[:3]}) == len({key for _, key in keys[3:]}) == 1
    assert keys[0][1] != keys[5][1]
    whole = train(tmp_path / "whole", 6, **settings)
    assert longer.statement.to_json() == whole.statement.to_json()
    assert not (tmp_path / "run" / "noise.key").exists()


def ended(tmp_path, rounds=3, **settings):
    """A run that ended, and its checkpoint after its first round."""

    def keep(simulation, line):
        if line["round"] == 1:  # of the round before
            (tmp_path / "early.npz").write_bytes((simulation.path / CHECKPOINT).read_bytes())

    train(tmp_path / "run", rounds, callbacks=[keep], **settings)
    return tmp_path / "run"


@pytest.mark.parametrize("cut", ["before it is extended", "in flight"])
@pytest.mark.parametrize("key", [None, 1])
def test_a_checkpoint_from_before_the_extension_is_refused_and_nothing_is_changed(tmp_path, cut, key):
    settings = NOISY | {"privacy": replace(NOISY["privacy"], noise_key=key)}
    run = ended(tmp_path, **settings)
    if cut == "in flight":
        with pytest.raises(Stopped):
            train(run, 6, resume=True, callbacks=stop_after(4), **settings)
    last = (run / CHECKPOINT).read_bytes()
    (run / CHECKPOINT).write_bytes((tmp_path / "early.npz").read_bytes())
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    told = r"latest\.npz is (from before round 3|damaged or was changed since the run ended)"
    with pytest.raises(DataError, match=told):
        train(run, 6, resume=True, **settings)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (run / CHECKPOINT).write_bytes(last)
    longer = train(run, 6, resume=True, **settings)
    assert longer.statement.to_json() == train(tmp_path / "whole", 6, **settings).statement.to_json()


def test_without_its_checkpoint_an_extension_does_not_begin_anew(tmp_path):
    run = ended(tmp_path, **NOISY)
    with pytest.raises(Stopped):
        train(run, 6, resume=True, callbacks=stop_after(3), **NOISY)
    (run / CHECKPOINT).unlink()
    with pytest.raises(DataError, match=r"latest\.npz is missing, from which the run was to go on; restore it"):
        train(run, 6, resume=True, **NOISY)
    told = json.loads((run / EXTENSION).read_text())
    write_json(run / EXTENSION, {name: told[name] for name in ("rounds", "key")})  # as an earlier version wrote it
    with pytest.raises(DataError, match=r"latest\.npz is missing, from which the run was to go on; restore it"):
        train(run, 6, resume=True, **NOISY)


def test_an_extension_is_extended_from_where_it_stands(tmp_path):
    run = ended(tmp_path, **NOISY)
    with pytest.raises(Stopped):
        train(run, 5, resume=True, callbacks=stop_after(3), **NOISY)
    first = json.loads((run / EXTENSION).read_text())
    assert (first["rounds"], first["from"]) == (5, 3)
    with pytest.raises(Stopped):  # in flight: under the same key, from the same end
        train(run, 7, resume=True, callbacks=stop_after(5), **NOISY)
    second = json.loads((run / EXTENSION).read_text())
    assert {**second, "digest": ""} == {**first, "rounds": 7, "digest": ""}
    train(run, 7, resume=True, **NOISY)
    middle = (run / CHECKPOINT).read_bytes()
    with pytest.raises(Stopped):  # ended once more: from its new end, under a third key
        train(run, 9, resume=True, callbacks=stop_after(8), **NOISY)
    third = json.loads((run / EXTENSION).read_text())
    assert (third["from"], third["checkpoint"]) == (7, hashlib.sha256(middle).hexdigest())
    assert third["key"] != second["key"]
    assert len(train(run, 9, resume=True, **NOISY).metrics) == 9


def as_before(run):
    """Make the directory what the version before left, which did not say where an extension goes on."""
    directory = RunDirectory(run)
    summary, told = directory.read_json("summary.json"), directory.read_json(EXTENSION)
    directory.write_json(EXTENSION, {name: told[name] for name in ("rounds", "key")})
    directory.save(directory.checkpoint())
    if summary is not None:
        digests = summary["sha256"] | {CHECKPOINT: sha256(run / CHECKPOINT)}
        directory.write_json("summary.json", {**summary, "sha256": digests})


def test_directories_that_an_earlier_version_extended_still_open_and_go_on(tmp_path):
    for done in (False, True):
        folder = tmp_path / str(done)
        folder.mkdir()
        run = ended(folder, **NOISY)
        if done:
            train(run, 6, resume=True, **NOISY)
        else:
            with pytest.raises(Stopped):
                train(run, 6, resume=True, callbacks=stop_after(4), **NOISY)
        as_before(run)
        assert len(train(run, 6, resume=True, **NOISY).metrics) == 6
        longer = train(run, 8, resume=True, **NOISY)
        assert json.loads((run / EXTENSION).read_text())["from"] == 6
        assert longer.statement.to_json() == train(folder / "whole", 8, **NOISY).statement.to_json()


@dataclass(frozen=True)
class Halving(pf.FedAvg):
    """Sends half of its update in the second half of the run, without saying that it knows when that is."""

    name: ClassVar[str] = "halving"

    def begin_round(self, server, number):
        return {**server, "part": torch.tensor(1.0 if number < self.context.rounds / 2 else 0.5)}


@dataclass(frozen=True)
class Honest(Halving):
    uses_rounds: ClassVar[bool] = True


@dataclass(frozen=True)
class Transform(pf.Mechanism):
    """Leaves updates as they are."""

    kind: ClassVar[str] = "transform"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algorithm": Honest("uniform")}, "halving plans by the number of rounds"),
        ({"algorithm": pf.SuPerFed()}, "superfed plans by the number of rounds"),
        (
            {
                "algorithm": pf.FedAvg("uniform"),
                "privacy": pf.Privacy(training=pf.DPSGD(target_epsilon=5.0), noise_key=1),
            },
            "the noise of DPSGD was calibrated",
        ),
        (
            {
                "algorithm": pf.FedAvg("uniform"),
                "privacy": pf.Privacy(update=(pf.Clip(1.0), pf.BandedNoise(2.0)), noise_key=1),
                "cohort": pf.Rotation(3),
            },
            "the noise of BandedNoise is correlated over the rounds that were planned",
        ),
        (
            {"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(update=(Transform(),))},
            "Transform is not privfl's own, and is told how many rounds are planned",
        ),
    ],
    ids=["own schedule", "superfed", "target ε", "correlated noise", "own mechanism"],
)
def test_where_something_depends_on_their_number_more_rounds_are_refused_with_the_reason(tmp_path, settings, reason):
    train(tmp_path / "run", 3, **settings)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=f"holds a run of 3 rounds, which cannot go on to 6: {reason}"):
        train(tmp_path / "run", 6, resume=True, **settings)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_an_algorithm_that_reads_the_number_of_rounds_must_say_so(tmp_path):
    with pytest.raises(ConfigError, match=r"declare uses_rounds: ClassVar\[bool\] = True"):
        train(tmp_path / "run", 3, algorithm=Halving("uniform"))


def test_fewer_rounds_and_other_settings_are_refused_as_ever(tmp_path):
    train(tmp_path / "run", 4, algorithm=pf.FedAvg())
    with pytest.raises(ConfigError, match="rounds is 4 there and 3 here"):
        train(tmp_path / "run", 3, algorithm=pf.FedAvg(), resume=True)
    with pytest.raises(ConfigError, match=r"than more rounds: training\.learning_rate is 0\.05 there"):
        train(tmp_path / "run", 6, algorithm=pf.FedAvg(), training=pf.LocalTraining(learning_rate=0.2), resume=True)


def test_a_config_that_was_changed_is_refused_in_a_sentence(tmp_path):
    train(tmp_path / "run", 2, algorithm=pf.FedAvg())
    config = tmp_path / "run" / "config.toml"
    config.write_text("".join(line for line in config.open() if "rounds" not in line))
    with pytest.raises(DataError, match=r"config\.toml is damaged or was changed since the run began"):
        train(tmp_path / "run", 2, algorithm=pf.FedAvg(), resume=True)


def test_the_command_line_goes_on_and_the_directory_reads_back_with_all_its_rounds(tmp_path):
    settings = {"rounds": 2, "engine": "loop", "workers": 1, "partition": {"name": "iid", "clients": 3}}
    (tmp_path / "small.toml").write_text(Experiment.from_dict({**settings, "model": {"name": "logistic"}}).to_toml())
    folder = tmp_path / "run"
    assert privfl("run", tmp_path / "small.toml", "--out", folder)[0] == 0
    assert privfl("run", tmp_path / "small.toml", "--out", folder, "--resume", "--set", "rounds=4")[0] == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 4
    assert Experiment.of_run(folder).schedule.rounds == 4
    assert privfl("run", folder, "--resume", "--set", "rounds=5")[0] == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 5
