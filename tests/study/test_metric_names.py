"""A metric that no run will have is named before anything is trained."""

import json

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


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("test_acuracy", "unknown metric 'test_acuracy': did you mean 'test_accuracy'?"),
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
