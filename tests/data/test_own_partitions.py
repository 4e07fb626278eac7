"""What a partition of one's own deals out is checked: nothing wraps around, and every mistake is one sentence."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import privfl as pf
from privfl.data.partitions import Partition, check_parts
from privfl.data.partitions.base import Assignment
from privfl.errors import DataError

ROWS = np.arange(40)
X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), ROWS % 2
QUARTERS = [ROWS[client::4] for client in range(4)]


@dataclass(frozen=True)
class Splits(Partition):
    parts: Callable[[], object]

    def split(self, targets, classes, rng, clients=None):
        return self.parts()

    def assign(self, targets, classes, rng, clients):
        return self.parts()

    def __str__(self):
        return "mine"


@dataclass(frozen=True)
class Assigns(Splits):
    split = Partition.split


def task(partition):
    return pf.Task.from_arrays(X, Y, classes=2, test=(X[:4], Y[:4]), partition=partition, model="logistic")


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            lambda: [np.isin(ROWS, part) for part in QUARTERS],
            r"mine: the rows of client 0 are a mask of 40 truth values; give np\.flatnonzero\(mask\)",
        ),
        (
            lambda: [QUARTERS[0], QUARTERS[1] + 0.0],
            r"mine: the rows of client 1 are float64 of shape \(10,\); give whole numbers",
        ),
        (lambda: [QUARTERS[0].reshape(2, 5)], r"mine: the rows of client 0 are int64 of shape \(2, 5\)"),
        (lambda: [[[1], [2, 3]]], "mine: the rows of client 0 are uneven; give whole numbers"),
        (lambda: [3, 4], r"mine: the rows of client 0 are int64 of shape \(\)"),
        (lambda: (part for part in QUARTERS), "mine splits the rows into a generator; give a list with one array"),
        (lambda: dict(enumerate(QUARTERS)), r"mine splits the rows into \{0: .*give a list with one array"),
        (list, "mine splits the rows into no clients; give a list with one array"),
        (lambda: [QUARTERS[0], ROWS[:0]], "1 of 2 clients have no sample"),
        (lambda: [QUARTERS[0], [-1]], "parts index samples -1 to 36"),
        (
            lambda: [QUARTERS[0].astype(np.uint64) + np.uint64(2**63)],
            "mine: the rows of client 0 go up to 9223372036854775844",
        ),
    ],
)
def test_a_split_that_is_no_list_of_rows_is_refused(parts, sentence):
    with pytest.raises(DataError, match=sentence):
        task(Splits(parts))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (lambda: Assignment(ROWS + 5, ROWS % 4, 4), "mine: the indices go from 5 to 44; number them from 0 to 39"),
        (lambda: Assignment(ROWS - 40, ROWS % 4, 4), "mine: the indices go from -40 to -1; number them from 0 to 39"),
        (lambda: Assignment(ROWS, ROWS % 8, 4), "mine: the owners go from 0 to 7; number them from 0 to 3"),
        (lambda: Assignment(ROWS, ROWS % 4 - 1, 4), "mine: the owners go from -1 to 2"),
        (lambda: Assignment(ROWS[:10], ROWS % 4, 4), "mine gives 10 indices and 40 owners; give one owner each"),
        (lambda: Assignment(ROWS, ROWS % 4 / 1.0, 4), r"mine: the owners are float64 of shape \(40,\)"),
        (lambda: Assignment(ROWS > 3, ROWS % 4, 4), "mine: the indices are a mask of 40 truth values"),
    ],
)
def test_an_assignment_that_would_wrap_around_or_fail_is_refused(parts, sentence):
    with pytest.raises(DataError, match=sentence):
        task(Assigns(parts))


def test_lists_and_small_integers_are_rows_too():
    usual = task(Splits(lambda: QUARTERS)).clients.rows
    for kind in (list, tuple, lambda part: part.astype(np.uint8)):
        assert task(Splits(lambda kind=kind: tuple(kind(part) for part in QUARTERS))).clients.rows.equal(usual)
    assert task(Assigns(lambda: (ROWS.astype(np.int16), ROWS % 4, np.int64(4)))).clients.rows.equal(usual)


def test_what_is_right_is_passed_on_as_it_is():
    assert all(one is two for one, two in zip(check_parts(QUARTERS, pf.IID(2)), QUARTERS, strict=True))
