"""``--full`` of every paper: each kind of column is built from small official files, fits all methods, and runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from statistics import stdev

import numpy as np
import pytest
import torch
from full import aaggff, fedevg, fedsampling, running, wordpieces
from full.data import held_back, shrunk, whole, with_own_tests
from full.table import Column, Method, Table, Tuned, last_line
from scipy.stats import t as student

import privfl as pf
from privfl.errors import DataError
from tests.data.official import entry
from tests.examples import papers_data

PAPERS = ("fedsampling", "grpfed", "rebafl", "superfed", "aaggff", "fedevg")
TABLES = {paper: import_module(f"full.{paper}").TABLE for paper in PAPERS}
FIRST = ("FedAvg", "FedCVAE", "MM, L = 0.4")
"""The cheapest row of each table."""


@pytest.fixture(scope="session")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    papers_data.write_all(folder)
    return folder


@pytest.fixture
def small(room, monkeypatch):
    """Official files that are small, and networks that would be too large for a test."""
    monkeypatch.setenv("PRIVFL_DATA", str(room))
    monkeypatch.setattr("privfl.data.catalog.info", entry)
    monkeypatch.setattr("privfl.data.files.verify", lambda *_: None)
    monkeypatch.setattr(wordpieces, "SIZES", papers_data.ENCODER)
    monkeypatch.setattr(aaggff, "SIDE", 32)
    monkeypatch.setattr(fedsampling, "VOCABULARY", 100)
    monkeypatch.setattr(fedsampling, "SIZES", {"embedding_dim": 8, "hidden": 8})
    for name, value in (("CLASSIFIER", "energy-cnn"), ("ENERGY", "energy-cnn"), ("EPOCHS", 1)):
        monkeypatch.setattr(fedevg, name, value)


def study_of(paper, out):
    """A study of few clients and rows; GRP-FED's partition gives nobody fewer than twenty."""
    few = {"grpfed": (2, 40), "superfed": (3, 30), "fedevg": (3, 30)}
    clients, rows = few.get(paper, (6, papers_data.ROWS))
    return running.Study(TABLES[paper], out, rounds=1, clients=clients, rows=rows, engine="loop")


def unlike(study):
    """The first of all columns that share data, network and rows: the others differ by numbers alone."""
    found = {}
    for column in study.table.columns:
        task = study.task(column, column.seeds[0])
        assert len(task.clients) >= min(2, study.clients)
        for name in column.methods:
            assert column.arguments(name, task)["training"].batch_size > 0
        found.setdefault((column.data, task.model_name, tuple(column.methods)), column)
    return list(found.values())


@pytest.mark.parametrize("paper", PAPERS)
def test_every_column_is_built_and_each_kind_fits_all_methods_and_runs(paper, small, tmp_path, capsys):
    study = study_of(paper, tmp_path)
    columns = unlike(study)
    method = next(name for name in FIRST if name in columns[0].methods)
    assert running.carried_out(study, columns, FIRST, [0]) == []
    kept = study.kept()
    assert {row["column"] for row in kept} == {column.name for column in columns}
    assert {row["seed"] for row in kept if row["method"] == method} == {0}
    for column in columns:
        lines = list(running.printed(column, kept))
        assert f"| {column.name} |" in lines[0]
        assert len(lines) == 3


def column_of(name="digits", **changes):
    """A column that needs no file."""
    given = Column(
        name=name,
        data=lambda: pf.load_dataset("digits"),
        divide=lambda data, clients, seed: pf.Task.from_dataset(
            data, partition=pf.IID(clients), model="logistic", seed=seed
        ),
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.1, steps=3),
        methods={"FedAvg": Method(pf.FedAvg()), "FedProx": Method(pf.FedProx(mu=1.0))},
        judge=last_line("accuracy", "macro_f1"),
        measures={"accuracy": 2, "macro_f1": 1},
        ours="FedProx",
        clients=4,
        seeds=(1, 2),
    )
    return replace(given, **changes)


def missing():
    raise DataError("the file x.tar.gz is not here; get it")


def test_missing_data_leave_their_column_out_and_the_others_go_on(tmp_path, capsys):
    found = Table("a paper", (column_of("absent", data=missing), column_of()))
    assert running.main(found, ["--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[-1] == "absent: the file x.tar.gz is not here; get it"
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["column"], row["method"], row["seed"]) for row in rows] == [
        ("digits", method, seed) for seed in (1, 2) for method in ("FedAvg", "FedProx")
    ]
    head, _, fedavg, fedprox = told.out.splitlines()[-4:]
    assert head == "| digits | accuracy | macro_f1 | FedProx − it, accuracy | seeds |"
    assert fedavg.count("±") == 2
    assert fedprox.split(" | ")[-2:] == ["–", "2 |"]


def test_a_method_that_does_not_fit_is_told_before_anything_runs(tmp_path, capsys):
    dpsgd = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5))
    wrong = {"FedAvg": Method(pf.FedAvg()), "FedProx": Method(pf.PropFair(), given={"privacy": dpsgd})}
    assert running.main(Table("a paper", (column_of(methods=wrong),)), ["--out", str(tmp_path)]) == 1
    assert "digits: " in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()


def test_finished_runs_are_kept_and_one_whose_row_was_lost_is_run_again_to_the_same_end(tmp_path, capsys):
    found, call = Table("a paper", (column_of(),)), ["--out", str(tmp_path), "--seeds", "1", "--engine", "loop"]
    assert running.main(found, call) == 0
    store = tmp_path / "results.json"
    before = json.loads(store.read_text(encoding="utf-8"))
    store.write_text(json.dumps(before | {"rows": before["rows"][:1]}), encoding="utf-8")
    capsys.readouterr()
    assert running.main(found, call) == 0
    assert capsys.readouterr().out.count("seed 1") == 1
    after = json.loads(store.read_text(encoding="utf-8"))
    assert [row["scores"] for row in after["rows"]] == [row["scores"] for row in before["rows"]]
    assert not list(tmp_path.rglob(running.CHECKPOINTS))
    with pytest.raises(SystemExit):
        running.main(found, [*call, "--rounds", "5"])
    assert "holds runs of" in capsys.readouterr().err


def test_names_that_the_table_lacks_are_refused(tmp_path, capsys):
    for flag in ("--only", "--method"):
        with pytest.raises(SystemExit):
            running.main(Table("a paper", (column_of(),)), ["--out", str(tmp_path), flag, "nothing"])
        assert "there is no 'nothing'" in capsys.readouterr().err


def test_a_setting_is_chosen_without_the_test_and_one_step_beyond_an_end(tmp_path):
    tuned = Method(pf.FedAvg(), tuned=Tuned("server_learning_rate", (0.01, 0.1, 1.0)))
    column = column_of(methods={"FedAvg": tuned}, ours="FedAvg", seeds=(1,), rounds=1)
    study = running.Study(Table("a paper", (column,)), tmp_path, engine="loop")
    assert running.carried_out(study, [column], (), None) == []
    rows = study.kept()
    tried = {row["value"]: row["scores"]["accuracy"] for row in rows if row.get("tuning")}
    assert {row["seed"] for row in rows if row.get("tuning")} == {running.TUNING_SEED}
    assert set(tried) in ({0.01, 0.1, 1.0, 10.0}, {0.01, 0.1, 1.0})
    assert [row["value"] for row in rows if not row.get("tuning")] == [max(tried, key=tried.get)]
    data = column.data()
    judged = held_back(data, 3)
    known = {row.numpy().tobytes() for row in data.inputs}
    assert all(row.numpy().tobytes() in known for row in judged.test_inputs)
    assert len(judged.targets) + len(judged.test_targets) == len(data.targets)


def test_differences_are_paired_and_have_students_interval():
    ours, other = {1: 3.0, 2: 5.0, 3: 4.0, 9: 0.0}, {1: 1.0, 2: 2.0, 3: 3.0}
    reach = student.ppf(0.975, 2) * stdev([2.0, 3.0, 1.0]) / 3**0.5
    assert running.difference(ours, other, 2) == f"+2.00 [{2 - reach:.2f}, {2 + reach:.2f}]"
    assert running.difference({1: 3.0}, {1: 4.0}, 1) == "-1.0"
    assert running.difference({1: 3.0}, {2: 4.0}, 1) == "–"


def test_leafs_test_rows_become_their_clients_own_tests(small):
    data = pf.load_dataset("femnist")
    task = with_own_tests(pf.Task.from_dataset(data, model="logistic"), data)
    for client in range(len(task.clients)):
        rows = task.local_tests[client]
        assert torch.equal(task.inputs[rows], data.test_inputs[data.test_clients == client])
        assert torch.equal(task.targets[rows], data.test_targets[data.test_clients == client])
    assert not set(task.clients.rows.tolist()) & set(task.local_tests.rows.tolist())


def test_a_part_of_the_data_keeps_the_first_clients_and_their_own_rows(small):
    data = whole(pf.load_dataset("celeba"))
    assert len(data.targets) == 6 * 13
    part = shrunk(data, 3, 20)
    assert part.num_clients == 3
    assert len(part.targets) == 20
    every = {(one.numpy().tobytes(), int(owner)) for one, owner in zip(data.inputs, data.clients, strict=True)}
    assert all(
        (one.numpy().tobytes(), int(owner)) in every for one, owner in zip(part.inputs, part.clients, strict=True)
    )


def test_words_are_cut_into_the_longest_known_pieces():
    known = {piece: number for number, piece in enumerate(("[UNK]", "un", "##hap", "##happy", "e", ","))}
    assert wordpieces.pieces("Unhappy, É_x", known) == [1, 3, 5, 4, 0, 0]


def test_question_pairs_are_marked_as_bert_expects(small):
    row = wordpieces.question_pairs().inputs[0]
    assert row[:5].tolist() == [2, 4, 5, 7, 1]
    assert (row == 3).sum() == 2
    assert row[-1] == 0


def test_hearts_have_fifteen_inputs_scaled_by_hospital(small):
    data = aaggff.hearts()
    assert data.inputs.shape == (80, 15)
    for hospital in range(4):
        own = data.inputs[data.clients == hospital]
        assert np.allclose(own.mean(0), 0, atol=1e-5)


def test_the_tables_are_the_papers():
    columns = {column.name: column for found in TABLES.values() for column in found.columns}
    assert len(columns) == sum(len(found.columns) for found in TABLES.values()) == 63
    superfed = columns["Table 2.3, CIFAR-10, 500 clients"]
    assert (superfed.clients, superfed.rounds, superfed.training.epochs, superfed.seeds) == (500, 500, 10, (5959,))
    assert superfed.methods["SuPerFed-LM"].algorithm == pf.SuPerFed(mode="lm", start_fraction=0.4, nu=2.0)
    assert len(superfed.methods) == 11
    rebafl = columns["Table I, CIFAR-10, 50 clients"]
    assert (rebafl.rounds, rebafl.training.learning_rate, rebafl.given) == (
        200,
        0.02,
        {"availability": pf.Bernoulli(0.5)},
    )
    named = {"FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "MOON", "FedRS", "FedLC", "FedBABU", "BSM-FedAvg", "ReBaFL"}
    assert named | {"R-BSM only", "F-Aug only"} == {*rebafl.methods}
    assert {rebafl.methods[name].algorithm.weights() for name in named - {"SCAFFOLD", "FedDyn"}} == {"size"}
    reddit = columns["Table 3.7, Reddit"]
    assert (reddit.rounds, reddit.training.learning_rate, reddit.training.decay_every, reddit.seeds) == (
        300,
        7.5,
        20,
        (2, 4, 6),
    )
    assert list(columns["Table 1, MIT-BIH"].methods)[-1] == "GRP-FED"
    for column in columns.values():
        assert column.ours in column.methods


@pytest.mark.parametrize("paper", PAPERS)
def test_the_papers_script_shows_its_plan(paper, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [paper, "--full", "--plan"])
    with pytest.raises(SystemExit) as left:
        import_module(paper).main()
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert all(f"\n{column.name}: {len(column.methods)} methods" in told for column in TABLES[paper].columns)
