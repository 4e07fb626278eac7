"""On small circles no part of a confirmed list opens alone from the least safe threshold on, and one does below."""

import numpy as np
import pytest

from audits.protocol.circles import cuts, searched


@pytest.mark.parametrize(("clients", "degree"), [(5, 2), (7, 2), (6, 4), (8, 4), (8, 6)])
def test_no_way_to_cut_a_circle_opens_a_part(clients, degree):
    tried, opened = cuts(clients, degree)
    assert tried > 100
    assert opened == 0


@pytest.mark.parametrize(("clients", "degree", "below"), [(5, 2, 1), (9, 4, 1), (8, 6, 2)])
def test_below_that_threshold_a_part_opens(clients, degree, below):
    assert cuts(clients, degree, below)[1] > 0


def test_a_search_on_larger_circles_finds_parts_below_the_threshold_and_none_from_it_on():
    tried, opened = searched(40, 8, 0.05, 4000, np.random.default_rng(1))
    assert tried > 1000
    assert opened == 0
    assert searched(40, 8, 0.05, 4000, np.random.default_rng(1), below=2)[1] > 0
