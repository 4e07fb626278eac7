"""The study of Figs. 7 and 8: its diversity is that of the local models, and its small form runs once."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import privfl as pf
from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "rebafl_figures.py"


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec = importlib.util.spec_from_file_location("rebafl_figures", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
        del sys.modules[spec.name]


@pytest.mark.parametrize("variant", ["FedAvg", "ReBaFL, μ = 0.1"])
def test_the_metric_is_the_mean_squared_distance_of_local_models_from_their_mean(study, variant, monkeypatch):
    algorithm, models = study.VARIANTS[variant], []
    finish = type(algorithm).finish

    def seen(self, local, received, training):
        models.append(local["parameters"].detach().clone().double())
        return finish(self, local, received, training)

    monkeypatch.setattr(type(algorithm), "finish", seen)
    partition = pf.Pathological(6, classes_per_client=2, samples_per_client=60)
    run = pf.simulate(
        pf.load("digits", partition=partition, model="two-nn", seed=0),
        algorithm,
        rounds=1,
        training=study.TRAINING,
        execution=pf.Execution(engine="loop", workers=1),
    )
    apart = torch.stack(models) - torch.stack(models).mean(0)
    expected = apart.square().sum(1).mean()
    assert run.metrics[-1]["weight_diversity"] == pytest.approx(float(expected), rel=1e-4)


def test_every_point_of_figure_8_and_every_line_of_figure_7_is_a_variant(study):
    made = {name: (one.epsilon, one.mu) for name, one in study.VARIANTS.items() if name != "FedAvg"}
    assert made == {
        **{f"R-BSM only, epsilon = {epsilon:g}": (epsilon, 0) for epsilon in (1e-4, 1e-3, 1e-2, 1e-1, 2e-1)},
        **{f"ReBaFL, μ = {mu:g}": (0.01, mu) for mu in (0.1, 0.5, 1.0, 5.0)},
        "F-Aug only": (1.0, 0.1),
    }


@pytest.mark.slow
def test_the_small_form_runs_once(tmp_path):
    first = python(SCRIPT, "--out", tmp_path, "--small").stdout
    assert "R-BSM only, epsilon = 0.2" in first
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 11
    assert all(len(row["diversity"]) == len(row["accuracy"]) == 4 and min(row["diversity"]) > 0 for row in rows)
    again = python(SCRIPT, "--out", tmp_path, "--small").stdout
    assert again.strip() == first[first.index("last rounds") :].strip()
