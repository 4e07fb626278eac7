"""Sums that do not depend on order: equal bits for every order and division, close to the true sum, range checked."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch

from privfl import compiling
from privfl.engine import order_free_sum
from privfl.engine.order_free_sum import _CHUNK, AT_ONCE, DEPTH, LARGEST, SMALLEST, WIDTH, OrderFreeSum, range_of
from tests.device.stand_in import CUDA, stand_in_cuda


def sum_of(summands, factor=1.0):
    found = OrderFreeSum()
    for value in summands:
        found.add(value, factor, range_of(value, factor))
    return found


def random_summands(count, length=200, seed=0):
    """Vectors whose lengths lie up to 2⁴⁰ apart."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(length, generator=generator) * 2.0 ** int(torch.randint(-30, 10, (1,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("factor", [1.0, 1 / 3, 37.0])
def test_every_order_and_every_division_gives_the_same_bits(factor):
    values = random_summands(5)
    expected = sum_of(values, factor).total()
    for order in permutations(values):
        assert torch.equal(sum_of(order, factor).total(), expected)
    for cut in range(1, 5):
        first, second = sum_of(values[:cut], factor), sum_of(values[cut:], factor)
        second.merge(first)
        assert torch.equal(second.total(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0, 1, 7, 5386, 70_001])
@pytest.mark.parametrize("factor", [1.0, 1 / 3])
def test_the_compiled_loop_has_the_same_bits(length, factor, dtype, monkeypatch):
    values = [value.to(dtype) / 3 for value in random_summands(5, length)]
    monkeypatch.setattr(compiling, "ENOUGH", math.inf)
    expected = sum_of(values, factor).total()
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    assert compiling.compiled(order_free_sum._add_rounded) is not None, "the development tools bring Numba"
    assert torch.equal(sum_of(values, factor).total(), expected)


@pytest.fixture
def filled():
    """What nobody has written to is not a number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 2 * AT_ONCE + 3])
def test_large_summands_wait_for_each_other_and_the_bits_stay(count, monkeypatch, filled):
    several = random_summands(7, 12)
    values = [several[place % 7] for place in range(count)]
    expected, more = sum_of(values, 1 / 3).total(), sum_of([*values, values[0]], 1 / 3).total()
    parts = sum_of(values, 1 / 3).parts
    monkeypatch.setattr(order_free_sum, "MANY", 12)
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    found, half = sum_of(values, 1 / 3), sum_of(values[: count // 2], 1 / 3)
    assert any(found.waiting.values())
    assert all(len(waiting) < order_free_sum.TOGETHER for waiting in found.waiting.values())
    assert torch.equal(found.total(), expected)
    half.merge(sum_of(values[count // 2 :], 1 / 3))
    assert torch.equal(half.total(), expected)
    found.add(values[0], 1 / 3, range_of(values[0], 1 / 3))
    for dtype in (torch.float64, torch.float32):
        assert torch.equal(found.total(dtype), more.to(dtype))
    found.settle()
    assert torch.equal(found.total(), more)
    assert not found.waiting
    assert found.parts.keys() == parts.keys()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_what_waits_and_what_does_not_come_to_one_sum(first, monkeypatch, filled):
    one, two = random_summands(1, 12)[0], random_summands(1, 24)[0]
    values = [one, two[::2], one.double()]  # those with gaps between their numbers, and wide ones, do not wait
    values = values[first:] + values[:first]
    expected = sum_of(values, 1 / 3).total()
    monkeypatch.setattr(order_free_sum, "MANY", 12)
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    found = sum_of(values, 1 / 3)
    assert any(found.waiting.values())
    assert torch.equal(found.total(), expected)
    assert expected.isfinite().all()


def test_sums_of_four_stay_exact_beyond_what_one_float64_holds(monkeypatch):
    monkeypatch.setattr(order_free_sum, "MANY", 3)
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    for count in (AT_ONCE - 2, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5):
        large, small = torch.tensor([2.0**WIDTH - 2.0**-16]), torch.tensor([2.0 ** (WIDTH - DEPTH)])
        mixed = torch.cat([large, -large, small])
        whole = sum_of([mixed.clone() for _ in range(count)])
        total = whole.total()
        assert total.tolist() == [float(Fraction(float(value)) * count) for value in mixed]
        whole.settle()
        part = whole.parts[WIDTH]
        high = torch.zeros(3, dtype=torch.float64) if part.high is None else part.high
        assert part.count <= AT_ONCE
        assert [Fraction(a) + Fraction(b) for a, b in zip(part.low.tolist(), high.tolist(), strict=True)] == [
            Fraction(float(value)) * count for value in mixed
        ]


def test_a_part_of_a_stack_and_what_is_small_never_waits(monkeypatch):
    monkeypatch.setattr(order_free_sum, "MANY", 12)
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    stack = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    assert not sum_of(stack).waiting
    assert not sum_of([stack[0, :11].clone()]).waiting
    assert not sum_of([stack.t()]).waiting
    assert sum_of([stack[0].clone()]).waiting


def test_the_compiled_loop_rounds_the_product_and_each_sum():
    """Fused, a product of 53 bits and the shift would be rounded once."""
    import numba

    one = numba.njit(error_model="numpy")(order_free_sum._add_rounded)
    one(np.zeros(64), np.ones(64, dtype=np.float32), 1 / 3, 1.5)
    four = numba.njit(error_model="numpy")(order_free_sum._add_four_rounded)
    four(np.zeros(64), (np.ones(64, dtype=np.float32),) * 4, (1 / 3,) * 4, 1.5)
    for fresh in (one, four):
        rounds_each(fresh)


def rounds_each(fresh):
    assert not fresh.targetoptions.get("fastmath")
    (text,) = fresh.inspect_asm().values()
    assert "mul" in text
    assert "fmadd" not in text
    assert "fmsub" not in text


def test_plain_float64_sums_of_the_same_summands_do_depend_on_order():
    """The statement above is no accident of the summands."""
    values = [value.double() / 3 for value in random_summands(5)]
    assert len({tuple(sum(order[1:], order[0]).tolist()) for order in permutations(values)}) > 1


def test_the_error_is_below_what_the_grid_promises():
    values, factor = random_summands(20, length=30), 1 / 3
    found = sum_of(values, factor).total()
    bound = sum(float(value.abs().max()) for value in values) * factor * 2.0 ** (WIDTH - DEPTH - 1)
    for place in range(30):
        true = sum((Fraction(float(value[place]) * factor) for value in values), Fraction(0))
        assert abs(Fraction(float(found[place])) - true) <= Fraction(bound)


def test_a_summand_in_float64_loses_nothing_of_what_float64_holds():
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(30, generator=generator, dtype=torch.float64) / 3 for _ in range(7)]
    expected = sum_of(values).total()
    for order in (values[::-1], values[3:] + values[:3]):
        assert torch.equal(sum_of(order).total(), expected)
    for place in range(30):
        true = sum((Fraction(float(value[place])) for value in values), Fraction(0))
        assert abs(Fraction(float(expected[place])) - true) <= 4 * abs(true) * Fraction(2) ** -53 + Fraction(2) ** -75


def test_sums_stay_exact_beyond_what_one_float64_holds():
    """Three times as many summands as one float64 holds, of the largest and the smallest size: nothing is lost."""
    large, small = torch.tensor([2.0**WIDTH - 2.0**-16]), torch.tensor([2.0 ** (WIDTH - DEPTH)])
    mixed = torch.cat([large, -large, small])
    count = 3 * AT_ONCE + 5
    whole = sum_of([mixed] * count)
    assert whole.parts.keys() == {WIDTH}
    part = whole.parts[WIDTH]
    assert [Fraction(a) + Fraction(b) for a, b in zip(part.low.tolist(), part.high.tolist(), strict=True)] == [
        Fraction(float(value)) * count for value in mixed
    ]
    parts = [
        sum_of([mixed] * (AT_ONCE - 1)),
        sum_of([mixed] * (count - 2 * AT_ONCE + 2)),
        sum_of([mixed] * (AT_ONCE - 1)),
    ]
    for one in parts[1:]:
        parts[0].merge(one)
    assert torch.equal(parts[0].total(), whole.total())


def test_a_range_depends_on_the_summand_alone_and_is_checked():
    assert range_of(torch.tensor([0.0]), 1.0) == SMALLEST
    assert range_of(torch.tensor([]), 1.0) == SMALLEST
    assert range_of(torch.tensor([0.1, -1.5]), 1.0) == WIDTH
    assert range_of(torch.tensor([0.5]), 1 / 3) == 0
    for wrong in (math.inf, -math.inf, math.nan):
        assert range_of(torch.tensor([1.0, wrong]), 1.0) is None
    assert range_of(torch.tensor([2.0**LARGEST], dtype=torch.float64), 1.0) is None
    assert range_of(torch.tensor([1e30]), 1e300) is None
    tiny = torch.tensor([2.0**-1000], dtype=torch.float64)
    assert range_of(tiny, 1.0) == SMALLEST
    assert float(sum_of([tiny, torch.tensor([1.0])]).total()) == 1.0


def test_scalars_and_tensors_of_any_shape_and_both_types_are_added():
    assert float(sum_of([torch.tensor(0.5), torch.tensor(0.25)]).total()) == 0.75
    matrix = torch.arange(6.0).view(2, 3).t()
    found = sum_of([matrix, matrix.double()])
    assert torch.equal(found.total(), 2 * matrix.double())
    assert (found.dtype, sum_of([matrix]).dtype) == (torch.float64, torch.float32)
    with pytest.raises(ValueError, match="a sum of nothing"):
        OrderFreeSum().total()


def test_a_sum_does_not_change_its_summands_nor_what_was_read_of_it():
    value = torch.tensor([0.1, 0.2])
    found = sum_of([value])
    before = found.total()
    found.add(value, 1.0, range_of(value, 1.0))
    assert value.tolist() == torch.tensor([0.1, 0.2]).tolist()
    assert not torch.equal(found.total(), before)
    assert torch.equal(before, sum_of([value]).total())


def test_a_device_adds_up_in_a_few_kernels_what_a_processor_adds_in_pieces():
    values = torch.randn(3, 2 * _CHUNK + 5, generator=torch.Generator().manual_seed(0))
    here, there = OrderFreeSum(), OrderFreeSum()
    with stand_in_cuda() as counts:
        apart = values.to(CUDA)
        for value, other in zip(values, apart, strict=True):
            here.add(value, 0.7, range_of(value, 0.7))
            top = range_of(other, 0.7)
            counts.reset()
            there.add(other, 0.7, top)
            assert counts.launches.total() <= 6  # one of them makes zeros
            assert counts.waits.total() == 0
        assert torch.equal(there.total().cpu(), here.total())
