"""GRP-FED's study: its clients and measures, and that it runs, resumes and draws in its small form."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "grpfed.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("grpfed_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_global_test_is_the_union_of_the_clients_own_tests(study):
    federation = study.digits(Namespace(), 0)
    own = torch.cat([targets for _, targets in federation.own])
    assert torch.equal(own.bincount(), federation.task.test_targets.bincount())
    sizes = federation.task.clients.sizes
    assert sizes[0] == sizes.max() > 2 * sizes.min()
    shares = [len(targets) / (len(targets) + size) for (_, targets), size in zip(federation.own, sizes, strict=True)]
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def test_each_patient_gives_at_most_so_many_beats_of_each_of_twelve_kinds(study, data_folder):
    federation = study.heartbeats(Namespace(beats=100, network="mlp"), 0)
    task = federation.task
    assert (len(task.clients), task.classes) == (47, 12)
    counts = []
    for client, (_, own) in enumerate(federation.own):
        trained = task.targets[task.clients[client]]
        counts.append(torch.bincount(torch.cat([trained, own]), minlength=12))
    assert int(torch.stack(counts).max()) == 100
    # of N L R A a J V F j E / f; counted from the published annotations
    whole = [3899, 400, 585, 866, 134, 83, 2115, 268, 117, 101, 400, 256]
    assert torch.stack(counts).sum(0).tolist() == whole


def test_the_small_study_runs_keeps_what_is_finished_and_draws(study, tmp_path):
    command = [SCRIPT, "--small", "--out", tmp_path / "out"]
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / "out" / "grpfed.json"
    rows = json.loads(store.read_text())["rows"]
    assert [row["method"] for row in rows] == list(study.SMALL)
    for row in rows:
        assert row["T_l"] <= row["T_l_of_means"] + 1e-4
        assert len(row["curve"]) == 10
        assert row["epsilon"] == ("0.0" if row["method"] == "Local" else "inf")
    assert rows[0]["T_r"] == rows[0]["T_g"]  # FedAvg's clients have no models of their own
    assert (tmp_path / "out" / "grpfed-losses.png").stat().st_size > 5000
    assert done.stdout.count("| digits | ") == len(study.SMALL)

    del rows[1]
    store.write_text(json.dumps({"settings": {}, "rows": rows}))
    again = python(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("seed 0") == 1  # the finished runs are read back
    assert [row["method"] for row in json.loads(store.read_text())["rows"]][-1] == "Local"
