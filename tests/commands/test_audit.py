"""Audits from the command line: a file names an experiment or a run, the results lie with the run."""

import json
import math
from dataclasses import fields

import pytest

from audits.registry import AUDITS, ExperimentAudit, RareTokens
from privfl.experiment import Experiment
from tests.commands.command_line import privfl

EXPERIMENT = """
rounds = 2
engine = "loop"
workers = 1
[partition]
name = "iid"
clients = 10
[model]
name = "logistic"
[training]
learning_rate = 0.1
batch_size = 50
steps = 1
[algorithm]
name = "fedavg"
weighting = "size"
[privacy.training]
noise_multiplier = 1.0
sample_rate = 0.5
[privacy.size]
name = "grr"
epsilon = 4.0
bound = 200
lower = 100
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    return tmp_path


def audited(here, text, source='experiment = "experiment.toml"'):
    (here / "audit.toml").write_text(f"{source}\n{text}", encoding="utf-8")
    return privfl("audit", here / "audit.toml")


def test_results_are_printed_and_written(here):
    code, out, err = audited(
        here,
        """
confidence = 0.999999
[[audit]]
name = "gradient-canaries"
canaries = 40
[[audit]]
name = "rare-tokens"
canaries = 200
[[audit]]
name = "size-response"
answers = 3000
[[audit]]
name = "size-response"
answers = 3000
unit = "sample"
[[audit]]
name = "repeated-size-responses"
clients = 2000
[[audit]]
name = "client-canaries"
canaries = 40
""",
    )
    assert code == 0, out + err
    names = {"gradient-canaries", "rare-tokens", "size-response", "size-response-2", "repeated-size-responses"}
    folder = here / "runs" / "experiment" / "audits"
    assert {path.stem for path in folder.glob("*.json")} == {*names, "client-canaries"}
    told = json.loads((folder / "rare-tokens.json").read_text())
    assert told["refuted"] is False
    assert 0 <= told["bounds"][0]["epsilon"] <= told["claim"]
    assert out.count("claim     ε ≤") == 5
    assert json.loads((folder / "client-canaries.json").read_text())["claim"] == "inf"
    assert "Nothing is claimed" in out


def test_a_run_is_audited_by_its_own_settings_and_a_false_claim_exits_with_1(here, monkeypatch):
    code, _, err = privfl("run", "experiment.toml", "--out", "run")
    assert code == 0, err
    listed = 'confidence = 0.999999\n[[audit]]\nname = "size-response"\nanswers = 5000'
    assert audited(here, listed, 'run = "run"')[0] == 0
    assert (here / "run" / "audits" / "size-response.json").exists()
    from privfl.privacy.sizes.mechanism import ResponseRange

    monkeypatch.setattr(ResponseRange, "clip", lambda self, sizes: sizes)
    code, out, _ = audited(here, listed, 'run = "run"')
    assert code == 1
    assert "refuted with confidence 99.9999 %" in out
    assert json.loads((here / "run" / "audits" / "size-response.json").read_text())["refuted"] is True


def test_every_audit_has_a_sentence_and_settings_with_defaults():
    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    shipped = {kind for kind in below(ExperimentAudit) if kind.__module__.startswith("audits.")}
    assert shipped == set(AUDITS.values())
    for name, kind in AUDITS.items():
        assert name == kind.name
        assert kind.__doc__.split("\n")[0].endswith((".", ","))
        assert kind() == kind(**{item.name: item.default for item in fields(kind)})


def test_tokens_replace_the_data_and_keep_the_claim(here):
    experiment = Experiment.from_toml(here / "experiment.toml")
    honest = experiment.run().statement.cell("sample", "server").epsilon
    result = RareTokens(canaries=100).run(experiment, 0.95, 0)
    assert math.isfinite(honest)
    assert result.claim == pytest.approx(honest, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file has no audit"),
        ('[[audit]]\nname = "rare-token"', "did you mean 'rare-tokens'"),
        ("[[audit]]\ncanaries = 3", "[audit] has no name"),
        ('[[audit]]\nname = "rare-tokens"\ncanary = 3', "did you mean 'rare-tokens.canaries'"),
        ('[[audit]]\nname = "rare-tokens"\ncanaries = "many"', "rare-tokens.canaries is 'many'; give an integer"),
        ('[[audit]]\nname = "size-response"\nunit = "row"', "'sample' or 'client'"),
        ('confidence = 1.0\n[[audit]]\nname = "size-response"', "confidence is 1.0"),
        ('seeds = 1\n[[audit]]\nname = "size-response"', "did you mean 'seed'"),
        ('seed = 1.5\n[[audit]]\nname = "size-response"', "seed is 1.5"),
        ('run = "run"\n[[audit]]\nname = "size-response"', "exactly one of the keys"),
        ('[[audit]]\nname = "gradient-canaries"\ncanaries = 0', "0 canaries audit nothing"),
    ],
)
def test_a_file_that_cannot_work_is_one_sentence(here, text, sentence):
    code, _, err = audited(here, text)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_files_that_are_missing_or_broken_say_so(here):
    code, _, err = privfl("audit", here / "missing.toml")
    assert code == 2
    assert "give the path of an audit file" in err
    code, _, err = audited(here, '[[audit]]\nname = "size-response"', "experiment = ")
    assert code == 2
    assert "is not a TOML file" in err
    bare = EXPERIMENT[: EXPERIMENT.index("[privacy.training]")]
    (here / "experiment.toml").write_text(bare)
    for name, sentence in [("size-response", "no size mechanism"), ("rare-tokens", "no DP-SGD")]:
        code, _, err = audited(here, f'[[audit]]\nname = "{name}"')
        assert code == 2
        assert sentence in err
        (refused,) = here.rglob(f"refused/{name}.json")
        assert sentence in refused.read_text(encoding="utf-8")
