"""Rounding has the value as its mean, and rounding within a bound never exceeds it.

Statistical tests fix the key; false alarm at most 1e-6 over keys.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.errors import BadVector
from privfl.privacy.secagg.rounding import round_within, rounded_norm_bound, stochastic_round


def stream(*labels):
    return NoiseSource.from_key(2021).stream("rounding", *labels)


@pytest.mark.parametrize("value", [0.5, 0.125, 2.75, -0.3, -7.9, 2**40 + 0.25, 1e-3])
def test_a_value_is_rounded_up_as_often_as_its_fraction_says(value: float) -> None:
    draws = 100_000
    rounded = stochastic_round(np.full(draws, value), stream(str(value)))
    assert set(rounded.tolist()) == {math.floor(value), math.floor(value) + 1}
    ups = int((rounded > value).sum())
    assert stats.binomtest(ups, draws, value - math.floor(value)).pvalue > 1e-6 / 7


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 2.0**52, -(2.0**52)])
def test_an_integer_stays_what_it_is(value: float) -> None:
    assert (stochastic_round(np.full(1000, value), stream("integer")) == int(value)).all()


def test_coins_are_independent() -> None:
    """The number of ups among 16 coordinates is binomial; chi-square over 20,000 vectors."""
    ups = stochastic_round(np.full((20_000, 16), 0.3), stream("independent")).sum(axis=1)
    counts = np.bincount(ups, minlength=17).astype(float)
    expected = stats.binom.pmf(np.arange(17), 16, 0.3) * len(ups)
    tail = 11  # beyond it fewer than 25 are expected
    counts, expected = (np.append(v[:tail], v[tail:].sum()) for v in (counts, expected))
    assert stats.chisquare(counts, expected).pvalue > 1e-6


@pytest.mark.parametrize("beta", [0.02, math.exp(-0.5), 0.95])
def test_a_draw_exceeds_the_bound_at_most_as_often_as_beta_says(beta: float) -> None:
    """All roundings of vectors of dimension 10, each with its probability."""
    for values in ([0.5] * 10, [0.1] * 10, [2.5, -1.5] * 5, [10.3] + [0.5] * 9, [0.01 * i for i in range(10)]):
        x = np.array(values)
        bound = rounded_norm_bound(float(np.linalg.norm(x)), 10, beta)
        fraction = x - np.floor(x)
        exceeding = 0.0
        for ups in product((0, 1), repeat=10):
            up = np.array(ups)
            if np.linalg.norm(np.floor(x) + up) > bound:
                exceeding += math.prod(np.where(up, fraction, 1 - fraction))
        assert exceeding <= beta + 1e-12


def test_the_bound_is_the_smaller_of_the_certain_and_the_likely_one() -> None:
    assert rounded_norm_bound(3.0, 4, 1e-12) == pytest.approx(5.0, rel=1e-10)  # 3 + √4
    beta = math.exp(-2)  # √(2 ln(1/β)) = 2
    assert rounded_norm_bound(30.0, 16, beta) == pytest.approx(math.sqrt(900 + 4 + 2 * 32), rel=1e-10)
    assert rounded_norm_bound(0.0, 4, beta) == pytest.approx(math.sqrt(1 + 2), rel=1e-10)


@pytest.mark.parametrize(
    "values",
    [
        np.full(40_000, 0.5),
        np.full(40_000, 1e-6),
        np.linspace(-3, 3, 40_000),
        np.full(40_000, 1e6),  # longer than the norm: clipped to it
        np.append(np.zeros(39_999), 1e30),
        np.zeros(40_000),
    ],
    ids=["halves", "tiny", "mixed", "long", "spike", "zero"],
)
@pytest.mark.parametrize("norm", [1.0, 100.0, 2.0**50])
def test_nothing_comes_out_longer_than_the_bound(values, norm: float) -> None:
    rounded = round_within(values, norm, stream("within"))
    bound = rounded_norm_bound(norm, values.size)
    assert sum(int(number) ** 2 for number in rounded) <= bound**2  # in exact integers
    scaled = values * min(1, norm / max(float(np.linalg.norm(values)), 1e-300))
    assert np.abs(rounded - scaled).max() < 1 + 1e-9 * norm


def test_a_vector_within_the_norm_is_rounded_to_its_neighbours_without_bias_where_the_bound_is_certain() -> None:
    values = np.array([0.25, -1.75, 3.5])
    drawn = np.array([round_within(values, 5.0, stream("mean", i), beta=1e-9) for i in range(4000)])
    assert np.abs(drawn - values).max() < 1
    errors = (drawn.mean(axis=0) - values) / np.sqrt(np.array([0.25, 0.25, 0.5]) * np.array([0.75, 0.75, 0.5]) / 4000)
    assert np.abs(errors).max() < stats.norm.isf(1e-6 / 6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(BadVector):
        round_within(np.array([0.0, bad]), 1.0, stream("bad"))


@pytest.mark.parametrize(
    ("norm", "dimension", "beta"),
    [(-1.0, 3, 0.5), (math.nan, 3, 0.5), (2.0**53, 3, 0.5), (1.0, 0, 0.5), (1.0, 3, 0.0), (1.0, 3, 1.0)],
)
def test_impossible_bounds_are_refused(norm: float, dimension: int, beta: float) -> None:
    with pytest.raises(ConfigError):
        rounded_norm_bound(norm, dimension, beta)


def test_a_rounding_that_is_too_long_is_drawn_again() -> None:
    """Four hundred halves, of which 200 ± 10 are rounded up: two draws in five exceed a bound so close to the mean."""
    halves, bound = np.full(400, 0.5), rounded_norm_bound(10.0, 400, 0.99)
    assert 202 < bound**2 < 204
    coins = NoiseSource.from_key(1)
    single = [float((stochastic_round(halves, coins.stream(i)) ** 2).sum()) for i in range(40)]
    assert max(single) > bound**2
    kept = [float((round_within(halves, 10.0, coins.stream(i), 0.99) ** 2).sum()) for i in range(40)]
    assert max(kept) <= bound**2
