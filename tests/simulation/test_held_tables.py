"""In whatever kind of table a part holds training examples, it is refused, and what only looks like one is not."""

import array

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from privfl.simulation.every_state import EveryState
from privfl.simulation.held_tables import arrays_of, lists_of, tables_in

ROWS = 200
PRIVATE = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1))


def ran(inputs, held):
    test = np.random.default_rng(1).normal(size=(40, *inputs.shape[1:])).astype(np.float32), np.arange(40) % 2

    def loss(network, x, y, kept=held):
        return F.cross_entropy(network(x), y, reduction="none") + 0 * len(kept)

    task = pf.Task.from_arrays(
        inputs, np.arange(len(inputs)) % 2, clients=np.arange(len(inputs)) // 50, test=test, classes=2, loss=loss,
        model="logistic",
    )  # fmt: skip
    return pf.simulate(task, pf.FedAvg("uniform"), rounds=1, training=pf.LocalTraining(steps=1), privacy=PRIVATE)


def structured(values, **beside):
    kinds = [(f"f{place}", "f4") for place in range(values.shape[1])]
    table = np.zeros(len(values), dtype=[("name", "U3"), *kinds, ("target", "i8")])
    for place in range(values.shape[1]):
        table[f"f{place}"] = values[:, place]
    return table


CARRIERS = {
    "a record array": lambda x: np.rec.fromarrays(x.T),
    "named columns beside a text and a target": structured,
    "a dictionary of lists": lambda x: {place: x[:, place].tolist() for place in range(x.shape[1])},
    "a dictionary of arrays": lambda x: {place: x[:, place].copy() for place in range(x.shape[1])},
    "a list of columns": lambda x: [torch.from_numpy(column.copy()) for column in x.T],
    "complex numbers": lambda x: x.astype(np.complex64),
    "complex tensors": lambda x: torch.from_numpy(x).to(torch.complex64),
    "an array of Python": lambda x: array.array("f", x.ravel().tolist()),
    "a view of memory": lambda x: memoryview(x.copy()),
    "one row after another": lambda x: x.ravel(),
    "with the target behind": lambda x: np.c_[x, np.arange(len(x)) % 2],
    "with numbers and the target in front": lambda x: np.c_[np.arange(len(x)), np.arange(len(x)) % 2, x],
}


@pytest.mark.parametrize("width", [5, 9])
@pytest.mark.parametrize("how", CARRIERS)
def test_examples_are_found_in_every_kind_of_table(how, width):
    inputs = np.random.default_rng(0).normal(size=(ROWS, width)).astype(np.float32)
    with pytest.raises(pf.ConfigError, match="holds training examples"):
        ran(inputs, CARRIERS[how](inputs))


@pytest.mark.parametrize("kind", [np.ascontiguousarray, torch.tensor])
def test_images_are_found_with_their_channels_last(kind):
    inputs = np.random.default_rng(0).normal(size=(ROWS, 3, 4, 5)).astype(np.float32)
    with pytest.raises(pf.ConfigError, match="holds training examples"):
        ran(inputs, kind(inputs.transpose(0, 2, 3, 1)))


OTHERS = {
    "flags": (np.arange(ROWS * 3) // 7 % 2).tolist(),
    "columns of whole numbers": {"a": [0, 1] * 60, "b": [1, 0] * 60, "c": [0] * 120},
    "a view of what is no number": memoryview(b"abc").cast("c"),
    "names alone": np.array([("a", "b")] * 9, dtype=[("first", "U1"), ("second", "U1")]),
    "nothing": {"a": [], "b": []},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whole_numbers_are_no_examples_because_few_of_them_differ(what):
    inputs = np.random.default_rng(0).integers(0, 2, (ROWS, 3)).astype(np.float32)
    assert ran(inputs, OTHERS[what]).statement.cell("sample", "public").epsilon < np.inf


def test_the_statement_names_these_tables_too():
    inputs = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
    table = np.zeros(7, dtype=[("a", "f4"), ("b", "i4")])
    assert "loss (14 numbers)" in " ".join(str(ran(inputs, table).statement).split())


def test_columns_of_one_length_are_a_table_and_others_are_not():
    held = EveryState([{"a": [1, 2, 3], "b": (4, 5, 6)}, {"a": [1, 2], "b": [3]}])
    assert [one.tolist() for one in lists_of(held) if one.ndim == 2] == [[[1, 4], [2, 5], [3, 6]]]
    assert arrays_of(held) == []


def test_a_table_is_read_in_every_way_in_which_it_has_rows():
    def read(shape, example, telling=True):
        return [tuple(one.shape) for one in tables_in(np.zeros(shape), example, telling=telling)]

    assert read((7, 12), (12,)) == [(7, 12)]
    assert read((12, 7), (12,)) == [(7, 12)]
    assert read((7, 14), (12,)) == [(7, 12)] * 3
    assert read((7, 21), (12,)) == []
    assert read((24,), (12,)) == [(2, 12)]
    assert read((24,), (12,), telling=False) == read((7, 14), (12,), telling=False) == []
    assert read((7, 2, 2, 3), (3, 2, 2)) == [(7, 12), (7, 12)]
    assert read((7, 1), (1,)) == []
