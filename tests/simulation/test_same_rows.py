"""Rows are known again at another scale, and nothing else is taken for them."""

import numpy as np
import pytest
import torch

from privfl.simulation.same_rows import Columns, alike, alike_by_columns, usual_deviations

ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 9)))
OTHERS = torch.from_numpy(np.random.default_rng(1).normal(size=(300, 9)))


def in_float32(rows):
    return rows.float().double()


def with_value(rows, value, spread):
    return torch.cat([value + spread * rows[:, :1], rows], dim=1)


@pytest.mark.parametrize("factor", [1.0, 0.02, 4096.0])
@pytest.mark.parametrize("offset", [0.0, 7.0])
def test_an_example_is_known_at_every_positive_factor_and_offset(factor, offset):
    rows = in_float32(factor * ROWS[100:] + offset)
    assert alike(in_float32(ROWS), rows).tolist() == [False] * 100 + [True] * 200
    assert not alike(in_float32(OTHERS), rows).any()
    assert not alike(in_float32(ROWS), -rows).any()


@pytest.mark.parametrize("value", [1e4, 1.7e9, 1e12])
def test_a_huge_value_blurs_no_other(value):
    dated = with_value(ROWS, value, value / 100)
    rows = in_float32(0.3 * dated[:50])
    assert alike(in_float32(dated), rows).tolist() == [True] * 50 + [False] * 250
    assert not alike(in_float32(with_value(OTHERS, value, value / 100)), rows).any()
    # Of another one with the same date and half of the other values no scale is the same.
    half = torch.cat([dated[:, :5], OTHERS[:, :5]], dim=1)
    assert not alike(in_float32(dated), in_float32(0.3 * half)).any()


def test_examples_of_few_values_and_those_that_rounding_blurs_are_known_by_their_equal_only():
    for examples in (ROWS[:, :3], ROWS + 1e6):
        examples = in_float32(examples)
        assert alike(examples, examples[:10]).tolist() == [True] * 10 + [False] * 290
        assert not alike(examples, in_float32(3 * examples)).any()


def test_examples_without_a_middle_are_known_by_their_equal_only():
    blank = torch.zeros(20, 9)
    blank[range(20), [*range(1, 9), *range(1, 9), 1, 2, 3, 4]] = torch.arange(1.0, 21)
    blank[:, 0] += 1e9
    assert alike(blank.double(), blank[:4].double()).tolist() == [True] * 4 + [False] * 16


def test_columns_are_those_of_the_whole_table_however_it_is_cut():
    found = Columns.of(torch.split(ROWS, 77))
    torch.testing.assert_close(found.means, ROWS.mean(0))
    torch.testing.assert_close(found.deviations, ROWS.std(0, correction=0))
    torch.testing.assert_close(found.largest, ROWS.abs().amax(0))


def found_by_columns(examples, table, other):
    own, pieces = Columns.of([table]), torch.split(other, 100)
    return alike_by_columns(examples, own, pieces, Columns.of(pieces))


def test_rows_of_a_whole_table_are_known_with_a_scale_for_each_column():
    scales, offsets = torch.logspace(-1, 4, 9) * torch.tensor([1, -1] * 4 + [1]), torch.linspace(-5, 5, 9)
    other = in_float32(ROWS.flip(0) * scales + offsets)
    assert found_by_columns(ROWS[:40], ROWS, other).all()
    assert not found_by_columns(ROWS[:40], ROWS, in_float32(OTHERS * scales)).any()
    assert not found_by_columns(ROWS[:40], ROWS, other[:150]).any()  # no whole table has the same means
    assert not found_by_columns(OTHERS[:40], ROWS, other).any()


def test_columns_that_say_nothing_are_left_out_and_three_must_say_something():
    far = torch.cat([ROWS[:, :3] + 1e9, ROWS[:, 3:6], torch.ones(300, 3)], dim=1)
    other = in_float32(5 * far)
    assert found_by_columns(in_float32(far[:40]), in_float32(far), other).all()
    assert not found_by_columns(in_float32(far[:40, :5]), in_float32(far[:, :5]), other[:, :5]).any()


def test_outliers_do_not_make_a_deviation_unusual():
    rows = torch.cat([ROWS, torch.full((10, 9), 1e9, dtype=torch.float64)])
    assert (usual_deviations(rows) < 4).all()
    assert (usual_deviations(ROWS) > 1).all()
