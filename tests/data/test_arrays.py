"""A user's own arrays: whatever is wrong in them is named by its place in the array that the user gave."""

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data import Dataset
from privfl.errors import ConfigError, DataError

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4


def altered(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize("row", range(0, 40, 3))
def test_a_bad_value_is_named_by_its_index_in_the_users_own_array_whether_it_is_held_out_or_not(row):
    with pytest.raises(DataError, match=rf"arrays: inputs\[{row}, 2\] is nan; replace missing values"):
        Dataset.from_arrays(altered(X, (row, 2), np.nan), Y)
    with pytest.raises(DataError, match=rf"arrays: targets\[{row}\] is -1, outside 0\.\.3"):
        Dataset.from_arrays(X, altered(Y, row, -1))
    with pytest.raises(DataError, match=rf"arrays: targets\[{row}\] is 9, outside 0\.\.3; .* raise classes \(now 4"):
        Dataset.from_arrays(X, altered(Y, row, 9), classes=4)
    with pytest.raises(DataError, match=rf"arrays: inputs\[{row}, 1\] is 12, outside 0\.\.9"):
        Dataset.from_arrays(altered(np.zeros((40, 3), int), (row, 1), 12), Y, vocabulary=10)
    with pytest.raises(DataError, match=rf"arrays: test inputs\[{row}, 0\] is inf"):
        Dataset.from_arrays(X, Y, test=(altered(X, (row, 0), np.inf), Y))
    with pytest.raises(DataError, match=rf"arrays: test targets\[{row}\] is 8, outside 0\.\.3"):
        Dataset.from_arrays(X, Y, test=(X, altered(Y, row, 8)), classes=4)


def test_the_first_of_several_bad_values_is_named():
    with pytest.raises(DataError, match=r"inputs\[(0|1), 1\] is nan"):
        Dataset.from_arrays(np.where(np.arange(3) == 1, np.nan, X), Y)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_number_that_float32_cannot_hold_is_not_finite():
    with pytest.raises(DataError, match=r"inputs\[7, 0\] is inf"):
        Dataset.from_arrays(altered(X.astype(np.float64), (7, 0), 1e300), Y)


@pytest.mark.parametrize("value", [2**24 + 1, -(2**24) - 1, 2**40])
def test_a_whole_number_that_float32_may_round_is_named_by_its_place(value):
    images = np.zeros((40, 2, 3), np.int64)
    with pytest.raises(
        DataError, match=rf"arrays: inputs\[13, 1, 2\] is {value}, and float32 holds every whole number"
    ):
        Dataset.from_arrays(altered(images, (13, 1, 2), value), Y)
    with pytest.raises(DataError, match=rf"arrays: test inputs\[13, 1, 2\] is {value}, and float32 holds"):
        Dataset.from_arrays(images, Y, test=(altered(images, (13, 1, 2), value), Y))
    kept = Dataset.from_arrays(images, Y, test=(altered(images, (13, 1, 2), 2**24), Y))
    assert int(kept.test_inputs[13, 1, 2]) == 2**24
    assert Dataset.from_arrays(images.astype(np.uint64) + 2**24, Y).inputs.min() == 2**24


def test_a_memory_map_is_searched_as_its_rows_are_read(tmp_path):
    np.save(tmp_path / "x.npy", altered(X, (13, 2), np.nan))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = Dataset.from_arrays(mapped, Y, test=(X[:4], Y[:4])).inputs
    assert rows[:13].isfinite().all()
    with pytest.raises(DataError, match=r"inputs\[13, 2\] is nan"):
        rows[torch.tensor([[1, 2], [13, 4]])]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (Y + 0.5, r"targets hold 0.5 at \[0\]; .* kind='regression'; classes are integers, whole numbers"),
        (altered(Y.astype(float), 6, np.nan), r"targets hold nan at \[6\]; .* kind='regression'"),
        (Y.astype(float), r"targets have dtype float64; .* kind='regression'; classes are .*astype\(np.int64\)"),
        ([*"abcd" * 10], r"targets hold 'a' at \[0\]; give integer labels, or texts and the names of all classes"),
        ([0, None] * 20, r"targets hold None at \[1\]; give integer labels, or texts and the names of all classes"),
        (Y[:, None].repeat(2, 1), r"shape \(40, 2\); kind says what several columns are"),
    ],
)
def test_labels_that_are_no_whole_numbers_are_named_with_the_first_of_them(targets, found):
    with pytest.raises(DataError, match=found):
        Dataset.from_arrays(X, targets)


def test_labels_with_a_hole_are_asked_about():
    holed = np.array([0, 1, 3])[np.arange(40) % 3]
    with pytest.raises(DataError, match="targets go up to 3 and no row is of class 2; give classes=4 if that is right"):
        Dataset.from_arrays(X, holed)
    assert Dataset.from_arrays(X, holed, classes=4).classes == 4
    assert pf.Task.from_arrays(X, holed, classes=4, partition=pf.IID(clients=2)).classes == 4
    with pytest.raises(DataError, match="no row is of class 0"):
        Dataset.from_arrays(X, Y + 10**12)


@pytest.mark.parametrize(
    ("clients", "found"),
    [
        ([None] * 40, r"clients\[0\] is None; give every row an id, or leave clients out and give a partition"),
        (["a", "b", float("nan"), "c"] * 10, r"clients\[2\] is nan"),
        (3, "clients must be one id for each row"),
        ([["a"]] * 40, "each hashable"),
        (["a"] * 39, "40 inputs but 39 clients"),
    ],
)
def test_client_ids_that_name_nobody_are_refused(clients, found):
    with pytest.raises(DataError, match=found):
        pf.Task.from_arrays(X, Y, clients=clients)


def test_rows_are_owned_or_dealt_out_and_not_both():
    owners = np.arange(40) % 5
    with pytest.raises(ConfigError, match=r"clients= says who .* and partition=IID\(…\) would deal the rows out anew"):
        pf.Task.from_arrays(X, Y, clients=owners, partition=pf.IID(clients=4))
    assert len(pf.Task.from_arrays(X, Y, clients=owners, partition=pf.Natural(min_size=2)).clients) == 5


class Items(torch.utils.data.Dataset):
    """Five items, one at a time."""

    def __len__(self):
        return 5

    def __getitem__(self, place):
        return torch.full((3,), float(place)), place % 2


A, B = np.zeros((6, 4), np.float32), np.zeros((6, 7), np.float32)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (Items(), r"a torch Items, which gives one item at a time; stack the items first: x, y = zip\(\*dataset\)"),
        (torch.utils.data.DataLoader(Items()), r"a torch DataLoader.*stack the items of its \.dataset first"),
        ((A, B), r"if these are several inputs, join their columns into one, np\.concatenate\(\[a, b\], axis=1\)"),
        ((A, A), r"2 inputs but 6 targets; a model gets one array: if these are several inputs"),
        ({"a": A, "b": B}, "a dict of 'a', 'b'; a model gets one array: if these are several inputs"),
        ([[1, 2], [1, 2, 3]], r"row 0 has shape \(2,\) and row 1 \(3,\); fill sequences up to one length"),
        ([torch.ones(3), torch.ones(4)], r"row 0 has shape \(3,\) and row 1 \(4,\)"),
        ([[[1], [2, 3]], [[1], [2]]], "do not form an array: rows are uneven; fill sequences up to one length"),
    ],
)
def test_what_is_no_single_array_is_refused_with_the_mend_and_no_word_of_numpy(values, sentence):
    with pytest.raises(DataError, match=sentence) as refused:
        Dataset.from_arrays(values, [0, 1] * 3, vocabulary=None)
    assert "setting an array element" not in str(refused.value)
