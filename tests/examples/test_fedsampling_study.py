"""FedSampling's figures: errors and costs that they show are the specification's, and the study runs and resumes."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import privfl as pf
from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "fedsampling.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("fedsampling_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(("answers", "expected"), [(1, 3.0), (10, 23.448), (100, 101.72)])
def test_fresh_answers_cost_what_the_exact_convolution_says(study, answers, expected):
    """Golden values: the trinomial convolution at ε = 3, D = 99, δ = 1e-5; a single answer spends at most its ε."""
    found = study.response_epsilon(pf.RandomizedResponse(3.0, 99), answers)
    assert found == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("clients", "size", "bound", "epsilon", "errors"),
    [
        (50_000, 2, 99, 3.0, (0.437, 0.103, 0.056, 0.076)),
        (50_000, 2, 99, 4.605, (0.140, 0.067, 0.031, 0.044)),
        (5_000, 20, 299, 3.0, (1.05, 0.099, 0.071, 0.069)),
        (1_000, 20, 99, 1.0, (2.65, 0.219, 0.161, 0.160)),
    ],
)
def test_errors_of_the_surface_are_the_tabulated_ones(study, clients, size, bound, epsilon, errors):
    """Golden values: §7.1 of the specification, whose range {1, …, M − 1} is {1, …, bound} here; printed digits."""
    rows = study.surface(np.full(clients, size), (bound,), 0)
    found = {row["mechanism"]: row["error"] for row in rows if row["epsilon"] == epsilon}
    for name, expected in zip(("grr", "laplace", "duchi", "piecewise"), errors, strict=True):
        assert found[name] == pytest.approx(expected, rel=0.012), name


def test_clipping_is_part_of_the_error(study):
    rows = study.surface(np.array([5, 50, 500]), (100,), 0)
    assert all(row["bias"] == pytest.approx(-400 / 555) for row in rows)
    assert all(row["error"] > 400 / 555 for row in rows)


def test_a_wrong_estimate_is_another_number_of_samples_at_another_step(study):
    """One client of 600 rows clipped at 300 without noise makes N̂ = N/2; "N̂/N = 0.5" draws the same coins."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(800, 6)).astype(np.float32), rng.integers(0, 3, 800)
    task = pf.Task.from_arrays(
        rows[:600], labels[:600], test=(rows[600:], labels[600:]), partition=pf.IID(clients=1), model="logistic"
    )
    federation = study.Federation("", None, "logistic", 60, 4, 0.3)
    same, algorithm, given = study.arguments("N̂/N = 0.5", federation, task)
    found = pf.simulate(same, algorithm, rounds=4, **given | {"privacy": pf.Privacy(noise_key=1)})
    clipped = pf.Privacy(size=pf.LaplaceSize(np.inf, 300), noise_key=1, max_size_error=np.inf)
    training = replace(given["training"], learning_rate=0.3)
    expected = pf.simulate(task, pf.FedSampling(60), rounds=4, training=training, privacy=clipped)
    assert expected.metrics[0]["sampling_rate"] == found.metrics[0]["sampling_rate"] == 0.2
    torch.testing.assert_close(found.parameters, expected.parameters)


def test_accuracy_is_interpolated_in_the_logarithm_of_the_ratio(study):
    rows = {f"N̂/N = {ratio!r}": {"0": {"settled": a}} for ratio, a in ((0.5, 0.2), (1.0, 0.8), (2.0, 0.4))}
    assert study.predicted([1.0], rows) == pytest.approx(0.8)
    assert study.predicted([2**0.5, 0.5, 9.0], rows) == pytest.approx((0.6 + 0.2 + 0.4) / 3)


def test_the_small_study_draws_every_figure_and_goes_on_where_it_stopped(data_folder, tmp_path):
    command = [SCRIPT, "--small", "--out", tmp_path]
    done = python(*command)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*.png")} == {f"fedsampling-fig{n}.png" for n in (3, 4, 5, 6)}
    stored = json.loads((tmp_path / "fedsampling.json").read_text(encoding="utf-8"))
    assert len(stored["surfaces"]["2,000 Amazon users"]) == 5 * 6 * 5
    assert {row["mechanism"] for row in stored["answers"]} == {"grr", "laplace", "duchi", "piecewise", "hybrid"}
    again = python(*command, "--only", "fig5")
    assert again.returncode == 0, again.stderr
    assert again.stdout == ""
    other = python(*command[:1], *command[2:])
    assert other.returncode == 2
    assert "give another folder" in other.stderr
