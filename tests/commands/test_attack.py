"""Attacks from the command line: a file names a recorded run, the results lie beside it and stand in its report."""

import json
from pathlib import Path

import pytest
import torch

import attacks.attack
from attacks.images.pixels import Pixels
from attacks.judge import Judge
from attacks.registry import ATTACKS
from privfl.commands.attack import read_attacks
from privfl.errors import ConfigError
from privfl.study.provenance import not_tried
from tests.commands.command_line import privfl

EXPERIMENT = """
rounds = 2
record = true
[partition]
name = "dirichlet"
clients = 6
alpha = 0.5
[model]
name = "logistic"
[training]
learning_rate = 0.1
batch_size = 1000
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "experiment.toml").write_text(EXPERIMENT)
    code, _, err = privfl("run", folder / "experiment.toml", "--out", folder / "run")
    assert code == 0, err
    return folder / "run"


def attacked(run, text):
    path = run.parent / "attack.toml"
    path.write_text(f'run = "{run.as_posix()}"\n{text}', encoding="utf-8")
    return privfl("attack", path)


def test_results_are_printed_written_and_reported(run):
    listed = """
candidates = 100
[[attack]]
name = "label-counts"
method = "bias"
[[attack]]
name = "loss-threshold"
[[attack]]
name = "label-counts"
[[attack]]
name = "property"
simulated = 4
size = 10
"""
    code, out, err = attacked(run, listed)
    assert code == 0, err
    assert "null: public labels" in out
    assert "advantage" in out
    names = {"label-counts", "loss-threshold", "label-counts-2", "property"}
    assert {path.stem for path in (run / "attacks").glob("*.json")} == names
    assert {path.stem for path in (run / "attacks").glob("*.png")} == names
    told = json.loads((run / "attacks" / "label-counts.json").read_text())
    assert told["settings"]["method"] == "bias"
    assert told["metrics"]["multiset_accuracy"]["value"] > 0.95
    assert json.loads((run / "attacks" / "loss-threshold.json").read_text())["members"] <= 50
    code, _, err = privfl("report", run)
    assert code == 0, err
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h3>Attacks</h3>" in page
    assert "More than guessing was gained by label-counts" in page
    assert page.count("data:image/png") == 4


def test_the_judge_knows_what_the_clients_hold(run):
    judge = Judge.of(run, 0, 0.5, 100)
    answers = {
        name: judge.auxiliary(ATTACKS[name](), ATTACKS[name].needs).truth
        for name in ("label-counts", "size-from-updates", "property", "loss-threshold")
    }
    counts = answers["label-counts"]["counts"]
    assert counts.shape == (6, 10)
    assert counts.sum(1).tolist() == answers["size-from-updates"]["sizes"].tolist()
    assert answers["property"]["property"].dtype == torch.bool
    members = answers["loss-threshold"]["members"]
    assert int(members.sum()) * 2 == len(members) <= 100
    asked = judge.auxiliary(ATTACKS["loss-threshold"](), ATTACKS["loss-threshold"].needs)
    rows = {tuple(row) for row in judge.task.inputs.flatten(1).tolist()}
    inside = [tuple(row) in rows for row in asked.candidates.inputs.flatten(1).tolist()]
    assert inside == members.tolist()
    assert not any(tuple(row) in rows for row in asked.public.inputs.flatten(1).tolist())


def test_what_an_attack_is_handed_holds_no_answers(run, monkeypatch):
    given = []
    original = ATTACKS["loss-threshold"].guess
    monkeypatch.setattr(
        ATTACKS["loss-threshold"],
        "guess",
        lambda self, seen, auxiliary: given.append(auxiliary) or original(self, seen, auxiliary),
    )
    assert attacked(run, '[[attack]]\nname = "loss-threshold"')[0] == 0
    assert [dict(auxiliary.truth) for auxiliary in given] == [{}]


def test_every_attack_is_listed_with_what_it_needs():
    code, out, _ = privfl("list", "attacks", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == list(ATTACKS)
    for row in rows:
        assert row["summary"].endswith((".", "?"))
        assert row["observer"] in ("server", "public")
        assert row["reads"]
    assert next(row for row in rows if row["name"] == "lira")["settings"]["shadows"]["count"] == 64
    code, out, _ = privfl("list", "attacks")
    assert code == 0
    assert "size-from-responses" in out


def test_every_attack_of_the_package_is_registered():
    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    named = {
        kind for kind in below(attacks.attack.Attack) if "name" in vars(kind) and kind.__module__.startswith("attacks.")
    }
    assert named == set(ATTACKS.values())
    assert all(name == kind.name for name, kind in ATTACKS.items())
    assert all(kind.needs.fields and kind.needs.truth for kind in named)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file has no attack"),
        ("attack = []", "write [[attack]] once"),
        ('[[attack]]\nname = "lirra"', "did you mean 'lira'"),
        ('[[attack]]\nmethod = "bias"', "has no name"),
        ('[[attack]]\nname = "label-counts"\nmethods = "bias"', "did you mean 'label-counts.method'"),
        ('[[attack]]\nname = "label-counts"\nmethod = "signs"', "'regression' or 'bias'"),
        ('[[attack]]\nname = "label-counts"\nrounds = 0', "rounds is 0"),
        ('public_share = 1.0\n[[attack]]\nname = "llg"', "public_share is 1.0"),
        ('candidates = 1\n[[attack]]\nname = "llg"', "candidates is 1"),
        ('sed = 1\n[[attack]]\nname = "llg"', "did you mean 'seed'"),
        ('seed = "a"\n[[attack]]\nname = "llg"', "seed is 'a'"),
        ('[[attack]]\nname = "gradient-alignment"\nclient = 9', "the clients 0 to 5"),
        ('[[attack]]\nname = "gradient-inversion"\nclient = 0', "looks for batch = 1"),
        ('[[attack]]\nname = "size-from-updates"', "size-from-updates: fedavg divides"),
    ],
)
def test_a_file_that_cannot_work_is_one_sentence(run, text, sentence):
    code, _, err = attacked(run, text)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_why_an_attack_did_not_fit_is_kept_for_the_report(run):
    attacked(run, '[[attack]]\nname = "size-from-updates"')
    reason = json.loads((run / "attacks" / "refused" / "size-from-updates.json").read_text())["reason"]
    assert reason.startswith("fedavg divides")
    assert any(f"size-from-updates: {reason}" in sentence for sentence in not_tried(run))


def test_a_run_that_was_not_recorded_says_so(tmp_path):
    (tmp_path / "attack.toml").write_text(f'run = "{tmp_path.as_posix()}"\n[[attack]]\nname = "llg"', encoding="utf-8")
    code, _, err = privfl("attack", tmp_path / "attack.toml")
    assert code == 2
    assert "record = true" in err
    code, _, err = privfl("attack", tmp_path / "missing.toml")
    assert code == 2
    assert "give the path of an attack file" in err
    (tmp_path / "broken.toml").write_text("run = ", encoding="utf-8")
    code, _, err = privfl("attack", tmp_path / "broken.toml")
    assert code == 2
    assert "is not a TOML file" in err


def test_a_damaged_result_is_named(run):
    path = run / "attacks" / "zzz.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    code, _, err = privfl("report", run)
    path.unlink()
    assert code == 2
    assert "zzz.json is damaged" in err


def test_an_attack_of_ones_own_is_named_by_its_module(run, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "extensions"))
    code, out, err = attacked(run, '[[attack]]\nname = "update_norm:UpdateNorm"\nmean_size = 240.0\n')
    assert code == 0, err
    assert "update-norm" in out
    found = json.loads((run / "attacks" / "update-norm.json").read_text())
    assert found["settings"]["mean_size"] == 240.0
    for path in (run / "attacks").glob("update-norm.*"):
        path.unlink()  # the other tests count what lies there
    assert set(found["nulls"]) == {"estimated mean size", "true mean size"}


def test_a_file_says_how_inputs_come_from_pixels():
    (attack,) = read_attacks([{"name": "imprint", "pixels": {"mean": [0.5], "std": [0.25]}}])
    assert attack.pixels == Pixels((0.5,), (0.25,))
    with pytest.raises(ConfigError, match=r"std is \(0.0,\); give positive numbers"):
        read_attacks([{"name": "imprint", "pixels": {"mean": [0.5], "std": [0.0]}}])
