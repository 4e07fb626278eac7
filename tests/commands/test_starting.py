"""A starter file runs as it is, and a part of one's own comes with a test that passes."""

import contextlib
import json
import runpy
import sys

import pytest

from privfl.commands.catalogue import SHIPPED
from tests.commands.command_line import privfl


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_starter_experiment_runs_as_it_is(here):
    code, out, err = privfl("init")
    assert code == 0, err
    assert "privfl run experiment.toml" in out
    text = (here / "experiment.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema ./experiment.schema.json\n")
    assert (here / "experiment.schema.json").read_bytes() == (SHIPPED / "experiment.schema.json").read_bytes()
    code, out, err = privfl("run", "experiment.toml", "--set", "rounds=2", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["directory"] == "runs/experiment"
    assert told["failure"] == ""
    cells = {(cell["unit"], cell["observer"]): cell["bound"]["epsilon"] for cell in told["statement"]["cells"]}
    assert 7.9 < cells["sample", "server"] <= 8.0
    assert cells["client", "server"] == "inf"


def test_what_the_starter_experiment_suggests_in_comments_runs_too(here):
    privfl("init", "--no-schema")
    text = (here / "experiment.toml").read_text(encoding="utf-8")
    assert not text.startswith("#:schema")
    assert not (here / "experiment.schema.json").exists()
    chain = text[text.index("# [[privacy.update]]") :].replace("\n# ", "\n").removeprefix("# ")
    (here / "experiment.toml").write_text(f"{text}\n{chain}", encoding="utf-8")
    code, _, err = privfl("run", "experiment.toml", "--set", "rounds=1", "--set", "privacy.training=")
    assert code == 0, err


def test_the_starter_study_runs_as_it_is(here):
    assert privfl("init", "study.toml", "--study")[0] == 0
    small = ("--set", "rounds=1", "--set", "study.seeds=1", "--processes", "1")
    code, out, err = privfl("study", "run", "study.toml", *small, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert {row["method"] for row in rows} == {"FedAvg", "Ditto"}
    assert {row["method"]: row["judged_by"] for row in rows} == {
        "FedAvg": "local_accuracy",
        "Ditto": "personal_accuracy",
    }, "models for each client are compared on the clients' own tests"


def test_nothing_that_is_there_is_overwritten(here):
    (here / "experiment.toml").write_text("rounds = 3\n", encoding="utf-8")
    code, _, err = privfl("init")
    assert (code, err.count("\n")) == (2, 1)
    assert "experiment.toml is there already" in err
    assert (here / "experiment.toml").read_text(encoding="utf-8") == "rounds = 3\n"
    (here / "test_mine.py").write_text("", encoding="utf-8")
    assert "test_mine.py is there already" in privfl("new", "attack", "mine")[2]
    assert not (here / "mine.py").exists()


@pytest.mark.parametrize("part", ["algorithm", "mechanism", "attack"])
def test_a_new_part_comes_with_a_test_that_passes(here, part):
    code, out, err = privfl("new", part, f"my-own-{part}")
    assert code == 0, err
    assert f'name = "my_own_{part}:MyOwn{part.capitalize()}"' in out
    try:
        namespace = runpy.run_path(str(here / f"test_my_own_{part}.py"))
        tests = [value for name, value in namespace.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()
    finally:
        with contextlib.suppress(KeyError):
            del sys.modules[f"my_own_{part}"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("new", "algorithm", "3x"), "give letters, digits and _ such as my_algorithm"),
        (("new", "algorithm", "class"), "give letters, digits and _"),
        (("new", "mechanism", "random"), "a module is called that already"),
        (("new", "attack", "attacks"), "a module is called that already"),
        (("new", "audit", "mine"), "KIND is 'audit'; choose from algorithm, mechanism, attack"),
        (("init", "experiment.json"), "does not end in .toml"),
    ],
)
def test_an_impossible_name_is_one_sentence(here, arguments, sentence):
    code, _, err = privfl(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert list(here.iterdir()) == []
