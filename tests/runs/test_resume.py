"""A run that is killed at any instant resumes to the same numbers."""

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests import programs
from tests.runs import resume_child


def ended(out: Path, *, resume: bool) -> int | None:
    """The exit code of a run that nobody kills."""
    process = programs.started(resume_child.main, str(out), resume)
    process.join(300)
    return process.exitcode


def final(out: Path) -> tuple[str, dict[str, np.ndarray], str]:
    with np.load(out / "checkpoints" / "latest.npz") as archive:
        tensors = {name: archive[name] for name in archive.files if name != "meta"}
    return (out / "metrics.jsonl").read_text(), tensors, (out / "statement.json").read_text()


@pytest.mark.slow
def test_killed_at_three_random_moments_a_run_ends_with_the_same_metrics_weights_and_statement(tmp_path):
    assert ended(tmp_path / "whole", resume=False) == 0
    rounds = len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    metrics = tmp_path / "killed" / "metrics.jsonl"
    moments = random.Random(3)
    killed_after = []
    for target in sorted(moments.sample(range(1, rounds - 2), 3)):
        process = programs.started(resume_child.main, str(tmp_path / "killed"), bool(killed_after))
        while process.exitcode is None and not (metrics.exists() and metrics.read_text().count("\n") >= target):
            time.sleep(0.001)
        time.sleep(moments.random() * 0.01)  # anywhere inside a round, not only at its end
        process.kill()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
        killed_after.append(metrics.read_text().count("\n"))
    assert (tmp_path / "killed" / "noise.key").exists()
    assert ended(tmp_path / "killed", resume=True) == 0

    whole_metrics, whole_tensors, whole_statement = final(tmp_path / "whole")
    metrics_text, tensors, statement = final(tmp_path / "killed")
    assert metrics_text == whole_metrics
    assert tensors.keys() == whole_tensors.keys()
    for name, tensor in whole_tensors.items():
        assert np.array_equal(tensors[name], tensor), name
    assert json.loads(statement) == json.loads(whole_statement)
    assert not (tmp_path / "killed" / "noise.key").exists()
    assert len(set(killed_after)) >= 2


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    resume_child.ROUNDS = 3
    resume_child.main(str(tmp_path / "run"), resume=False)
    before = final(tmp_path / "run")
    resume_child.main(str(tmp_path / "run"), resume=True)
    after = final(tmp_path / "run")
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert all(np.array_equal(after[1][name], before[1][name]) for name in before[1])
