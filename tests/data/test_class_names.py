"""Classes are numbered by the list of their names: which texts occur changes no number."""

import numpy as np
import pytest

import privfl as pf
from privfl.data import Dataset
from privfl.data.class_names import check_names, listed, numbered
from privfl.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
TEXTS = np.array(["b", "c", "b", "c"] * 3)


def test_texts_have_the_numbers_of_their_names_whichever_occur():
    data = Dataset.from_arrays(X, TEXTS, classes=["a", "b", "c"], test=(X[:2], ["c", "a"]))
    assert (data.classes, data.class_names, data.read_off) == (3, ("a", "b", "c"), ())
    assert data.targets.tolist() == [1, 2] * 6
    assert data.test_targets.tolist() == [2, 0]
    task = pf.Task.from_arrays(X, TEXTS, classes=("c", "b"), partition=pf.IID(clients=2))
    assert task.classes == 2
    assert "classes" not in task.read_off


def test_numbers_stay_as_they_are_and_get_the_names():
    data = Dataset.from_arrays(X, np.arange(12) % 2, classes=("no", "yes"))
    assert data.class_names == ("no", "yes")
    assert sorted(set(data.targets.tolist())) == [0, 1]


def test_a_text_that_no_name_fits_is_named_with_its_place():
    with pytest.raises(
        DataError, match=r"arrays: targets\[1\] is 'c', and classes are 'a', 'b'; mend the value, or name"
    ):
        Dataset.from_arrays(X, TEXTS, classes=["a", "b"])
    with pytest.raises(DataError, match=r"test targets\[0\] is 'd', and classes are 'b', 'c'"):
        Dataset.from_arrays(X, TEXTS, classes=["b", "c"], test=(X[:1], ["d"]))
    with pytest.raises(DataError, match=r"outside 0\.\.1"):
        Dataset.from_arrays(X, np.arange(12) % 3, classes=["a", "b"])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a"], r"classes names 1 classes; name all of them, two or more"),
        ([], "classes names 0 classes"),
        (["a", " "], r"classes\[1\] is ' '; give every class a name"),
        (["a", "b", "a"], "classes names 'a' twice; name every class once"),
        ([0, 1], "classes holds 0; give text in quotes"),
    ],
)
def test_lists_that_name_no_classes_are_refused(names, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Dataset.from_arrays(X, TEXTS, classes=names)


def test_only_classes_have_names():
    with pytest.raises(DataError, match="regression has no classes; leave it out"):
        Dataset.from_arrays(X, X[:, 0], kind="regression", classes=["a", "b"])


def test_names_are_found_by_text_and_the_first_strange_one_is_told():
    found, strange = numbered(["1", 0, "x", "y"], ("0", "1"))
    assert (found.tolist(), strange) == ([1, 0, -1, -1], 2)
    assert numbered(["0"], ("0", "1"))[1] is None
    assert listed([str(number) for number in range(9)]).endswith("'7', …")
    check_names("classes", ("a", "b"))
