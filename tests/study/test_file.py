"""A study: every run that its axes span is had once, whatever is killed, shared, broken or impossible on the way."""

import gc
import json
import math
import subprocess
import sys
import tomllib
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.study.file import Study
from privfl.study.locks import in_use, lock_of
from privfl.study.record import TRAFFIC
from privfl.study.store import Store
from tests.programs import python

ROOT = Path(__file__).parents[2]
BASE = {
    "rounds": 2,
    "workers": 1,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "weighting": "uniform"},
    "training": {"learning_rate": 0.5, "batch_size": 36, "steps": 1},
}
TEXT = """
rounds = 2
workers = 1
[partition]
name = "iid"
clients = 4
[model]
name = "logistic"
[algorithm]
name = "fedavg"
weighting = "uniform"
[training]
learning_rate = 0.5
steps = 1
[study]
seeds = 2
epsilon = [inf, 8]
"""


def test_a_file_and_an_object_are_the_same_study(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    file = Study.from_toml(path, ["rounds=5"])
    base = {name: value for name, value in tomllib.loads(TEXT).items() if name != "study"}
    assert file == pf.Study({**base, "rounds": 5}, title="small", seeds=2, epsilon=(math.inf, 8.0))
    assert [point.level for point in file.points()] == ["no privacy"] * 2 + ["ε = 8"] * 2


def test_a_study_is_run_once_and_its_runs_are_shared(tmp_path, monkeypatch):
    started = []
    original = Experiment.run
    monkeypatch.setattr(
        Experiment, "run", lambda self, out, **rest: (started.append(Path(out).name), original(self, out, **rest))[1]
    )
    study = pf.Study(BASE, title="one", seeds=2)
    found = study.run(tmp_path, processes=1)
    assert [one.state for one in found.members] == ["done", "done"]
    study.run(tmp_path, processes=1)
    assert len(started) == 2
    wider = pf.Study(BASE, title="two", seeds=(1, 2), grid={"training": {"learning_rate": (0.5,)}})
    assert [one.state for one in wider.run(tmp_path, processes=1).members] == ["done", "done"]
    assert len(started) == 3  # seed 1 was there
    (tmp_path / "results.sqlite").unlink()
    again = study.run(tmp_path, processes=1)
    assert len(started) == 3  # the index is filled from the run directories
    assert [one.metrics for one in again.members] == [one.metrics for one in found.members]


def test_every_figure_of_a_run_is_in_the_store(tmp_path):
    base = {**BASE, "local_tests": {}, "privacy": {"training": {"sample_rate": 0.1}}}
    (one,) = pf.Study(base, epsilon=(8.0,)).run(tmp_path, processes=1).members
    folder = tmp_path / "runs" / one.run
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {name: one.metrics[name] for name in last if name.startswith(("test_", "local_"))} == {
        name: value for name, value in last.items() if name.startswith(("test_", "local_"))
    }
    assert one.metrics["epsilon sample/public"] == last["epsilon"]["sample/public"] <= 8
    assert one.metrics["epsilon client/public"] == math.inf
    size = 64 * 10 + 10
    assert json.loads((folder / TRAFFIC).read_text())["sent"] == 4 * size
    assert one.metrics["bytes_sent"] == 2 * 4 * 4 * size  # rounds, clients, bytes of a number
    assert one.metrics["seconds"] > 0


def test_all_that_is_impossible_is_named_before_anything_is_trained(tmp_path):
    study = pf.Study(
        {**BASE, "algorithm": {"name": "fedavg"}, "privacy": {"training": {"sample_rate": 0.1}}},
        seeds=2,
        epsilon=(math.inf, 8.0),
        grid={"model": {"name": ["logistic", "logistick"]}},
    )
    with pytest.raises(ConfigError) as caught:
        study.run(tmp_path, processes=1)
    told = str(caught.value)
    assert told.startswith("6 of 8 runs are impossible; mend them, or go on without them by --skip-impossible:")
    assert "logistick, no privacy (2 seeds)" in told
    assert "did you mean 'logistic'" in told
    assert (
        "logistic, ε = 8 (2 seeds): target_epsilon cannot be reached: sizes are sent exactly; set privacy.size" in told
    )
    assert not (tmp_path / "runs").exists()
    found = study.run(tmp_path, processes=1, skip_impossible=True)
    assert [one.state for one in found.members].count("done") == 2
    assert [one.state for one in found.members].count("impossible") == 6


def test_a_typo_in_an_axis_is_one_sentence(tmp_path):
    study = pf.Study(BASE, grid={"training": {"learning_rat": (0.1, 0.5)}})
    with pytest.raises(
        ConfigError, match=r"^every run .*'training\.learning_rat': did you mean 'training\.learning_rate"
    ):
        study.run(tmp_path)
    with pytest.raises(ConfigError, match=r"'study\.epsilo': did you mean 'study\.epsilon'"):
        Study.from_dict({**BASE, "study": {"epsilo": [1]}})
    with pytest.raises(ConfigError, match=r"the file has no \[study\]"):
        Study.from_dict(BASE)
    with pytest.raises(ConfigError, match=r"importing the module no_such_module fails"):
        pf.Study({**BASE, "algorithm": {"name": "no_such_module:Mine"}}).run(tmp_path)


def test_a_run_that_fails_stops_no_other_and_is_recorded_with_its_reason(tmp_path):
    budget = {"training": {"noise_multiplier": 1.0, "sample_rate": 0.1}, "budget": {"epsilon": 0.001}}
    study = pf.Study(BASE, variants=(pf.Variant("cut", {"privacy": budget}), pf.Variant("whole")))
    found = study.run(tmp_path, processes=1)
    assert [one.state for one in found.members] == ["failed", "done"]
    assert "does not allow a single round" in found.members[0].reason
    assert "cut" in (tmp_path / "study" / "study.log").read_text(encoding="utf-8")


def test_data_of_ones_own_that_change_are_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    base = {**BASE, "arrays": "data.npz"}
    runs = []
    for shift in (0, 1):
        np.savez("data.npz", inputs=x + shift, targets=(x[:, 0] > 0).astype(int))
        runs.append(pf.Study(base).run("out", processes=1).members[0].run)
    assert runs[0] != runs[1]
    again = Experiment.of_run(Path("out", "runs", runs[1]))
    assert again.task().content() == Experiment.from_dict(base).task().content()
    with pytest.raises(ConfigError, match=r"data\.npz is not what this run began with: inputs is"):
        Experiment.of_run(Path("out", "runs", runs[0])).task()


def _hold(folder, ready, done):
    with lock_of(folder):
        ready.set()
        done.wait(30)


def test_a_run_that_another_study_is_at_is_waited_for_and_not_repeated(tmp_path):
    from privfl.study.execution import Job, perform

    experiment = Experiment.from_dict({**BASE, "seed": 0})
    (tmp_path / "runs").mkdir()
    context = get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "runs" / "a", ready, done))
    other.start()
    try:
        assert ready.wait(30)
        assert in_use(tmp_path / "runs" / "a")
        assert perform(Job(tmp_path, "a", experiment), wait=False) == "busy"
    finally:
        done.set()
        other.join()
    assert not in_use(tmp_path / "runs" / "a")
    assert perform(Job(tmp_path, "a", experiment), wait=True) == "done"


KILLER = """
import os, signal, sys, time
from pathlib import Path
import privfl.study.display, privfl.study.execution, privfl.study.members
from privfl.study.file import Study
from privfl.study.store import Store

study, out = Study.from_toml(sys.argv[1]), Path(sys.argv[2])
for enough in (0, 1, 3):
    child = os.fork()
    if child == 0:
        study.run(out, processes=1)
        os._exit(0)
    while True:
        states = [one.state for one in Store(out).members("small")]
        if states.count("done") >= enough and "running" in states:
            break
        time.sleep(0.005)
    time.sleep(0.02 * enough)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
study.run(out, processes=1)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal that Windows does not have")
def test_a_study_that_was_killed_three_times_equals_one_that_was_not(tmp_path):
    path = tmp_path / "small.toml"
    noise = "[privacy]\nnoise_key = 5\n[privacy.training]\nnoise_multiplier = 2.0\n[study]\nseeds = 5\n"
    path.write_text(TEXT.partition("[study]")[0] + noise, encoding="utf-8")
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    done = python(tmp_path / "killer.py", path, "killed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = Study.from_toml(path).run(tmp_path / "whole", processes=1)
    killed = [one for one in Store(tmp_path / "killed").members("small")]
    for one, other in zip(whole.members, killed, strict=True):
        assert {**other.metrics, "seconds": 0} == {**one.metrics, "seconds": 0}
        assert (other.state, other.run) == ("done", one.run)
        for name in ("metrics.jsonl", "statement.json"):
            same = [(tmp_path / folder / "runs" / one.run / name).read_text() for folder in ("whole", "killed")]
            assert same[0] == same[1]


def test_a_table_of_a_study_that_was_never_started_says_so(tmp_path):
    with pytest.raises(DataError, match="start with `privfl study run`"):
        Store(tmp_path / "none", create=False)


def test_no_command_on_a_finished_study_waits_for_torch():
    code = "import sys, privfl.commands.study, privfl.study.results, privfl.study.tables; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_seeds_that_no_store_can_hold_are_refused():
    with pytest.raises(ConfigError, match=r"study\.seeds holds .*; give integers below 2\^63"):
        pf.Study(BASE, seeds=(1, 10**30))


def test_what_is_done_does_not_pile_up_in_memory(tmp_path):
    """Runs refer to themselves, and Python looks for such seldom where memory is taken by a few large tensors."""
    path = tmp_path / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    Study.from_toml(path).run(tmp_path / "first", processes=1)  # what stays for good is there after that
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is torch.Tensor for one in gc.get_objects())
        Study.from_toml(path).run(tmp_path / "second", processes=1)
        left = sum(type(one) is torch.Tensor for one in gc.get_objects()) - before
    finally:
        gc.enable()
    assert left < 50
