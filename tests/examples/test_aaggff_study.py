"""AAggFF's study: its federations, its scores, and that it runs, resumes and draws in its small form."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "aaggff.py"


@pytest.fixture(scope="module")
def study():
    before = list(sys.path)
    sys.path.insert(0, str(SCRIPT.parent))  # as it is when the script is run: its figures are a file beside it
    spec = importlib.util.spec_from_file_location("aaggff_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    sys.path[:] = before


def test_the_two_scores_of_one_logit_have_its_binary_cross_entropy(study):
    torch.manual_seed(0)
    model, inputs, targets = study.Logistic(7), torch.randn(50, 7), torch.randint(2, (50,))
    expected = F.binary_cross_entropy_with_logits(model.linear(inputs)[:, 0], targets.float())
    torch.testing.assert_close(F.cross_entropy(model(inputs), targets), expected)


def test_a_clients_area_under_the_curve_counts_its_own_pairs_and_clients_of_one_class_have_none(study):
    draws = np.random.default_rng(0)
    logits, targets = torch.from_numpy(draws.normal(size=(60, 2))), torch.from_numpy(draws.integers(2, size=60))
    owners = np.repeat([0, 1, 2], 20)
    targets[40:] = 1
    found, sizes = study.areas(logits, targets, owners)
    assert sizes == [20, 20]
    for client, value in enumerate(found):
        mine = owners == client
        scores, truth = (logits[:, 1] - logits[:, 0]).numpy()[mine], targets.numpy()[mine]
        pairs = scores[truth == 1][:, None] > scores[truth == 0][None]
        assert value == pytest.approx(pairs.mean())


@pytest.mark.parametrize(("name", "clients"), [("heart", 4), ("berka", 7), ("questions", 11)])
def test_the_silos_have_as_many_clients_as_the_paper_says(study, name, clients, data_folder):
    silos = study.FULL[name].data(2)
    assert len(silos.task.clients) == clients
    assert sorted(np.unique(silos.owners)) == list(range(clients))
    assert len(silos.owners) == len(silos.task.test_targets)
    assert silos.task.classes == 2


def test_bags_count_the_words_that_two_questions_share_and_those_that_they_do_not(study, data_folder):
    pairs = pf.load_dataset("medical-questions", seed=2, vocabulary=64)
    row = pairs.inputs[5]
    one, two = (np.bincount(half[half > 1].numpy(), minlength=64) for half in row.chunk(2))
    found = study.bags(pairs).inputs[5].numpy()
    np.testing.assert_array_equal(found[:64], np.minimum(one, two))
    np.testing.assert_array_equal(found[64:], np.abs(one - two))


REDUCED = "FedAvg, uniform, server rate 0.65"


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("berka", ["AFL", REDUCED, "q-FedAvg", "TERM", "FedMGDA", "PropFair"]),
        ("questions", ["AFL", REDUCED, "q-FedAvg", "TERM", "FedMGDA", "PropFair"]),
        ("fashion", [REDUCED, "q-FedAvg", "TERM", "FedMGDA", "PropFair"]),
        ("heart", []),
    ],
)
def test_the_methods_of_the_papers_tables_are_compared_and_average_without_sizes(study, name, labels):
    found = study.others(name)
    assert list(found) == labels
    assert all(algorithm.weights() != "size" for algorithm in found.values())
    assert set(found) <= set(study.methods(name, study.FULL[name]))


def test_the_small_study_runs_keeps_what_is_finished_and_draws(study, tmp_path):
    command = [SCRIPT, "--small", "--out", tmp_path / "out"]
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / "out" / "results.json"
    rows = json.loads(store.read_text())["rows"]
    expected = [(name, label) for name, one in study.SMALL.items() for label in study.methods(name, one)]
    assert [(row["study"], row["method"]) for row in rows] == expected
    assert all(row["curve"][-1]["round"] == 4 for row in rows)
    assert all((tmp_path / "out" / name).stat().st_size > 5000 for name in ("regret.png", "worst.png"))
    assert "| AAggFF-S | " in done.stdout

    again = rows.pop(2)
    store.write_text(json.dumps({"rows": rows}))
    resumed = python(*command, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("heart seed") == 1
    assert json.loads(store.read_text())["rows"][-1] == again
