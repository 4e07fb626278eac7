"""Clients are numbered by who they are: no row's coming or going gives another client another number."""

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data import Dataset
from privfl.data.client_ids import client_name, number_clients
from privfl.errors import DataError

X, Y = np.random.default_rng(0).normal(size=(41, 3)).astype(np.float32), np.arange(41) % 2
OWNERS = np.array(["north", *["south", "north", "east"] * 13, "south"])


def federation(kept, owners=OWNERS):
    task = pf.Task.from_arrays(X[kept], Y[kept], clients=[owners[row] for row in kept], classes=2, test=(X[:4], Y[:4]))
    held = [sorted(map(tuple, task.inputs[task.clients[client]].tolist())) for client in range(len(task.clients))]
    return held, Dataset.from_arrays(X[kept], Y[kept], clients=[owners[row] for row in kept]).client_names


@pytest.mark.parametrize("owners", [OWNERS, [True, *[0, 1, 2.0] * 13, 1], [("b", 1), *["z", ("b", True), 5] * 13, 5]])
def test_no_order_of_the_rows_changes_who_is_which_client(owners):
    whole = federation(list(range(41)), owners)
    assert federation(np.random.default_rng(1).permutation(41).tolist(), owners) == whole
    assert federation(list(range(40, -1, -1)), owners) == whole


def test_one_row_less_leaves_all_other_clients_with_their_numbers_and_rows():
    whole, names = federation(list(range(41)))
    assert names == ("east", "north", "south")
    for gone in (0, 1, 3, 40):
        rest, left = federation([row for row in range(41) if row != gone])
        assert left == names
        differ = [client for client in range(3) if rest[client] != whole[client]]
        assert differ == [names.index(OWNERS[gone])]
        assert len(rest[differ[0]]) == len(whole[differ[0]]) - 1


def test_one_row_less_does_not_change_who_is_in_the_cohort():
    rows = [list(range(41)), list(range(1, 41))]
    tasks = [pf.Task.from_arrays(X[k], Y[k], clients=OWNERS[k], classes=2, test=(X[:4], Y[:4])) for k in rows]
    runs = [pf.simulate(task, pf.FedAvg(), rounds=1, cohort=pf.FixedCohort(1), record=True) for task in tasks]
    (one,), (two,) = (list(run.transcript[0].uploads) for run in runs)
    assert one == two
    assert len({len(task.targets[task.clients[0]]) for task in tasks}) == 1


def test_ids_that_are_equal_are_one_client_whatever_they_are_written_as():
    for ids in ([1, 1.0, True, "1"], [True, 1.0, "1", Decimal(1)], ["1", Fraction(1), np.float32(1), 1 + 0j]):
        numbers = {}
        assert number_clients("d", ids, numbers).tolist() == [int(isinstance(one, str)) for one in ids]
        assert [client_name(one) for one in numbers] == ["1", "1"]
    assert client_name(("a", True)) == client_name(("a", 1.0)) == "('a', 1)"


def test_ids_of_several_kinds_are_sorted_by_kind_and_within_it_by_what_they_are():
    ids = [b"b", "b", 10, 2.5, ("a", 1), "a", -3, (1, "a"), frozenset({"x", 1}), Decimal("0.1")]
    numbers = {}
    number_clients("d", ids, numbers)
    wanted = [b"b", frozenset({"x", 1}), -3, Decimal("0.1"), 2.5, 10, "a", "b", (1, "a"), ("a", 1)]
    assert list(numbers) == wanted
    again = {}
    number_clients("d", ids[::-1], again)
    assert list(again) == wanted


def test_clients_of_test_rows_only_come_after_all_others():
    test = (X[:4], Y[:4], ["aachen", "south", "north", "bonn"])
    data = Dataset.from_arrays(X, Y, clients=OWNERS, test=test)
    assert data.client_names == ("east", "north", "south", "aachen", "bonn")
    assert data.test_clients.tolist() == [3, 2, 1, 4]


def test_tensors_and_numpy_scalars_are_ids_too():
    for ids in (torch.tensor([7, 3, 7]), np.array([7.0, 3.0, 7.0]), [np.int8(7), np.float16(3), 7]):
        numbers = {}
        assert number_clients("d", ids, numbers).tolist() == [1, 0, 1]
        assert [client_name(one) for one in numbers] == ["3", "7"]


class Nameless:
    """An id that only says where in memory it is."""


@dataclass(frozen=True)
class Hidden:
    secret: int = field(repr=False)


@pytest.mark.parametrize("ids", [[Nameless(), "a"], [("a", Nameless())], [Hidden(1), Hidden(2)], [(float("nan"), 1)]])
def test_ids_that_nothing_sorts_are_refused(ids):
    with pytest.raises(DataError, match=r"d: clients hold \w+ objects that no text tells apart.*numbers or strings"):
        number_clients("d", ids, {})
