"""The table of attacks and defences: it runs in small form, resumes, and no attack beats what the statement allows."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from attacks.metrics.distinguishing import advantage_ceiling, auc_ceiling

SCRIPT = Path(__file__).parents[2] / "examples" / "attack_defences.py"


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study():
    return loaded("attack_defences", SCRIPT)


@pytest.fixture(scope="module")
def results(study, tmp_path_factory):
    """The small form, run twice."""
    out = tmp_path_factory.mktemp("defences")
    arguments = ["attack_defences.py", "--small", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        study.main()
        before = (out / "results.json").read_bytes()
        study.main()
    assert (out / "results.json").read_bytes() == before, "a finished study is not repeated"
    return json.loads(before), (out / "table.md").read_text(encoding="utf-8")


def test_every_cell_is_there_with_what_the_statement_claims(study, results):
    cells = results[0]["cells"]
    assert set(cells) == {f"{name}/{defence}" for name, defences in study.APPLY.items() for defence in defences}
    for cell in cells.values():
        target = study.EPSILONS.get(cell["defence"])
        if target is None:
            assert cell["epsilon"]["server"] is None
        else:
            assert 0.9 * target <= cell["epsilon"]["server"] <= target * (1 + 1e-9)


def test_no_membership_attack_exceeds_the_ceiling_of_its_statement(results):
    """The lower end of every 95 % interval lies below what (ε, δ) allows; there are 24 under DP-SGD."""
    checked = 0
    for cell in results[0]["cells"].values():
        for row in cell["attacks"].values():
            if row.get("measure") != "auc" or cell["epsilon"]["server"] is None:
                continue
            for told in row["results"]:
                epsilon = cell["epsilon"]["server"]
                assert told["metrics"]["auc"]["low"] <= auc_ceiling(epsilon, cell["delta"])
                assert told["metrics"]["advantage"]["low"] <= advantage_ceiling(epsilon, cell["delta"])
                checked += 1
            assert row["ceiling"] == pytest.approx(auc_ceiling(epsilon, cell["delta"]))
    assert checked == 24


def test_an_undefended_run_is_attacked_and_a_defended_one_less(results):
    cells = results[0]["cells"]

    def gain(place, name):
        return cells[place]["attacks"][name]["advantage"]

    assert gain("one image/none", "label-counts") > 0.5 > 0.3 > gain("one image/secure sum", "label-counts")
    assert gain("one image/larger batch", "label-counts") > 0.3 > gain("one image/ε = 1", "label-counts")
    assert gain("prototypes/none", "prototype-tracing") > 0.15 > gain("prototypes/ε = 1", "prototype-tracing")
    assert gain("prototypes/none", "disclosed-counts") > 0.1 > gain("prototypes/secure sum", "disclosed-counts")


def test_the_table_has_a_row_for_every_attack(study, results):
    lines = results[1].strip().splitlines()
    assert len(lines) == 2 + 10
    assert all(line.count("|") == len(study.DEFENCES) + 3 for line in lines)


def test_sizes_are_recovered_in_small_form(tmp_path, monkeypatch):
    """The updates rank the clients' sizes, memoised answers and a secure sum do not."""
    script = loaded("attack_sizes", SCRIPT.with_name("attack_sizes.py"))
    monkeypatch.setattr(sys, "argv", ["attack_sizes.py", "--small", "--out", str(tmp_path)])
    script.main()
    stored = json.loads((tmp_path / "results.json").read_text())
    last = {row["from"]: row for row in stored["seeds"][0]["rows"] if row["rounds"] == 10}
    assert last["updates"]["auc_twice"] > 0.9
    assert last["updates"]["relative_error"] < last["updates"]["null_relative_error"]
    assert last["secure sum"]["auc_twice"] == 0.5
    assert last["memoised answer"]["exact_match"] < last["fresh answers"]["exact_match"]
    assert (tmp_path / "sizes.png").stat().st_size > 10_000
    assert all(
        math.isfinite(value)
        for row in stored["seeds"][0]["rows"]
        for value in row.values()
        if not isinstance(value, str)
    )


def test_labels_of_small_batches_are_counted_in_small_form(tmp_path, monkeypatch):
    """Eight labels on three untrained networks: identity, LLG+ and regression find every count."""
    script = loaded("attack_labels", SCRIPT.with_name("attack_labels.py"))
    monkeypatch.setattr(sys, "argv", ["attack_labels.py", "--small", "--out", str(tmp_path)])
    script.main()
    found = {row["way"]: row["exact"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]}
    assert found["identity, bias"] == found["LLG+"] == found["regression"] == 1.0
    assert (tmp_path / "table.md").read_text(encoding="utf-8").count("100%") >= 3
