"""Rows that clients hold back: disjoint, stratified, and never trained on."""

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError


def rows_of(index):
    return [set(index[client].tolist()) for client in range(len(index))]


def test_training_test_and_validation_rows_divide_what_a_client_has():
    whole = pf.load("digits", partition=pf.Dirichlet(clients=8, alpha=0.3))
    task = whole.with_local_tests(pf.LocalTests(fraction=0.2, validation=0.25))
    parts = zip(*(rows_of(index) for index in (task.clients, task.local_tests, task.local_validations)), strict=True)
    for had, (train, test, validation) in zip(rows_of(whole.clients), parts, strict=True):
        assert train | test | validation == had
        assert len(train) + len(test) + len(validation) == len(had)
        assert len(test) == max(1, round(0.2 * len(had)))
        assert len(validation) == max(1, round(0.25 * (len(had) - len(test))))


def test_every_class_of_a_client_gives_its_share():
    task = pf.load("digits", partition=pf.IID(clients=3), local_tests=pf.LocalTests(fraction=0.5))
    for client in range(3):
        kept = np.bincount(task.targets[task.clients[client]], minlength=10)
        held = np.bincount(task.targets[task.local_tests[client]], minlength=10)
        assert np.abs(kept - held).max() <= 1


def test_a_client_with_one_row_trains_on_it_and_is_left_out_of_local_metrics():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    owners = [0] + [1] * 19 + [2] * 20
    task = pf.Task.from_arrays(x, y, clients=owners, test=(x[:4], y[:4])).with_local_tests()
    assert task.local_tests.sizes.tolist() == [0, 4, 4]
    assert len(task.clients[0]) == 1
    line = pf.simulate(task, pf.Local(), rounds=1).metrics[0]
    assert 0 <= line["personal_accuracy"] <= 1


def test_the_global_test_may_be_the_union_of_the_local_ones():
    task = pf.load("digits", partition=pf.IID(clients=4), local_tests=pf.LocalTests(global_test="union"))
    assert len(task.test_targets) == task.local_tests.sizes.sum()
    official = pf.load("digits", partition=pf.IID(clients=4), local_tests=pf.LocalTests())
    assert len(official.test_targets) == 359


def test_the_split_depends_on_the_seed_alone():
    tasks = [pf.load("digits", partition=pf.IID(4)) for _ in range(2)]
    one, two = (task.with_local_tests(seed=3) for task in tasks)
    other = tasks[0].with_local_tests(seed=4)
    assert rows_of(one.local_tests) == rows_of(two.local_tests) != rows_of(other.local_tests)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fraction": 1.0}, "local_tests.fraction is 1.0"),
        ({"validation": -0.1}, "local_tests.validation is -0.1"),
        ({"global_test": "own"}, "LocalTests's global_test is 'own'; choose 'official' or 'union'"),
    ],
)
def test_impossible_shares_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.LocalTests(**settings)
