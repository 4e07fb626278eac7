"""Clients are ranges of one array of row numbers."""

import numpy as np
import pytest
import torch

from privfl.errors import DataError
from privfl.federation.client_index import ClientIndex

PARTS = [np.array([4, 2]), np.array([0]), np.array([7, 5, 6])]


def test_every_client_has_the_rows_that_it_was_given_in_their_order():
    index = ClientIndex.of(PARTS)
    assert len(index) == 3
    assert [index[client].tolist() for client in range(3)] == [[4, 2], [0], [7, 5, 6]]
    assert index.sizes.tolist() == [2, 1, 3]
    assert index.rows.dtype == torch.int64


def test_a_client_without_rows_is_refused_but_may_have_none_to_test_on():
    parts = [np.array([1]), np.array([], dtype=np.int64)]
    with pytest.raises(DataError, match="client 1 holds no sample; give every client at least one"):
        ClientIndex.of(parts)
    assert ClientIndex.allowing_empty(parts).sizes.tolist() == [1, 0]


@pytest.mark.parametrize("part", [np.array([True, False]), np.array([1.0]), [0.5]])
def test_masks_and_fractions_are_no_row_numbers(part):
    for made in (ClientIndex.of, ClientIndex.allowing_empty):
        with pytest.raises(
            DataError, match=r"the rows of client 1 are (bool|float64); give their numbers, np\.flatnonz"
        ):
            made([np.array([1]), part])


def test_the_hash_tells_who_holds_what():
    moved = [np.array([4]), np.array([2, 0]), np.array([7, 5, 6])]
    hashes = {ClientIndex.of(parts).hash() for parts in (PARTS, moved, PARTS[::-1])}
    assert len(hashes) == 3
    assert ClientIndex.of([part.copy() for part in PARTS]).hash() in hashes
