"""A metric that no run will have is named before anything is trained."""

import json

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.study.metric_names import figures_of

BASE = {
    "rounds": 1,
    "workers": 1,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "training": {"learning_rate": 0.5, "steps": 1},
    "algorithm": {"name": "fedavg", "weighting": "uniform"},
}
VALUES = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("test_acuracy", "unknown metric 'test_acuracy': did you mean 'test_accuracy'?"),
        ("nonsense", "unknown metric 'nonsense'; choose from bytes_received, "),
        ("personal_accuracy", "unknown metric 'personal_accuracy': did you mean"),
        ("epsilon sample/publik", "unknown metric 'epsilon sample/publik': did you mean 'epsilon sample/public'?"),
    ],
)
def test_a_misspelt_metric_is_found_before_anything_is_trained(tmp_path, metric, told):
    with pytest.raises(ConfigError) as caught:
        pf.Study(BASE, metric=metric).run(tmp_path, processes=1)
    assert str(caught.value).startswith(told)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("settings", [{}, {"local_tests": {}, "algorithm": {"name": "ditto", "weighting": "uniform"}}])
def test_the_figures_are_those_that_a_run_has(tmp_path, settings):
    experiment = Experiment.from_dict({**BASE, **settings})
    experiment.run(tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert figures_of(experiment) == set(line) - {"round", "clients", "epsilon"}


@pytest.mark.parametrize(
    ("kind", "targets", "expected"),
    [("regression", VALUES[:, 0], "rmse"), ("multi-label", (VALUES[:, :2] > 0).astype(int), "micro_f1")],
)
def test_without_a_metric_the_one_of_the_kind_of_task_ranks(tmp_path, kind, targets, expected):
    np.savez(tmp_path / "own.npz", inputs=VALUES, targets=targets)
    base = {**BASE, "arrays": {"file": str(tmp_path / "own.npz"), "kind": kind}}
    results = pf.Study(base, title="own").run(tmp_path, processes=1)
    assert results.metric == expected
    assert results.lower_is_better == (expected == "rmse")
    assert [row.judged_by for row in results.rows()] == [f"test_{expected}"]
    again = pf.Study(base, title="own").run(tmp_path, processes=1)  # nothing is trained a second time
    assert (again.metric, again.rows()[0].mean) == (expected, results.rows()[0].mean)
    with pytest.raises(ConfigError, match="unknown metric 'accuracy'"):
        pf.Study(base, metric="accuracy").run(tmp_path, processes=1)


def test_a_setting_is_tuned_by_the_metric_of_the_kind_of_task(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=VALUES, targets=VALUES[:, 0])
    tuning = pf.study.tuning.Tuning("training.learning_rate", (0.5, 1e-6), seeds=(7,))
    base = {**BASE, "arrays": {"file": str(tmp_path / "own.npz"), "kind": "regression"}, "local_tests": {}}
    results = pf.Study(base, title="own", tuning=tuning).run(tmp_path, processes=1)
    assert results.metric == "rmse"
    assert [row.tuned for row in results.rows()] == ["learning_rate = 0.5"]
