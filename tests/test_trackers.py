"""Trackers get the figures of metrics.jsonl, round by round, and nothing else; tested with the real libraries."""

import importlib.util
import json
import logging
import sys

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.trackers import RUN, figures

needs_tensorboard = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="no tensorboard")
needs_mlflow = pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason="no mlflow")


def run(tracker, out, rounds=2, **rest):
    task = pf.load("digits", partition=pf.IID(4), model="logistic")
    with tracker:
        pf.simulate(
            task,
            pf.FedAvg("uniform"),
            rounds=rounds,
            training=pf.LocalTraining(steps=1),
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1)),
            out=out,
            callbacks=[tracker],
            **rest,
        )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {name: [dict(figures(line))[name] for line in lines] for name in dict(figures(lines[-1]))}


@needs_tensorboard
def test_tensorboard_has_every_figure_and_no_other(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorded = run(pf.TensorBoard(tmp_path / "board"), tmp_path / "run")
    assert {"test_accuracy", "epsilon/sample/public"} <= set(recorded)
    run(pf.TensorBoard(tmp_path / "board"), tmp_path / "run", rounds=3, resume=True)
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    tags = board.Tags()
    assert set(tags.pop("scalars")) == set(recorded)
    assert not any(tags.values())
    for name, values in recorded.items():
        events = board.Scalars(name)
        assert [event.step for event in events] == [0, 1, 2]
        assert [event.value for event in events[:2]] == pytest.approx(values, rel=1e-6)


@needs_mlflow
def test_mlflow_has_every_figure_and_no_other_and_goes_on_with_a_resumed_run(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    recorded = run(pf.MLflow("federation", "first", uri), tmp_path / "run")
    first = json.loads((tmp_path / "run" / RUN).read_text())["run"]
    run(pf.MLflow("federation", uri=uri), tmp_path / "run", rounds=3, resume=True)
    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("federation").experiment_id])
    assert found.info.run_id == first
    assert found.info.status == "FINISHED"
    assert set(found.data.metrics) == set(recorded)
    assert not found.data.params
    for name, values in recorded.items():
        history = sorted(client.get_metric_history(first, name), key=lambda one: one.step)
        assert [one.step for one in history] == [0, 1, 2]
        assert [one.value for one in history[:2]] == values


@needs_mlflow
def test_a_server_that_refuses_is_warned_of_and_ends_no_run(tmp_path, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = pf.MLflow(uri=(tmp_path / "mlruns").as_uri())

    def refuse(*_, **__):
        raise MlflowException("no room")

    monkeypatch.setattr(tracker.client, "log_metric", refuse)
    with caplog.at_level(logging.WARNING, "privfl"):
        assert run(tracker, tmp_path / "run")["test_accuracy"]
    assert [one.getMessage() for one in caplog.records if "MLflow" in one.getMessage()] == [
        f"MLflow did not take round {number} (no room); metrics.jsonl has it" for number in (1, 2)
    ]


@needs_mlflow
def test_an_address_that_nothing_answers_at_is_refused_before_the_run():
    with pytest.raises(ConfigError, match=r"MLflow at nowhere://x cannot be used .*; mend uri"):
        pf.MLflow(uri="nowhere://x")


@pytest.mark.parametrize(("library", "tracker"), [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
def test_a_library_that_is_not_installed_is_named_with_the_mend(monkeypatch, tmp_path, library, tracker):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{tracker} is not installed; install it, pip install 'privfl\[trackers\]'"):
        getattr(pf, tracker)(tmp_path)
