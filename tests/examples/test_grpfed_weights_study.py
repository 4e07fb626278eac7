"""The study of GRP-FED's weights: its short way trains the very model that the whole algorithm trains."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import privfl as pf

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "grpfed_weights.py"
TRAINING = pf.LocalTraining(learning_rate=0.05, batch_size=16, epochs=2, momentum=0.9)


@pytest.fixture(scope="module")
def study():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("grpfed_weights", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    for name in (spec.name, "grpfed"):
        sys.modules.pop(name, None)
    sys.path[:] = before


@pytest.mark.parametrize("report", ["last_epoch_mean", "last_batch", "pre_eval", "post_eval"])
def test_without_what_stays_with_a_client_the_shared_model_is_the_same_bit_for_bit(study, report):
    task = study.FEDERATIONS["digits"](Namespace(), 0).task
    settings = {
        "rounds": 2,
        "training": TRAINING,
        "cohort": pf.FixedCohort(3),
        "execution": pf.Execution(engine="loop", workers=1),
    }
    short = study.SharedPath(loss_report=report, lambda_max=0.6)
    whole = pf.simulate(task, pf.GRPFed(loss_report=report, lambda_max=0.6), **settings)
    assert torch.equal(pf.simulate(task, short, **settings).parameters, whole.parameters)
    assert [len(members) for members, _ in short.tape] == [3, 3]
    for _, weights in short.tape:
        assert float(weights.sum()) == pytest.approx(1)
        assert float(weights.max()) <= 0.6 + 1e-12


def test_the_small_study_runs_and_keeps_what_is_finished(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path), "--small"])
    study.main()
    rows = json.loads((tmp_path / "grpfed-weights.json").read_text())["rows"]
    assert [row["setting"] for row in rows] == list(study.SETTINGS)[:4]
    equal = rows[1]
    assert equal["effective_clients"] == 2.0  # two of ten clients take part
    assert equal["size_of_weighted"] == 1.0
    assert all(0 <= row["T_g"] <= 1 and row["mean_loss"] <= row["max_loss"] for row in rows)
    capsys.readouterr()
    study.main()
    assert "processor_seconds" not in capsys.readouterr().out  # nothing ran again
