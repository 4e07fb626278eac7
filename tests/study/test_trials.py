"""Trials hold validation rows out of training data, and see no row that any run of the study is tested on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.read_off import VALIDATION
from privfl.simulation.caveats import assumptions
from privfl.study.trials import HeldOut, Trial, row_hashes, trial_settings, validation_rows


def experiment(seed: int = 9, **settings) -> Experiment:
    usual = {"partition": {"name": "iid", "clients": 4}, "model": {"name": "logistic"}, "seed": seed}
    return Experiment.from_dict(usual | settings)


@pytest.mark.parametrize("settings", [{}, {"local_tests": {}}, {"dataset": {"name": "digits", "seed": 3}}])
def test_no_row_of_a_trial_is_tested_on_by_any_seed(settings):
    trial = Trial.of(experiment(**settings), HeldOut(0.25, 0, (0, 1, 2))).task()
    train, judged = (set(row_hashes(trial.inputs[trial.clients.rows])), set(row_hashes(trial.test_inputs)))
    assert not train & judged
    for seed in (0, 1, 2, 9):
        task = experiment(seed, **settings).task()
        tests = set(row_hashes(task.test_inputs))
        if task.local_tests is not None:
            tests |= set(row_hashes(task.inputs[task.local_tests.rows]))
        assert not (train | judged) & tests
    assert 0.15 < len(judged) / (len(judged) + len(train)) < 0.35
    assert (trial.local_tests is not None) == ("local_tests" in settings)


def test_one_row_more_moves_no_other_row():
    whole = experiment().task()
    trial = Trial.of(experiment(), HeldOut(0.25, 0, ()))
    judged = {one for one in row_hashes(trial.task().test_inputs)}
    shorter = replace(whole, clients=type(whole.clients).of([whole.clients[c].numpy()[1:] for c in range(4)]))
    left = set(row_hashes(whole.inputs[shorter.clients.rows]))
    object.__setattr__(trial, "_experiment", lambda seed: _Fixed(shorter))
    assert set(row_hashes(trial.task().test_inputs)) == judged & left


class _Fixed:
    def __init__(self, task):
        self.fixed = task

    def task(self):
        return self.fixed


def test_a_trials_test_examples_are_clients_own_and_no_public_ones(tmp_path):
    arrays = tmp_path / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(arrays, inputs=rng.normal(size=(80, 3)), targets=np.arange(80) % 2, clients=np.arange(80) % 4)
    own = {"arrays": {"file": str(arrays), "classes": 2}, "partition": {"name": "natural"}}
    for settings, named in (({}, ()), (own, ("test rows",)), ({"local_tests": {"global_test": "union"}}, ())):
        trial = Trial.of(experiment(**settings), HeldOut(0.25, 0, ())).task()
        assert trial.read_off == (*named, VALIDATION)
        assert "test examples, every setting" not in assumptions(trial)
        assert "the test examples, which are for validation by clients, so that no claim covers" in assumptions(trial)


def test_equal_rows_have_equal_hashes():
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.5]])
    first, second, third = row_hashes(rows)
    assert first == second != third


def test_a_client_without_rows_is_refused():
    alone = experiment(partition={"name": "iid", "clients": 1000})
    with pytest.raises(ConfigError, match="keeps no row for tuning"):
        Trial.of(alone, HeldOut(0.5, 0, (0, 1))).task()


def test_clients_keep_the_rows_that_they_had():
    whole, trial = experiment().task(), Trial.of(experiment(), HeldOut(0.25, 0, ())).task()
    for client in range(4):
        assert np.isin(trial.clients[client].numpy(), whole.clients[client].numpy()).all()


def test_a_trial_with_an_infinite_setting_says_afterwards_what_it_was(tmp_path):
    given = {"algorithm": {"name": "aaggff-d"}, "rounds": 1, "training": {"steps": 1}, "workers": 1}
    trial = Trial.of(experiment(**given), HeldOut(0.25, 0, ()))
    trial.run(tmp_path / "trial")
    assert validation_rows(tmp_path / "trial") > 0
    assert trial_settings(tmp_path / "trial") == trial.to_dict()
    assert trial.to_dict()["algorithm"]["response_epsilon"] == float("inf")
