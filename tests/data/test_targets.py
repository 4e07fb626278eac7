"""Targets of every kind of task: what is taken, what is refused with the mend, and that nothing is inferred."""

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data.targets import IGNORED, strata
from privfl.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
TOKENS = np.arange(40 * 6).reshape(40, 6) % 7


def test_numbers_are_targets_of_a_regression_one_or_several_for_each_row():
    one = pf.Dataset.from_arrays(X, X[:, 0] * 2, kind="regression")
    assert (one.classes, one.targets.dtype, one.targets.shape[1:]) == (1, torch.float32, (1,))
    assert repr(one).endswith("of float32 (3,), 1 value, no natural clients)")
    assert one.read_off == ("test rows",)
    several = pf.Dataset.from_arrays(X, np.arange(80).reshape(40, 2), kind="regression", test=(X[:5], X[:5, :2]))
    assert (several.classes, len(several.targets), several.read_off) == (2, 40, ())


def test_columns_of_0_and_1_are_targets_of_several_labels():
    data = pf.Dataset.from_arrays(X, X > 0, kind="multi-label", test=(X, X > 1))
    assert (data.classes, data.targets.dtype) == (3, torch.float32)
    assert torch.equal(data.targets, torch.from_numpy(X > 0).float())


def test_every_token_is_predicted_from_those_before_it_and_padding_never():
    data = pf.Dataset.from_arrays(
        TOKENS, None, kind="next-token", vocabulary=7, padding=6, test=(TOKENS[:2], None), clients=[0, 1] * 20
    )
    assert data.inputs.tolist() == TOKENS[:, :-1].tolist()
    assert data.targets.tolist() == np.where(TOKENS[:, 1:] == 6, IGNORED, TOKENS[:, 1:]).tolist()
    assert (data.classes, data.test_targets.shape) == (7, (2, 5))
    given = pf.Dataset.from_arrays(TOKENS[:, :-1], data.targets, kind="next-token", vocabulary=7)
    assert len(given.targets) + len(given.test_targets) == 40


def changed(values, place, value):
    changed = np.array(values)
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("inputs", "targets", "options", "sentence"),
    [
        (X, changed(X[:, 0], 7, np.nan), {"kind": "regression"}, r"targets\[7, 0\] is nan; leave rows without"),
        (X, ["a"] * 40, {"kind": "regression"}, "targets have dtype <U1; encode them as numbers"),
        (X, np.zeros((40, 0)), {"kind": "regression"}, r"shape \(40, 0\); regression needs one or several numbers"),
        (X, X[:30, 0], {"kind": "regression"}, "40 inputs but 30 targets"),
        (X, X[:, 0], {"kind": "regression", "classes": 3}, "classes is 3, but regression has no classes"),
        (X, X[:, :2], {"kind": "regression", "test": (X, X)}, r"test_targets are float32 \(40, 3\); they must be"),
        (X, X[:, 0] > 0, {"kind": "multi-label"}, "for each of several labels, .* a single one is a classification"),
        (X, changed(X > 0, (9, 2), 0) * 2, {"kind": "multi-label"}, "is 2; multi-label needs 0 or 1 for each label"),
        (X, None, {"kind": "next-token", "vocabulary": 7}, "inputs are float32 .* needs sequences of two or more"),
        (TOKENS, None, {"kind": "next-token"}, "may be token ids or features; give vocabulary"),
        (TOKENS, TOKENS[:, 1:], {"kind": "next-token", "vocabulary": 7}, r"must be int64 \[N, 6\]"),
        (TOKENS, changed(TOKENS, (3, 2), -1), {"kind": "next-token", "vocabulary": 7}, r"2\] is -1, outside 0..6"),
        (TOKENS, TOKENS * 1.5, {"kind": "next-token", "vocabulary": 7}, r"one target for each position .* or None"),
        (X, X[:, 0] > 0, {"padding": 0}, "padding is 0, which says what next-token leaves out"),
        (X, X[:, 0], {"kind": "ranking"}, "kind is 'ranking'"),
    ],
)  # fmt: skip
def test_what_is_no_target_of_a_kind_is_refused_with_the_mend(inputs, targets, options, sentence):
    with pytest.raises((DataError, ConfigError), match=sentence):
        pf.Dataset.from_arrays(inputs, targets, **options)


def test_rows_without_classes_are_dealt_out_and_held_back_as_if_they_had_one():
    data = pf.Dataset.from_arrays(X, X[:, 0], kind="regression")
    assert strata(data.targets, data.kind).tolist() == [0] * len(data)
    task = pf.Task.from_dataset(data, partition=pf.LogNormal(clients=4, sigma=1.0)).with_local_tests()
    assert len(task.clients) == 4
    assert sum(task.local_tests.sizes) > 0
    with pytest.raises(
        ConfigError, match=r"partition=Dirichlet\(…\) deals rows out by their classes, and rows of a task"
    ):
        pf.Task.from_dataset(data, partition=pf.Dirichlet(clients=4, alpha=1.0))
    with pytest.raises(ConfigError, match="label noise flips classes, and a task of the kind regression has none"):
        pf.Task.from_dataset(data, partition=pf.IID(clients=4), label_noise=pf.PairFlip(0.1))
