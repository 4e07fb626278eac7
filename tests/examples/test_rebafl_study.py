"""ReBaFL's study: what it reports of a curve, and that it runs, resumes and draws in its small form."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

import privfl as pf
from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "rebafl.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("rebafl_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_curve_is_reported_by_its_end_its_best_and_its_swing(study):
    accuracy = np.random.default_rng(0).uniform(0.3, 0.9, 40)
    found = study.figures_of(accuracy.tolist())
    assert found["last"] == pytest.approx(100 * accuracy[-10:].mean())
    assert found["spread"] == pytest.approx(100 * accuracy[-10:].std())
    assert found["best"] == pytest.approx(100 * accuracy.max())
    assert found["swing"] == pytest.approx(100 * np.diff(accuracy[20:]).std())
    assert study.figures_of(np.linspace(0.1, 0.9, 40).tolist())["swing"] == pytest.approx(0, abs=1e-10)


def test_everything_is_the_papers_grid_unless_groups_are_named(study):
    named = study.groups(Namespace(group=["20:0.5:30:FedAvg,R-BSM only", "50:0.1:7:all"]))
    assert named[0] == study.Group(20, 0.5, 30, ("FedAvg", "R-BSM only"))
    assert named[1].methods == tuple(study.METHODS)
    full = study.groups(Namespace(group=None))
    assert {(group.clients, group.probability, group.rounds) for group in full} == {
        (20, 0.5, 200),
        (50, 0.5, 200),
        (50, 0.3, 200),
        (50, 0.1, 200),
    }


def test_the_small_study_runs_keeps_what_is_finished_and_draws(tmp_path):
    command = [SCRIPT, "--small", "--out", tmp_path / "out"]
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / "out" / "results.json"
    rows = json.loads(store.read_text())["rows"]
    assert [(row["probability"], row["method"]) for row in rows] == [
        *((0.5, name) for name in ("FedAvg", "BSM-FedAvg", "R-BSM only", "F-Aug only", "ReBaFL")),
        *((0.2, name) for name in ("FedAvg", "ReBaFL")),
    ]
    assert all(len(row["accuracy"]) == 6 for row in rows)
    assert {tuple(row["answered"]) for row in rows if row["probability"] == 0.5} == {tuple(rows[0]["answered"])}
    assert all((tmp_path / "out" / name).stat().st_size > 5000 for name in ("dropout.png", "stability.png"))

    lost = rows.pop(1)
    store.write_text(json.dumps({"settings": {}, "rows": rows}))
    again = python(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("seed 0") == 1  # the finished run is read back, the others are not touched
    found = json.loads(store.read_text())["rows"]
    assert {row["method"]: row["accuracy"] for row in found[-1:]} == {"BSM-FedAvg": lost["accuracy"]}


def test_a_paused_curve_goes_on_as_if_it_had_not_been(study, tmp_path, monkeypatch):
    options = Namespace(out=tmp_path, dataset="digits", model="two-nn", samples=100)
    monkeypatch.setattr(study, "TRAINING", pf.LocalTraining(learning_rate=0.05, batch_size=50))
    group = study.Group(10, 0.5, 4, ("ReBaFL",))
    halves = [study.advance(group, "ReBaFL", 0, until, options)["accuracy"] for until in (2, 4)]
    whole = study.advance(group, "ReBaFL", 0, 4, Namespace(**{**vars(options), "out": tmp_path / "whole"}))["accuracy"]
    assert halves == [whole[:2], whole]


def test_fedavg_ft_tunes_on_images_of_no_client_and_meets_what_the_others_meet(study, tmp_path, monkeypatch):
    tasks, simulate = [], pf.simulate
    monkeypatch.setattr(
        pf, "simulate", lambda task, *given, **named: (tasks.append(task), simulate(task, *given, **named))[1]
    )
    monkeypatch.setattr(study, "TRAINING", pf.LocalTraining(learning_rate=0.05, batch_size=50))
    options = Namespace(out=tmp_path, dataset="digits", model="two-nn", samples=100)
    group = study.Group(10, 0.5, 4, ("FedAvg", study.TUNED))
    rows = [study.advance(group, method, 0, until, options) for method, until in (("FedAvg", 4), *TWO_TURNS)]
    assert rows[2]["accuracy"][:2] == rows[1]["accuracy"]
    assert rows[2]["answered"] == rows[0]["answered"]
    assert rows[2]["accuracy"] != rows[0]["accuracy"]
    whole, tuned = tasks[0], tasks[2]
    own = np.load(tmp_path / "server-10-0.npz")
    assert np.bincount(own["labels"]).tolist() == [study.OWN_IMAGES] * 10
    held = {row.tobytes() for row in own["images"]}
    for client in range(10):
        kept = set(tuned.clients[client].tolist())
        taken = set(whole.clients[client].tolist()) - kept
        assert kept <= set(whole.clients[client].tolist())
        assert all(whole.inputs[row].numpy().tobytes() in held for row in taken)
        assert not any(whole.inputs[row].numpy().tobytes() in held for row in kept)


TWO_TURNS = (("FedAvg-FT", 2), ("FedAvg-FT", 4))


def test_curves_of_one_method_are_cut_to_the_rounds_that_all_its_seeds_have(study):
    rows = [
        {"clients": 20, "probability": 0.5, "method": name, "seed": seed, "accuracy": [0.1] * rounds}
        for name, seed, rounds in (("ReBaFL", 0, 5), ("FedAvg", 0, 7), ("FedAvg", 1, 6))
    ]
    rows.append({"clients": 50, "probability": 0.1, "method": "FedAvg", "seed": 0, "accuracy": [0.2] * 9})
    found = dict(study.by_group(rows))
    lengths = {name: [len(curve) for curve in curves] for name, curves in found[20, 0.5].items()}
    assert lengths == {"FedAvg": [6, 6], "ReBaFL": [5]}
    assert len(found[50, 0.1]["FedAvg"][0]) == 9


def test_a_study_of_rivals_alone_has_a_table_and_no_figure(study, tmp_path, capsys):
    row = {"clients": 20, "probability": 0.5, "method": "MOON", "seed": 0, "accuracy": [0.5, 0.6, 0.7]}
    study.draw([row], tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "all methods are rivals" in capsys.readouterr().out
    study.draw([row, {**row, "method": "BSM-FedAvg"}], tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"dropout.png", "stability.png"}
