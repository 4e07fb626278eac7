"""A run reads back from its ``config.toml``, whoever started it, or says in one sentence what it needs."""

import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data.label_noise import LABEL_NOISE
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.client_index import ClientIndex
from privfl.simulation.settings import Schedule
from tests import own_parts
from tests.commands.command_line import privfl
from tests.own_parts import (
    Alternating,
    FirstHalf,
    Gentle,
    Halved,
    Odd,
    OwnGaussian,
    OwnLaplace,
    Small,
    Smoothed,
    Striped,
    focal,
    hospitals,
    hospitals_of,
)

EXECUTION = pf.Execution(engine="loop", workers=1)
ATTACK = '[[attack]]\nname = "loss-threshold"\n'
AUDIT = '[[audit]]\nname = "gradient-canaries"\ncanaries = 4\n'


def written(folder):
    return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))


def simulate(task, algorithm=None, rounds=2, **settings):
    return pf.simulate(task, algorithm or pf.FedAvg(), rounds=rounds, **{"execution": EXECUTION, **settings})


def command(kind, folder, text):
    path = folder.parent / f"{kind}.toml"
    path.write_text(f'run = "{folder.as_posix()}"\n{text}', encoding="utf-8")
    return privfl(kind, path)


def test_shipped_parts_give_the_same_file_from_python_and_from_toml(tmp_path):
    settings = {
        "rounds": 2,
        "seed": 5,
        "engine": "loop",
        "workers": 1,
        "record": True,
        "dataset": {"name": "digits", "test_fraction": 0.3},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0},
        "model": {"name": "two-nn", "hidden": [16]},
        "label_noise": {"name": "symmetric", "rate": 0.1},
        "local_tests": {"fraction": 0.3},
        "algorithm": {"name": "fedprox", "mu": 1, "weighting": "uniform"},
        "privacy": {"update": [{"name": "clip", "max_norm": 1}], "noise_key": 3},
        "cohort": {"name": "fixed", "size": 3},
    }
    experiment = Experiment.from_dict(settings)
    experiment.run(tmp_path / "toml")
    task = pf.load(
        "digits",
        test_fraction=0.3,
        partition=pf.Dirichlet(clients=5, alpha=1),
        model="two-nn",
        model_options={"hidden": (16,)},
        label_noise=LABEL_NOISE["symmetric"](0.1),
        local_tests=pf.LocalTests(0.3),
        seed=5,
    )
    simulate(
        task,
        pf.FedProx("uniform", mu=1),
        seed=5,
        privacy=pf.Privacy(update=[pf.Clip(1)], noise_key=3),
        cohort=pf.FixedCohort(3),
        record=("public", "server"),
        out=tmp_path / "python",
    )
    files = [(tmp_path / name / "config.toml").read_text(encoding="utf-8") for name in ("toml", "python")]
    assert files[0] == files[1] == experiment.to_toml()
    assert Experiment.of_run(tmp_path / "python") == experiment
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("toml", "python")]
    assert metrics[0] == metrics[1]


def test_data_dealt_by_another_seed_than_the_runs_say_so(tmp_path):
    run = simulate(pf.load("digits", partition=pf.IID(3), model="logistic", seed=4), seed=1, out=tmp_path / "run")
    assert written(tmp_path / "run")["dataset"] == {"name": "digits", "seed": 4}
    again = Experiment.of_run(tmp_path / "run").run()
    assert torch.equal(again.parameters, run.parameters)


OWN = {
    "model": {"model": Small},
    "model-with-settings": {"model": partial(Small, hidden=4)},
    "model-by-position": {"model": partial(Small, 4)},
    "loss": {"loss": focal},
    "loss-with-settings": {"loss": partial(focal, gamma=2.0)},
    "loss-object": {"loss": Smoothed(0.2)},
    "partition": {"partition": Striped(3)},
}


@pytest.mark.parametrize("name", OWN)
def test_a_task_with_parts_of_ones_own_is_loaded_again(tmp_path, name):
    task = pf.load("digits", **{"partition": pf.IID(3), "model": "logistic", **OWN[name]})
    run = simulate(task, out=tmp_path / "run")
    section = name.split("-")[0]
    assert written(tmp_path / "run")[section]["name"].startswith("tests.own_parts:")
    again = Experiment.of_run(tmp_path / "run").run(tmp_path / "again")
    assert torch.equal(again.parameters, run.parameters)
    assert written(tmp_path / "again") == written(tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": Halved("uniform", factor=0.25)},
        {"cohort": FirstHalf(0.75)},
        {"availability": Alternating(1)},
        {"training": Gentle(learning_rate=0.1, patience=5)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_run_with_parts_of_ones_own_is_run_again(tmp_path, settings):
    task = pf.load("digits", partition=pf.IID(4), model="logistic")
    run = simulate(task, out=tmp_path / "run", **settings)
    experiment = Experiment.of_run(tmp_path / "run")
    for name, part in settings.items():
        assert getattr(experiment, name) == part
        assert type(getattr(experiment, name)) is type(part)
    assert torch.equal(experiment.run().parameters, run.parameters)


def test_mechanisms_of_ones_own_read_back():
    privacy = pf.Privacy(
        training=pf.DPSGD(noise_multiplier=1.0),
        update=[pf.Clip(1.0), OwnGaussian(2.0, at="client")],
        size=OwnLaplace(epsilon=1.0, bound=50),
    )
    experiment = replace(Experiment.from_dict({}), privacy=privacy)
    again = Experiment.from_dict(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert [type(link) for link in again.privacy.update] == [pf.Clip, OwnGaussian]
    assert type(again.privacy.size) is OwnLaplace


def test_settings_that_are_no_plain_data_are_written_as_far_as_toml_can_hold_them():
    experiment = replace(Experiment.from_dict({}), algorithm=Odd(steps=(3,), table={"a": 1.0}))
    section = experiment.to_dict()["algorithm"]
    assert section["prior"] == [0.5, 0.5]
    assert any(name in str(section["schedule"]) for name in (":sqrt", "ufunc"))  # NumPy 2.0 gives it no name
    assert (section["steps"], section["table"]) == ([3], {"a": 1.0})
    with pytest.raises(ConfigError, match=r"algorithm\.prior is .*; give an instance of Tensor"):
        Experiment.from_dict({"algorithm": section})


def test_a_run_on_arrays_names_its_data_and_goes_on_when_they_are_handed_over(tmp_path):
    folder = tmp_path / "run"
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0), noise_key=1)
    run = simulate(hospitals(), Halved(), out=folder, record=True, privacy=privacy)
    assert written(folder)["data"]["model"] == {"name": "tests.own_parts:Small"}
    for arguments in (("run", folder, "--resume"), ("run", folder / "config.toml", "--out", tmp_path / "x")):
        code, _, err = privfl(*arguments)
        assert code == 2
        assert "(arrays) were handed over in Python; name a function that returns its task" in err
        assert len(err.strip().splitlines()) == 1
    for kind, text in (("attack", ATTACK), ("audit", AUDIT)):
        code, _, err = command(kind, folder, text)
        assert code == 2
        assert "(arrays) were handed over in Python" in err
    named = 'task = "tests.own_parts:hospitals"\n'
    code, _, err = command("attack", folder, named + ATTACK)
    assert code == 0, err
    code, out, err = command("audit", folder, named + AUDIT)
    assert code == 0, err
    assert f"Results: {folder / 'audits'}" in out
    code, _, err = privfl("report", folder)
    assert code == 0, err
    code, _, err = privfl("run", folder, "--set", "task=tests.own_parts:hospitals", "--out", tmp_path / "again")
    assert code == 0, err
    assert written(tmp_path / "again") == {**written(folder), "task": "tests.own_parts:hospitals"}
    code, _, err = privfl("run", folder, "--set", "task=tests.own_parts:hospitals", "--resume")
    assert code == 0, err
    again = Experiment.of_run(tmp_path / "again").run(tmp_path / "again", resume=True)
    assert torch.equal(again.parameters, run.parameters)


def test_a_file_of_data_that_was_changed_is_named_with_the_mend(tmp_path):
    rows = [f"{row % 3},{row * 7 % 11},{row % 5},{row % 2}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["hospital,age,dose,ill", *rows]) + "\n")
    arrays = {"file": str(tmp_path / "rows.csv"), "target": "ill", "client": "hospital"}
    settings = {"rounds": 1, "arrays": arrays, "engine": "loop", "workers": 1}
    Experiment.from_dict(settings).run(tmp_path / "run")
    with (tmp_path / "rows.csv").open("a") as file:
        file.write("1,1,1,1\n")
    code, _, err = privfl("run", tmp_path / "run", "--resume", "--set", "rounds=2")
    assert (code, err.count("\n")) == (2, 1)
    assert "rows.csv is not what this run began with: " in err
    assert err.endswith(" here; restore it, or choose another --out\n")


def test_other_data_than_the_runs_are_refused(tmp_path):
    simulate(hospitals(), out=tmp_path / "run", record=True)
    code, _, err = command("attack", tmp_path / "run", f'task = "tests.own_parts:other_hospitals"\n{ATTACK}')
    assert code == 2
    assert "'tests.own_parts:other_hospitals' is not the task of this run: inputs is" in err
    with pytest.raises(ConfigError, match=r"other settings: data\.inputs is .* there and .* here"):
        simulate(own_parts.other_hospitals(), out=tmp_path / "run", resume=True, record=True)
    others = ClientIndex.of([np.arange(40), np.arange(40, 60), np.array([61])])
    with pytest.raises(ConfigError, match=r"other settings: data\.rows is"):
        simulate(replace(hospitals(), clients=others), out=tmp_path / "run", resume=True, record=True)


def test_an_experiment_file_names_the_function_that_makes_its_task(tmp_path):
    experiment = Experiment.from_dict({"task": "tests.own_parts:hospitals_of", "seed": 3, "rounds": 2, "workers": 1})
    run = experiment.run(tmp_path / "run")
    assert torch.equal(run.parameters, simulate(hospitals_of(3), seed=3).parameters)
    assert written(tmp_path / "run")["task"] == "tests.own_parts:hospitals_of"
    assert written(tmp_path / "run")["data"]["inputs"] == hospitals_of(3).describe()["inputs"]
    experiment.run(tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="other settings: seed is 3 there and 4 here"):
        replace(experiment, schedule=Schedule(2, seed=4)).run(tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="no_task returned int"):
        Experiment.from_dict({"task": "tests.own_parts:no_task"}).task()


def test_a_study_of_runs_from_python_reads_back(tmp_path):
    own = {"task": "tests.own_parts:hospitals_of", "algorithm": {"name": "tests.own_parts:Halved"}}
    settings = own | {"rounds": 2, "training": {"steps": 1}, "workers": 1, "engine": "loop"}
    study = pf.Study(settings, title="t", seeds=(2,))
    (one,) = study.run(tmp_path, processes=1).done
    folder = tmp_path / "runs" / one.run
    assert written(folder)["task"] == "tests.own_parts:hospitals_of"
    again = Experiment.of_run(folder).run()
    assert again.metrics[-1]["test_accuracy"] == one.metrics["test_accuracy"]
    before = (folder / "summary.json").stat().st_mtime_ns
    study.run(tmp_path, processes=1)
    assert (folder / "summary.json").stat().st_mtime_ns == before
