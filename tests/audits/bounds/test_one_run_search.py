"""The search returns numbers that are refuted, whatever refutes them."""

import math

import pytest

from audits.bounds.one_run_search import largest_refuted


@pytest.mark.parametrize("limit", [1e-9, 0.3, 1.0, 17.0, 600.0])
def test_the_end_of_what_is_refuted_is_found_from_below(limit):
    found = largest_refuted(lambda value: value < limit)
    assert found < limit
    assert found == pytest.approx(limit, abs=1e-10 * max(limit, 1))


def test_nothing_refuted_is_zero_and_everything_refuted_is_finite():
    assert largest_refuted(lambda value: False) == 0
    assert math.isfinite(largest_refuted(lambda value: True))


def test_what_is_found_is_refuted_even_where_refutation_has_gaps():
    def refuted(value):
        return math.sin(50 * value) >= 0

    assert refuted(largest_refuted(refuted))
