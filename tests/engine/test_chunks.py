"""A cohort is divided into stacks of the same work, and a stack's tensors change places together."""

import torch

from privfl.engine.chunks import chunks_of, reorder, stacked


def test_a_cohort_that_fits_is_dealt_to_all_workers_and_a_larger_one_is_cut():
    assert chunks_of(list(range(5)), 4, 2) == [[0, 2, 4], [1, 3]]
    assert chunks_of(list(range(9)), 4, 2) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert chunks_of([1], 4, 2) == [[1]]


def test_clients_change_places_in_every_tensor():
    local = {"one": torch.arange(3), "two": torch.arange(6).view(3, 2)}
    before = dict(local)
    reorder(local, [0, 1, 2])
    assert all(local[name] is before[name] for name in local)
    reorder(local, [2, 0, 1])
    assert local["one"].tolist() == [2, 0, 1]
    assert local["two"].tolist() == [[4, 5], [0, 1], [2, 3]]


def test_one_tensor_of_all_clients_is_copied_for_each():
    one = torch.arange(2.0)
    same, other = stacked([one, one]), stacked([one, one + 1])
    same[0] += 1
    assert same.tolist() == [[1, 2], [0, 1]]
    assert other.tolist() == [[0, 1], [1, 2]]
    assert one.tolist() == [0, 1]
