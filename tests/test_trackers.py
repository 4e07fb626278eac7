"""Trackers get the figures of metrics.jsonl, round by round, and nothing else; tested with the real libraries."""

import contextlib
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


class Fails:
    """A store's method that raises ``error`` for the first ``times`` calls and is the real one from then on."""

    def __init__(self, real, error, times=10**6):
        self.real, self.error, self.times, self.calls = real, error, times, 0

    def __call__(self, *given, **named):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.real(*given, **named)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def told(caplog):
    return [one.getMessage() for one in caplog.records if "MLflow" in one.getMessage()]


def steps(tracker, run_id, name="test_accuracy"):
    return [one.step for one in tracker.client.get_metric_history(run_id, name)]


def runs_of(tracker, experiment="privfl"):
    return tracker.client.search_runs([tracker.client.get_experiment_by_name(experiment).experiment_id])


@needs_mlflow
@pytest.mark.parametrize("error", [OSError("no room"), Exception("no room"), ValueError("no  room")])
def test_a_server_that_refuses_whatever_it_raises_is_warned_of_once_and_ends_no_run(
    tmp_path, store, monkeypatch, caplog, error
):
    tracker = pf.MLflow(uri=store)
    refuses = Fails(tracker.client.log_batch, error)
    monkeypatch.setattr(tracker.client, "log_batch", refuses)
    with caplog.at_level(logging.WARNING, "privfl"):
        assert run(tracker, tmp_path / "run", rounds=3)["test_accuracy"]
    assert told(caplog) == [
        "MLflow did not take round 1 (no room); it is tried again later, with the rounds until then, and "
        "metrics.jsonl has it",
        "MLflow was not told that the run has ended and lacks 3 of its rounds (no room); metrics.jsonl is complete",
    ]
    assert refuses.calls == 2  # the first round and the end, none in between


@needs_mlflow
def test_a_server_that_is_back_gets_the_rounds_that_it_missed_each_once(tmp_path, store, monkeypatch, caplog):
    tracker = pf.MLflow(uri=store)
    real = tracker.client.log_batch

    def lose_the_answer(run_id, metrics):
        real(run_id, metrics)
        raise OSError("no answer")

    monkeypatch.setattr(tracker.client, "log_batch", Fails(real, OSError("gone"), times=1))
    with caplog.at_level(logging.WARNING, "privfl"):
        recorded = run(tracker, tmp_path / "run", rounds=3)
    assert len(told(caplog)) == 1
    (found,) = runs_of(tracker)
    assert found.info.status == "FINISHED"
    assert all(steps(tracker, found.info.run_id, name) == [0, 1, 2] for name in recorded)

    lost = pf.MLflow("lost", uri=store)
    monkeypatch.setattr(lost.client, "log_batch", lose_the_answer)
    run(lost, tmp_path / "lost")
    (found,) = runs_of(lost, "lost")
    assert steps(lost, found.info.run_id) == [0, 1]


@needs_mlflow
def test_a_server_that_is_gone_is_tried_again_after_pauses_that_grow(store, monkeypatch):
    from types import SimpleNamespace

    now, tried = [1000.0], []
    monkeypatch.setattr("privfl.trackers.time.monotonic", lambda: now[0])
    tracker = pf.MLflow(uri=store)

    def refuse(*_):
        tried.append(now[0] - 1000)
        raise OSError("gone")

    monkeypatch.setattr(tracker.client, "log_batch", refuse)
    of = SimpleNamespace(schedule=object(), path=None)
    for number in range(600):
        tracker(of, {"round": number, "test_accuracy": 0.5})
        now[0] += 30
    assert tried == [0, 60, 180, 420, 900, 1860, 3780, 5700, 7620, 9540, 11460, 13380, 15300, 17220]


@needs_mlflow
def test_a_server_that_dies_costs_a_request_without_a_wait_and_the_environment_is_left_alone(
    tmp_path, monkeypatch, caplog
):
    import http.server
    import os
    import threading
    import time

    class Server(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            run = {"info": {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
            body = json.dumps({"experiment": {"experiment_id": "1", "name": "privfl"}, "run": run}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    tracker = pf.MLflow(uri=f"http://127.0.0.1:{server.server_port}")
    before, began = dict(os.environ), time.monotonic()

    def die(simulation, line):
        if simulation.round == 1:
            server.shutdown()
            server.server_close()

    task = pf.load("digits", partition=pf.IID(4), model="logistic")
    with caplog.at_level(logging.WARNING, "privfl"), tracker:
        pf.simulate(task, pf.FedAvg(), rounds=4, training=pf.LocalTraining(steps=1), callbacks=[tracker, die])
    assert time.monotonic() - began < 30
    assert dict(os.environ) == before
    first, last = told(caplog)
    assert first.startswith("MLflow did not take round 2 (")
    assert "lacks 3 of its rounds" in last
    assert "metrics.jsonl" not in first + last


@needs_mlflow
def test_what_the_user_set_for_mlflow_holds_in_its_calls(store, monkeypatch):
    import os
    from types import SimpleNamespace

    seen = []
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    tracker = pf.MLflow(uri=store)
    names = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.setattr(tracker.client, "log_batch", lambda *_: seen.append([os.environ.get(name) for name in names]))
    tracker(SimpleNamespace(schedule=object(), path=None), {"round": 0, "test_accuracy": 0.5})
    assert seen == [["77", "1"]]
    assert [os.environ.get(name) for name in names] == ["77", None]


@needs_mlflow
@pytest.mark.parametrize("kept", [True, False])
def test_a_server_that_is_not_told_of_the_end_loses_no_run_and_hides_no_error(
    tmp_path, store, monkeypatch, caplog, kept
):
    def refuse(*_):
        raise Exception("the server is gone")

    task = pf.load("digits", partition=pf.IID(4), model="logistic")
    for error in (None, ZeroDivisionError):
        tracker = pf.MLflow(uri=store)
        monkeypatch.setattr(tracker.client, "set_terminated", refuse)
        caplog.clear()
        out = tmp_path / str(error) if kept else None
        with caplog.at_level(logging.WARNING, "privfl"), contextlib.suppress(ZeroDivisionError), tracker:
            done = pf.simulate(task, pf.FedAvg(), rounds=1, out=out, callbacks=[tracker])
            if error:
                raise error
        assert done.summary["test_accuracy"]
        assert told(caplog) == [
            "MLflow was not told that the run has ended (the server is gone)" + "; metrics.jsonl is complete" * kept
        ]
        tracker.close()  # there is nothing left to close
        assert len(told(caplog)) == 1


@needs_mlflow
@pytest.mark.parametrize("kept", [True, False])
def test_two_runs_that_one_tracker_follows_are_two_runs_of_mlflow(tmp_path, store, kept):
    task = pf.load("digits", partition=pf.IID(4), model="logistic")
    with pf.MLflow(uri=store) as tracker:
        for number in (2, 3):
            out = tmp_path / str(number) if kept else None
            pf.simulate(task, pf.FedAvg(), rounds=number, out=out, callbacks=[tracker])
    found = runs_of(tracker)
    assert [one.info.status for one in found] == ["FINISHED"] * 2
    assert sorted(steps(tracker, one.info.run_id) for one in found) == [[0, 1], [0, 1, 2]]
    if kept:
        told = {json.loads((tmp_path / str(number) / RUN).read_text())["run"] for number in (2, 3)}
        assert told == {one.info.run_id for one in found}


@needs_mlflow
@pytest.mark.parametrize("anew", [True, False])
def test_a_resumed_run_tells_mlflow_no_round_twice(tmp_path, store, anew):
    class Stop(Exception):
        pass

    def stop(simulation, line):
        if simulation.round == 2:
            raise Stop

    task, training = pf.load("digits", partition=pf.IID(4), model="logistic"), pf.LocalTraining(steps=1)
    tracker = pf.MLflow(uri=store)
    with pytest.raises(Stop), tracker:
        pf.simulate(task, pf.FedAvg(), rounds=3, training=training, out=tmp_path / "run", callbacks=[tracker, stop])
    with pf.MLflow(uri=store) if anew else tracker as second:
        pf.simulate(
            task, pf.FedAvg(), rounds=3, training=training, out=tmp_path / "run", callbacks=[second], resume=True
        )
    (found,) = runs_of(tracker)
    assert found.info.status == "FINISHED"
    assert steps(tracker, found.info.run_id) == [0, 1, 2]


@needs_mlflow
@pytest.mark.skipif(bool(importlib.util.find_spec("alembic")), reason="the whole of MLflow is there")
def test_a_database_that_the_small_mlflow_cannot_open_asks_for_the_whole(tmp_path):
    with pytest.raises(ConfigError, match=r"; a database needs the whole of MLflow: pip install mlflow$"):
        pf.MLflow(uri=f"sqlite:///{tmp_path}/mlflow.db")


@needs_tensorboard
def test_two_runs_that_one_board_follows_have_a_folder_each(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task, training = pf.load("digits", partition=pf.IID(4), model="logistic"), pf.LocalTraining(steps=1)
    with pf.TensorBoard(tmp_path / "board") as tracker:
        for number in (2, 3):
            pf.simulate(task, pf.FedAvg(), rounds=number, training=training, callbacks=[tracker])
    for folder, rounds in ((tmp_path / "board", [0, 1]), (tmp_path / "board" / "2", [0, 1, 2])):
        board = EventAccumulator(str(folder))
        board.Reload()
        assert [event.step for event in board.Scalars("test_accuracy")] == rounds


@needs_mlflow
def test_an_address_that_nothing_answers_at_is_refused_before_the_run():
    with pytest.raises(ConfigError, match=r"MLflow at nowhere://x cannot be used .*; mend uri"):
        pf.MLflow(uri="nowhere://x")


@pytest.mark.parametrize(("library", "tracker"), [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
def test_a_library_that_is_not_installed_is_named_with_the_mend(monkeypatch, tmp_path, library, tracker):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{tracker} is not installed; install it, pip install 'privfl\[trackers\]'"):
        getattr(pf, tracker)(tmp_path)
