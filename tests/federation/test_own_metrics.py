"""A metric of one's own is one function: tried before a run, in every metrics line, and in files."""

import json
import math
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import median_absolute_error

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


def largest_error(outputs, targets):
    return (outputs - targets).abs().max()


def shares(outputs, targets, *, near=0.5):
    errors = (outputs - targets).abs().numpy()
    return {"near": (errors < near).mean(), "far": float((errors > 2 * near).mean())}


def typical_error(outputs, targets):
    return median_absolute_error(targets, outputs)


def certainty(outputs, targets):
    return outputs.softmax(1).amax(1).mean()


def task(*metrics):
    return pf.Task.from_arrays(X, X[:, 0], kind="regression", partition=pf.IID(clients=3), metrics=metrics)


def test_numbers_and_dictionaries_of_numbers_are_in_every_line_and_in_the_summary():
    own = task(largest_error, partial(shares, near=1.0), typical_error)
    run = pf.simulate(own, pf.FedAvg(), rounds=2)
    names = {"test_largest_error", "test_near", "test_far", "test_typical_error", "test_rmse"}
    assert all(names <= set(line) for line in run.metrics)
    assert names <= set(run.summary)
    network = own.model(0).eval()
    pf_parameters = run.parameters.split([parameter.numel() for parameter in network.parameters()])
    for parameter, value in zip(network.parameters(), pf_parameters, strict=True):
        parameter.data.copy_(value.view_as(parameter))
    errors = (network(own.test_inputs) - own.test_targets).abs().detach()
    assert run.summary["test_largest_error"] == pytest.approx(float(errors.max()), rel=1e-5)
    assert run.summary["test_near"] == pytest.approx(float((errors < 1).double().mean()))
    assert run.summary["test_typical_error"] == pytest.approx(float(errors.quantile(0.5)), rel=1e-5)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ((lambda outputs: 1.0,), "the metric <lambda> fails on 64 random rows with TypeError: .*; write it as metric"),
        ((lambda outputs, targets: "high",), "fails .* gave 'high'; write it as metric.outputs, targets"),
        ((lambda outputs, targets: {1: 2.0},), "write it as metric"),
        ((lambda outputs, targets: outputs,), "write it as metric"),
        ((lambda outputs, targets: {"rmse": 1.0},), "gives 'test_rmse', as the task's own metrics do; choose another"),
        ((largest_error, largest_error), "gives 'test_largest_error', as the metric largest_error do"),
        ((3,), "metrics holds 3; give a function"),
    ],
)
def test_what_is_no_metric_is_refused_before_any_work(metrics, sentence):
    with pytest.raises(ConfigError, match=sentence):
        task(*metrics)


def test_a_metric_that_fails_later_has_no_value_and_the_run_goes_on():
    calls = []

    def moody(outputs, targets):
        calls.append(len(outputs))
        if len(calls) > 2:
            raise ZeroDivisionError("nothing left")
        return math.nan if len(calls) > 1 else 1.0

    run = pf.simulate(task(moody), pf.FedAvg(), rounds=3)
    assert [line["test_moody"] for line in run.metrics] == [None, None, None]
    assert [one for one in run.summary["warnings"] if "moody" in one] == [
        "the metric moody failed on the held-out rows and has no value where it did; at first with ZeroDivisionError: "
        "nothing left"
    ]
    assert calls == [64, 12, 12, 12]


def test_a_file_names_metrics_and_losses_and_is_read_back_as_it_was_written(tmp_path):
    name = "tests.federation.test_own_metrics"
    settings = {
        "rounds": 1,
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 3},
        "loss": {"name": "cross-entropy"},
        "metrics": [{"name": f"{name}:certainty"}, {"name": f"{name}:counted", "least": 3}],
    }
    experiment = Experiment.from_dict(settings)
    (tmp_path / "file.toml").write_text(experiment.to_toml(), encoding="utf-8")
    again = Experiment.from_toml(tmp_path / "file.toml")
    assert again == experiment
    run = again.run(tmp_path / "run")
    assert Experiment.of_run(tmp_path / "run").recipe.metrics == experiment.recipe.metrics
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert 0.1 < summary["test_certainty"] <= 1
    assert summary["test_counted"] == run.summary["test_counted"] == 3 + len(experiment.task().test_targets)


def counted(outputs, targets, *, least):
    return least + len(targets)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"name": "a:b"}, r"metrics is not a list of tables; write \[\[metrics\]\] once for each"),
        ([{"least": 1}], r"\[metrics\] has no name"),
        ([{"name": "accuracy"}], "metrics.name is 'accuracy'; name it as 'module:Name'"),
        ([{"name": "tests.federation.test_own_metrics:nothing"}], "has no 'nothing'"),
        ([{"name": "tests.federation.test_own_metrics:counted"}], "fails on 64 random rows .* 'least'"),
    ],
)
def test_metrics_that_a_file_cannot_have_are_refused(metrics, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Experiment.from_dict({"partition": {"name": "iid", "clients": 3}, "metrics": metrics}).task()
    with pytest.raises(ConfigError, match=r"\[metrics\] stands beside task, whose function decides it"):
        Experiment.from_dict({"task": "a:b", "metrics": [{"name": "a:b"}]})
