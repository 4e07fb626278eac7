"""``privfl study``: run, status, table, compare, plot and report of one small file, attacks and audits included."""

import json
import re
import shutil
import sqlite3

import pytest

from tests.commands.command_line import privfl

FILE = """
rounds = 2
workers = 1
record = true
[partition]
name = "iid"
clients = 4
[model]
name = "logistic"
[algorithm]
name = "fedavg"
weighting = "uniform"
[training]
learning_rate = 0.5
steps = 1
[privacy.size]
name = "laplace"
epsilon = 1.0
bound = 400
[study]
title = "Small & <b>plain</b>"
seeds = 2
epsilon = [8]
confidence = 0.9999999
[[study.variant]]
name = "FedAvg"
[[study.variant]]
name = "FedProx"
algorithm = {name = "fedprox", weighting = "uniform"}
[[study.attack]]
name = "loss-threshold"
[[study.audit]]
name = "size-response"
answers = 2000
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(FILE, encoding="utf-8")
    code, out, err = privfl("study", "run", folder / "small.toml", "--out", folder / "store", "--processes", "1")
    assert code == 0, err
    assert "4 done" in out
    return folder


def asked(study, *words):
    code, out, err = privfl("study", words[0], study / "small.toml", "--out", study / "store", *words[1:])
    assert code == 0, err
    return out


def test_the_table_says_what_is_claimed_and_json_holds_attacks_and_audits(study):
    assert re.search(r"FedProx +ε = 8 .* [78]\.\d+ +[78]\.\d+ +∞ +∞", asked(study, "table"))
    told = json.loads(asked(study, "table", "--json"))
    assert len(told["rows"]) == 2
    for run in told["runs"]:
        assert -1 <= run["attack loss-threshold advantage"] <= 1
        assert run["audit size-response bound"] <= 1.0  # false alarm of all four runs: 4e-7
        assert run["audit size-response refuted"] == 0
    assert asked(study, "table", "--format", "latex").startswith(r"\begin{tabular}")


def test_status_compare_plot_and_report_work_on_what_is_there(study):
    assert asked(study, "status").strip() == "4 done"
    assert [one["state"] for one in json.loads(asked(study, "status", "--json"))] == ["done"] * 4
    assert "by these seeds" in asked(study, "compare")
    fronts = json.loads(asked(study, "compare", "--json"))["fronts"]
    assert {"bytes_sent", "epsilon sample/server", "attack loss-threshold advantage"} <= fronts.keys()
    assert "pareto-sample-server.svg" in asked(study, "plot")
    assert "Report: " in asked(study, "report")
    page = (study / "store" / "small" / "report.html").read_text(encoding="utf-8")
    assert "Small &amp; &lt;b&gt;plain&lt;/b&gt;" in page
    assert "4 runs, 2 seeds, 0 failed" in page


def test_a_file_that_has_changed_since_is_told(study):
    path = study / "small.toml"
    path.write_text(FILE.replace("seeds = 2", "seeds = 3"), encoding="utf-8")
    try:
        _, _, err = privfl("study", "table", path, "--out", study / "store")
    finally:
        path.write_text(FILE, encoding="utf-8")
    assert "asks for other runs than were last started (2 more, 0 fewer)" in err


def test_an_attack_on_what_is_not_recorded_and_an_unknown_one_are_refused_before_any_run(study, tmp_path):
    for changes, sentence in (
        ({"record = true": ""}, "view, which is not recorded; add record ="),
        ({"loss-threshold": "loss-treshold"}, "did you mean 'loss-threshold'"),
        ({"size-response": "size-respons"}, "did you mean 'size-response'"),
    ):
        text = FILE
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
        code, _, err = privfl("study", "run", tmp_path / "bad.toml", "--out", tmp_path / "store")
        assert code == 2
        assert sentence in err
        assert not (tmp_path / "store" / "runs").exists()


def test_a_store_of_another_version_is_one_sentence(study, tmp_path):
    privfl("study", "run", tmp_path / "none.toml")
    (tmp_path / "store").mkdir()
    with sqlite3.connect(tmp_path / "store" / "results.sqlite") as database:
        database.execute("CREATE TABLE runs (x)")
        database.execute("PRAGMA user_version = 9")
    code, _, err = privfl("study", "run", study / "small.toml", "--out", tmp_path / "store")
    assert code == 2
    assert err.count("\n") == 1
    assert "choose another --out" in err


def test_every_command_that_shows_epsilon_says_not_to_release_runs_under_a_fixed_key(study, tmp_path):
    copy = shutil.copytree(study, tmp_path / "copy")
    with sqlite3.connect(copy / "store" / "results.sqlite") as index:
        index.execute("UPDATE endings SET reproducible = 1")
    for words in (["table"], ["table", "--json"], ["compare"], ["compare", "--json"], ["plot"], ["plot", "--json"]):
        assert "DO NOT RELEASE: the noise of 4 of 4 runs came from a fixed key" in asked(copy, *words)
