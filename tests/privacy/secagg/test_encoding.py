"""Sums of encoded vectors decode to the sums of the values: no wrap, no bias, and no error beyond the rounding's.

Statistical tests fix the key; false alarm at most 1e-6 over keys.
"""

import dataclasses
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.encoding import Encoding, FieldRange
from privfl.privacy.secagg.errors import BadVector
from privfl.privacy.secagg.rounding import rounded_norm_bound


def stream(*labels):
    return NoiseSource.from_key(2026).stream("encoding", *labels)


def ring_sum(encoding: Encoding, vectors) -> np.ndarray:
    """The sum in Python's integers, reduced once."""
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    return np.array([sum(column) % 2**encoding.bits for column in columns], dtype=encoding.word)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.parametrize("cohort", [1, 2, 3])
def test_every_sum_over_a_tiny_ring_is_decoded(bits: int, cohort: int) -> None:
    if cohort > 2 ** (bits - 1) - 1:
        with pytest.raises(ConfigError, match="take more bits"):
            Encoding.for_cohort([FieldRange("x", 1, 1.0)], cohort, bits)
        return
    encoding = Encoding.for_cohort([FieldRange("x", 1, 1.0)], cohort, bits)
    step = encoding.step["x"]
    most = int(1 / step)
    for integers in product(range(-most, most + 1), repeat=cohort):
        vectors = [encoding.encode({"x": np.array([number * step])}, stream("tiny")) for number in integers]
        assert encoding.decode(ring_sum(encoding, vectors), cohort)["x"].tolist() == [sum(integers) * step]


@pytest.mark.parametrize("bits", [8, 17, 31, 32, 33, 48, 64])
@pytest.mark.parametrize(
    ("cohort", "bound", "noise"), [(1, 1.0, 0.0), (100, 0.3, 0.0), (100, 3.7, 20.0), (7, 1e6, 1e3)]
)
def test_the_step_is_the_smallest_power_of_two_that_cannot_overflow(
    bits: int, cohort: int, bound: float, noise
) -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 3, bound, noise)], cohort, bits)
    step = Fraction(encoding.step["x"])

    def fits(step: Fraction) -> bool:
        largest = math.ceil(Fraction(bound) / step)
        return largest <= 2**52 and cohort * largest + math.ceil(Fraction(noise) / step) <= 2 ** (bits - 1) - 1

    assert math.log2(step) == round(math.log2(step))
    assert fits(step)
    assert not fits(step / 2)
    with pytest.raises(ConfigError, match=r"may wrap|no power of two"):
        Encoding(encoding.fields, cohort, bits, (float(step / 2),))


@pytest.mark.parametrize("bits", [9, 16, 32, 40, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_cohort_at_the_end_of_its_range_does_not_wrap(bits: int, sign: int) -> None:
    cohort, bound = 100, 0.7
    encoding = Encoding.for_cohort([FieldRange("x", 50, bound)], cohort, bits)
    values = {"x": np.full(50, sign * bound)}
    total = ring_sum(encoding, [encoding.encode(values, stream(bits, client)) for client in range(cohort)])
    error = encoding.decode(total, cohort)["x"] - sign * cohort * bound
    assert np.abs(error).max() <= cohort * encoding.step["x"]


@pytest.mark.parametrize("bits", [12, 32, 64])
def test_several_fields_lie_in_one_vector_and_the_sums_differ_by_less_than_a_step_a_client(bits: int) -> None:
    fields = [FieldRange("update", 6, 1.0), FieldRange("weight", 1, 200.0), FieldRange("counts", 3, 10.0)]
    encoding = Encoding.for_cohort(fields, 5, bits)
    assert encoding.length == 10
    assert encoding.slices == {"update": slice(0, 6), "weight": slice(6, 7), "counts": slice(7, 10)}
    draws = np.random.default_rng(bits)
    clients = [
        {
            "update": torch.tensor(draws.uniform(-1, 1, (2, 3)), dtype=torch.float32),
            "weight": torch.tensor(draws.uniform(0, 200, 1), dtype=torch.float64),
            "counts": draws.integers(0, 10, 3).astype(np.float32),
        }
        for _ in range(4)
    ]
    vectors = [encoding.encode(values, stream("several", place)) for place, values in enumerate(clients)]
    assert {vector.dtype for vector in vectors} == {np.dtype(np.uint32 if bits <= 32 else np.uint64)}
    decoded = encoding.decode(ring_sum(encoding, vectors), 4)
    for field in fields:
        exact = np.sum([np.asarray(values[field.name], np.float64).reshape(-1) for values in clients], axis=0)
        assert np.abs(decoded[field.name] - exact).max() < 4 * encoding.step[field.name]


def test_what_lies_on_the_grid_comes_back_bit_for_bit() -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 1000, 8.0)], 10, 64)
    values = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))  # float32 within a grid of 2^-46
    total = ring_sum(encoding, [encoding.encode({"x": row}, stream("grid")) for row in values])
    assert encoding.step["x"] <= 2**-46
    exact = [float(sum(map(Fraction, column))) for column in values.T.tolist()]
    assert encoding.decode(total, 3)["x"].tolist() == exact


def test_the_error_of_the_sum_has_mean_zero_and_at_most_the_stated_deviation() -> None:
    """Values half way between two multiples of the step are the worst case: standard deviation √n/2 steps exactly."""
    n, length = 16, 50_000
    encoding = Encoding.for_cohort([FieldRange("x", length, 1.0)], n, 10)
    step = encoding.step["x"]
    for value, deviation in ((2.5 * step, math.sqrt(n) / 2), (-1.25 * step, math.sqrt(n * 3 / 16))):
        integers = [encoding.to_integers({"x": np.full(length, value)}, stream(str(value), i)) for i in range(n)]
        errors = np.sum(integers, axis=0) - n * value / step
        assert abs(errors.mean()) < stats.norm.isf(1e-6 / 8) * deviation / math.sqrt(length)
        statistic = (errors**2).sum() / deviation**2  # about χ² with `length` degrees, kurtosis below the normal's
        assert abs(statistic - length) < stats.norm.isf(1e-6 / 8) * math.sqrt(2 * length)
        assert np.abs(errors).max() < n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_outside_are_clipped_to_the_range(dtype: torch.dtype) -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 4, 0.5)], 3, 16)
    vector = encoding.encode({"x": torch.tensor([0.6, -1e30, 0.5, -0.25], dtype=dtype)}, stream("clip"))
    assert encoding.decode(vector, 1)["x"].tolist() == [0.5, -0.5, 0.5, -0.25]


def test_a_field_that_refuses_makes_the_client_a_broken_one_without_telling_the_value() -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 2, 0.5, outside="refuse")], 3, 16)
    encoding.encode({"x": torch.tensor([0.5, -0.5])}, stream("refuse"))
    with pytest.raises(BadVector, match=r"outside its range of ±0\.5") as refused:
        encoding.encode({"x": torch.tensor([0.0, -0.6])}, stream("refuse"))
    assert "0.6" not in str(refused.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("outside", ["clip", "refuse"])
@pytest.mark.parametrize("norms", [None, {"x": 0.4}])
def test_what_is_not_finite_is_refused(bad: float, outside, norms) -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 3, 0.5, outside=outside)], 3, 16)
    with pytest.raises(BadVector, match="not finite"):
        encoding.encode({"x": torch.tensor([0.0, bad, 0.1])}, stream("bad"), norms)


def test_a_field_with_a_norm_is_clipped_and_stays_within_the_rounded_bound() -> None:
    fields = [FieldRange("update", 5000, 2.0), FieldRange("weight", 1, 1.0)]
    encoding = Encoding.for_cohort(fields, 20, 14)
    step = encoding.step["update"]
    values = {"update": torch.ones(5000) * 0.1, "weight": torch.tensor([0.75])}
    integers = encoding.to_integers(values, stream("norm"), {"update": 2.0})
    update = integers[encoding.slices["update"]]
    assert math.sqrt(sum(int(number) ** 2 for number in update)) <= rounded_norm_bound(2.0 / step, 5000)
    assert integers[-1] * encoding.step["weight"] == 0.75


def test_a_norm_for_a_field_that_does_not_exist_is_refused() -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 1, 1.0)], 3, 16)
    with pytest.raises(ConfigError, match="those with a norm"):
        encoding.encode({"x": torch.zeros(1)}, stream("norm"), {"y": 1.0})


def test_noise_within_the_room_kept_for_it_cannot_make_the_sum_wrap() -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 2, 1.0, noise=5.0)], 10, 16)
    step = encoding.step["x"]
    noise = np.array([math.floor(5 / step), -math.floor(5 / step)])
    values = {"x": np.array([1.0, -1.0])}
    integers = [encoding.to_integers(values, stream(client)) for client in range(10)]
    vectors = [encoding.to_ring(one + (noise if place == 3 else 0)) for place, one in enumerate(integers)]
    assert encoding.decode(ring_sum(encoding, vectors), 10)["x"].tolist() == [
        10 + noise[0] * step,
        -10 + noise[1] * step,
    ]


def test_a_sum_that_the_clients_cannot_have_made_is_refused() -> None:
    encoding = Encoding.for_cohort([FieldRange("x", 1, 1.0)], 10, 16)
    total = encoding.to_ring(np.array([2 * int(1 / encoding.step["x"]) + 1]))
    assert encoding.decode(total, 3)["x"] == 2 + encoding.step["x"]
    for bad in (total, encoding.to_ring(-np.array([2 * int(1 / encoding.step["x"]) + 1]))):
        with pytest.raises(BadVector, match="larger than 2 clients"):
            encoding.decode(bad, 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FieldRange("x", 0, 1.0), "length 0"),
        (lambda: FieldRange("x", 1, 0.0), "bound 0.0"),
        (lambda: FieldRange("x", 1, math.nan), "bound nan"),
        (lambda: FieldRange("x", 1, 1.0, -1.0), "noise up to -1.0"),
        (lambda: FieldRange("x", 1, 1.0, outside="drop"), "give 'clip' or 'refuse'"),
        (lambda: Encoding.for_cohort([], 3, 8), "at least one"),
        (lambda: Encoding.for_cohort([FieldRange("x", 1, 1.0)] * 2, 3, 8), "a name of its own"),
        (lambda: Encoding.for_cohort([FieldRange("x", 1, 1.0)], 0, 8), "0 clients"),
        (lambda: Encoding.for_cohort([FieldRange("x", 1, 1.0)], 3, 65), "65 bits"),
        (lambda: Encoding.for_cohort([FieldRange("x", 1, 1.0)], 3, 1), "1 bits"),
        (lambda: Encoding.for_cohort([FieldRange("x", 1, 1.0)], 128, 8), "do not hold a sum over 128"),
        (lambda: Encoding((FieldRange("x", 1, 1.0),), 3, 8, ()), "0 steps"),
        (lambda: Encoding((FieldRange("x", 1, 1.0),), 3, 8, (0.3,)), "no power of two"),
    ],
)
def test_impossible_encodings_are_refused(make, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"y": torch.zeros(3)},
        {"x": torch.zeros(3), "y": torch.zeros(1)},
        {"x": torch.zeros(2)},
        {"x": torch.zeros(3, dtype=torch.int64)},
        {"x": torch.zeros(3, dtype=torch.float16)},
    ],
)
def test_other_fields_than_those_declared_are_refused(values) -> None:
    with pytest.raises(ConfigError):
        Encoding.for_cohort([FieldRange("x", 3, 1.0)], 3, 8).encode(values, stream("fields"))


@pytest.mark.parametrize(
    ("total", "count"),
    [
        (np.zeros(2, np.uint32), 1),
        (np.zeros(3, np.uint64), 1),
        (np.zeros(3, np.uint32), 4),
        (np.zeros(3, np.uint32), -1),
    ],
)
def test_other_sums_than_the_encodings_are_refused(total, count: int) -> None:
    with pytest.raises(ConfigError):
        Encoding.for_cohort([FieldRange("x", 3, 1.0)], 3, 8).decode(total, count)


def test_encodings_that_differ_in_anything_have_different_digests():
    base = Encoding.for_cohort([FieldRange("a", 3, 1.0), FieldRange("b", 2, 1.0)], 10)
    fields = base.fields
    others = [
        dataclasses.replace(base, **change)
        for change in (
            {"bits": 33},
            {"cohort": 9},
            {"steps": (base.steps[0] * 2, base.steps[1])},
            {"fields": fields[::-1]},
            *(
                {"fields": (dataclasses.replace(fields[0], **one), fields[1])}
                for one in ({"name": "c"}, {"length": 4}, {"bound": 0.5}, {"noise": 0.001}, {"outside": "refuse"})
            ),
        )
    ]
    assert len({one.digest for one in [base, *others]}) == 10
    same = FieldRange("a", 3, np.float64(1.0)), FieldRange("b", 2, 1.0)
    assert dataclasses.replace(base, fields=same).digest == base.digest, "whatever type of float it is"


def test_a_bound_whose_sum_no_float_holds_is_refused():
    for bits in (32, 64):
        with pytest.raises(ConfigError, match=r"1\.7e\+308 over 2 clients exceeds the largest float64"):
            Encoding.for_cohort([FieldRange("a", 3, 1.7e308)], 2, bits)
