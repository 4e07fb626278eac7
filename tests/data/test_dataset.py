"""Datasets check themselves, and a user's own arrays become one in a single call."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch

from privfl.data import Dataset
from privfl.data.holdout import stratified_holdout
from privfl.errors import ConfigError, DataError


def tiny(**changes):
    """Six training and two test rows of two features."""
    fields = {
        "name": "tiny",
        "inputs": torch.arange(12, dtype=torch.float32).reshape(6, 2),
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "test_inputs": torch.zeros(2, 2),
        "test_targets": torch.tensor([0, 2]),
        "classes": 3,
    }
    return Dataset(**(fields | changes))


TWO_CLIENTS = torch.tensor([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"targets": torch.tensor([0, 1, 2])}, r"6 inputs but 3 targets"),
        ({"targets": torch.tensor([0, 1, 2, 0, 7, 2])}, r"targets\[4\] is 7, outside 0\.\.2"),
        ({"targets": torch.tensor([0, 1, -1, 0, 1, 2])}, r"targets\[2\] is -1, outside 0\.\.2"),
        ({"test_targets": torch.tensor([0, 3])}, r"test_targets\[1\] is 3"),
        ({"targets": torch.zeros(6)}, r"targets are float32.*must be int64"),
        ({"targets": torch.zeros(6, 1, dtype=torch.int64)}, r"must be int64 \[N\]"),
        ({"inputs": torch.zeros(6, 2, dtype=torch.float64)}, r"inputs have dtype torch.float64; use float32"),
        ({"inputs": torch.zeros(6)}, r"inputs have shape \(6,\).*reshape\(-1, 1\)"),
        ({"inputs": torch.zeros(0, 2), "targets": torch.zeros(0, dtype=torch.int64)}, r"inputs are empty \(0, 2\)"),
        (
            {"test_inputs": torch.zeros(0, 2), "test_targets": torch.zeros(0, dtype=torch.int64)},
            r"test_inputs are empty",
        ),
        ({"test_inputs": torch.zeros(2, 3)}, r"test_inputs are float32 \(3,\) but inputs are float32 \(2,\)"),
        ({"classes": 1}, r"classes is 1"),
        ({"class_names": ("a", "b")}, r"2 class_names for 3 classes"),
        ({"clients": torch.tensor([0, 0, 2, 2, 2, 2])}, r"number 1 is missing"),
        ({"clients": torch.tensor([0, -4, 1, 1, 1, 1])}, r"number -4 is negative"),
        ({"clients": TWO_CLIENTS[:4]}, r"6 inputs but 4 clients"),
        ({"clients": TWO_CLIENTS, "client_names": ("a", "b", "c")}, r"3 client_names for 2 clients"),
        ({"clients": TWO_CLIENTS, "test_clients": torch.tensor([0, -1])}, r"test_clients hold -1"),
        ({"test_clients": torch.tensor([0, 1])}, r"without clients"),
        ({"inputs": torch.zeros(6, 2, dtype=torch.int64)}, r"vocabulary \(how many ids\) must be given"),
    ],
)
def test_a_faulty_dataset_is_refused_in_one_sentence_that_names_the_fault(changes, sentence):
    with pytest.raises(DataError, match=sentence) as error:
        tiny(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_named_with_its_place(value):
    inputs = torch.zeros(6, 2)
    inputs[4, 1] = value
    with pytest.raises(DataError, match=rf"inputs\[4, 1\] is {value}"):
        tiny(inputs=inputs)


def test_token_ids_must_lie_inside_the_vocabulary():
    tokens = {"inputs": torch.tensor([[0, 1]] * 5 + [[1, 9]]), "test_inputs": torch.tensor([[0, 1]] * 2)}
    assert tiny(**tokens, vocabulary=10).vocabulary == 10
    with pytest.raises(DataError, match=r"inputs\[5, 1\] is 9, outside 0\.\.8"):
        tiny(**tokens, vocabulary=9)


def test_a_dataset_is_frozen_and_describes_itself():
    data = tiny(clients=TWO_CLIENTS, test_clients=torch.tensor([0, 2]), client_names=("a", "b", "test only"))
    assert repr(data) == ("Dataset(tiny: 6 training and 2 test rows of float32 (2,), 3 classes, 2 natural clients)")
    assert len(data) == 6
    assert data.num_clients == 2
    assert tiny().num_clients == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.classes = 4  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(5))
def test_the_holdout_takes_each_class_of_each_client_in_proportion(seed):
    rng = np.random.default_rng(seed)
    clients = rng.integers(0, 12, 3000)
    targets = rng.choice(6, 3000, p=[0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    held = stratified_holdout(targets, fraction=0.2, clients=clients, seed=seed)
    for client in range(12):
        own = clients == client
        assert held[own].sum() == round(0.2 * own.sum())
        for label in range(6):
            cell = own & (targets == label)
            assert abs(held[cell].sum() - held[own].mean() * cell.sum()) < 1


def test_every_client_keeps_a_training_row_and_gives_a_test_row_where_it_has_two():
    clients = np.repeat([5, 6, 7], [1, 2, 3])
    held = stratified_holdout(np.zeros(6, int), fraction=0.99, clients=clients)
    assert [int(held[clients == c].sum()) for c in (5, 6, 7)] == [0, 1, 2]
    held = stratified_holdout(np.zeros(6, int), fraction=0.01, clients=clients)
    assert [int(held[clients == c].sum()) for c in (5, 6, 7)] == [0, 1, 1]


def test_the_holdout_depends_on_the_seed_and_on_nothing_else():
    targets = np.arange(500) % 3
    first, again = (stratified_holdout(targets, seed=4) for _ in range(2))
    assert (first == again).all()
    assert (first != stratified_holdout(targets, seed=5)).any()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_fraction_outside_zero_to_one_is_refused(fraction):
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        Dataset.from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], test_fraction=fraction)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_arrays_of_any_library_become_the_same_dataset(convert):
    x, y = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32), np.arange(50) % 4
    data = Dataset.from_arrays(convert(x), convert(y), seed=3)
    held = stratified_holdout(y, seed=3)
    assert torch.equal(data.inputs, torch.from_numpy(x[~held]))
    assert torch.equal(data.test_targets, torch.from_numpy(y[held]))
    assert (data.classes, data.clients, data.client_names) == (4, None, None)


def test_client_ids_may_be_anything_hashable_and_are_numbered_by_their_sorted_set():
    ids = ["ward 7", ("x", 1), 3, "ward 7", ("x", 1), 3, "ward 7", "alone"]
    data = Dataset.from_arrays(np.arange(8.0).reshape(8, 1), [0, 1] * 4, clients=ids)
    assert data.client_names == ("3", "alone", "ward 7", "('x', 1)")
    everything = torch.cat([data.inputs, data.test_inputs]).flatten().long().tolist()
    owners = torch.cat([data.clients, data.test_clients]).tolist()
    assert [[2, 3, 0, 2, 3, 0, 2, 1][row] for row in everything] == owners
    assert sorted(everything) == list(range(8))
    assert set(data.clients.tolist()) == {0, 1, 2, 3}


def test_a_given_test_part_is_used_as_it_is_and_may_bring_clients_of_its_own():
    data = Dataset.from_arrays(
        np.zeros((3, 2)), [0, 1, 0], clients=[9, 8, 9], test=(np.ones((2, 2)), [1, 1], [8, 77]), classes=5
    )
    assert (data.clients.tolist(), data.test_clients.tolist()) == ([1, 0, 1], [0, 2])
    assert (data.client_names, data.classes) == (("8", "9", "77"), 5)


def test_what_the_arrays_hold_decides_between_numbers_and_tokens():
    labels = [0, 1, 0, 1]
    assert Dataset.from_arrays(np.full((4, 5), 200, np.uint8), labels).inputs.dtype == torch.float32
    assert Dataset.from_arrays(np.full((4, 1, 2, 2), 3), labels).inputs.dtype == torch.float32
    assert Dataset.from_arrays(np.full((4, 5), True), labels).inputs.dtype == torch.float32
    tokens = Dataset.from_arrays(np.full((4, 5), 6), labels, vocabulary=100)
    assert (tokens.inputs.dtype, tokens.vocabulary) == (torch.int64, 100)
    assert Dataset.from_arrays(np.full((4, 5), 6, np.uint8), labels, vocabulary=7).inputs.dtype == torch.int64
    with pytest.raises(DataError, match=r"inputs are int64 \(4, 5\), which may be token ids or features; give vocab"):
        Dataset.from_arrays(np.full((4, 5), 6), labels)
    with pytest.raises(DataError, match="vocabulary is 7; leave it out, or give token ids"):
        Dataset.from_arrays(np.zeros((4, 5)), labels, vocabulary=7)


def test_later_changes_of_the_users_arrays_do_not_reach_the_dataset():
    x, y = np.zeros((4, 1), np.float32), np.array([0, 1, 0, 1])
    data = Dataset.from_arrays(x, y, test=(x, y))
    x[:], y[:] = 7, 0
    assert data.inputs.sum() == 0
    assert data.targets.sum() == 2


def test_columns_of_several_types_of_numbers_are_numbers():
    """A table with a column of truth values beside others comes as Python objects."""
    mixed = np.array([[0.5, True, np.int64(3)], [1.5, False, np.float32(4)]], object)
    data = Dataset.from_arrays(mixed, [0, 1], test=(mixed, [0, 1]), clients=["a", "b"])
    assert torch.equal(data.inputs, torch.tensor([[0.5, 1, 3], [1.5, 0, 4]]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"inputs": np.zeros((4, 1)), "targets": [0, 1, 0]}, "4 inputs but 3 targets"),
        ({"inputs": np.zeros((4, 1)), "targets": [0, 1, 0, 1], "clients": ["a"]}, "4 inputs but 1 clients"),
        ({"inputs": np.zeros((4, 1)), "targets": [0.0, 1.0, 0.0, 1.0]}, "classes are integers"),
        ({"inputs": np.zeros((4, 1)), "targets": ["a", "b", "a", "b"]}, "texts and the names of all classes"),
        ({"inputs": np.zeros((4, 1)), "targets": [[0], [1], [0], [1]]}, r"ravel\(\)"),
        ({"inputs": [["a"], ["b"]], "targets": [0, 1]}, "encode them as numbers"),
        ({"inputs": np.array([[1.0, "2"], [3.0, "4"]], object), "targets": [0, 1]}, "encode them as numbers"),
        ({"inputs": np.array([[1.0, None], [3.0, 4]], object), "targets": [0, 1]}, "encode them as numbers"),
        (
            {"inputs": scipy.sparse.eye(2).tocsr(), "targets": [0, 1]},
            r"are sparse \(csr_matrix\); give .*toarray",
        ),
        ({"inputs": [[1.0], [2.0, 3.0]], "targets": [0, 1]}, "do not form an array"),
        ({"inputs": 3.0, "targets": [0, 1]}, "single value of type float"),
        ({"inputs": np.zeros((0, 3)), "targets": np.zeros(0, int)}, "inputs are empty"),
        ({"inputs": np.zeros((2, 1)), "targets": [0, 1], "clients": ["a", "b"]}, "nothing can be held out"),
        ({"inputs": np.zeros((2, 1)), "targets": [0, 1], "clients": [[1], [2]]}, "each hashable"),
        ({"inputs": np.zeros((4, 1)), "targets": [0, 1, 0, 5], "classes": 2}, "is 5, outside 0..1"),
        ({"inputs": np.full((4, 1), np.nan), "targets": [0, 1, 0, 1]}, "is nan"),
        ({"inputs": np.full((4, 2), -1), "targets": [0, 1, 0, 1], "vocabulary": 5}, "is -1, outside 0..4"),
        ({"inputs": np.zeros((4, 1)), "targets": [0, 1, 0, 1], "test": (np.zeros((1, 1)),)}, "test has 1 parts"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_the_mend(arguments, sentence):
    with pytest.raises(DataError, match=sentence):
        Dataset.from_arrays(arguments.pop("inputs"), arguments.pop("targets"), **arguments)


def test_data_of_ones_own_do_not_take_the_name_of_images_of_the_catalog():
    with pytest.raises(ConfigError, match="name is 'mnist', a dataset of the catalog by whose constants"):
        Dataset.from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], name="mnist")
    assert Dataset.from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], name="heart-disease").name == "heart-disease"
