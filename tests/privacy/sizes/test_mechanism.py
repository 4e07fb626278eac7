"""Ranges, bounds, refusals and warnings that all size mechanisms share, and the sampling rate."""

import math

import numpy as np
import pytest

from privfl.errors import ConfigError, DataError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.estimate import Rate, sampling_rate
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS, LaplaceSize, PiecewiseSize
from privfl.privacy.sizes.randomized_response import RandomizedResponse

STREAM = NoiseSource.from_key(1).stream("test")


def test_the_two_conventions_differ_in_the_upper_end():
    paper, code = RandomizedResponse(3.0, 100), RandomizedResponse(3.0, 100, convention="code")
    assert (paper.range.lo, paper.range.hi, paper.range.domain) == (1, 100, 100)
    assert (code.range.lo, code.range.hi, code.range.domain) == (1, 99, 99)
    assert code.alpha == pytest.approx((math.e**3 - 1) / (math.e**3 + 98), rel=1e-12)
    assert RandomizedResponse(3.0, 100, lower=0).range.domain == 101


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0}, "epsilon 0"),
        ({"epsilon": -1.0}, "epsilon -1"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": 33.0}, "or inf for no protection"),
        ({"bound": 1}, "at least 2"),
        ({"bound": 2, "convention": "code"}, "at least 3"),
        ({"bound": 2.5}, "bound is 2.5; give a whole number"),
        ({"lower": -1}, "no size is negative"),
        ({"convention": "papr"}, "did you mean 'paper'"),
        ({"refresh": "every_rond"}, "did you mean 'every_round'"),
        ({"refresh": 0}, "use 1 or more"),
        ({"refresh": 1.5}, "refresh is 1.5; give 'once' or 'every_round' or a whole number"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(name, arguments, message):
    with pytest.raises(ConfigError, match=message):
        SIZE_MECHANISMS[name](**({"epsilon": 3.0, "bound": 100} | arguments))


@pytest.mark.parametrize("sizes", [[-1], [1.5], [math.nan], [1e30], ["3"], [[1, 2]], 3])
def test_sizes_that_are_no_sizes_are_refused(sizes):
    with pytest.raises(DataError, match="size"):
        RandomizedResponse(3.0, 100).respond(sizes, STREAM)


def test_whole_numbers_stored_as_floats_are_sizes():
    assert RandomizedResponse(math.inf, 100).respond(np.array([3.0, 4.0]), STREAM).tolist() == [3, 4]


# --- the estimate ----------------------------------------------------------------------------------------------------


def test_estimates_between_the_public_bounds_pass_unchanged():
    estimate = LaplaceSize(3.0, 100).estimate([10.5, 20.0])
    assert (estimate.raw, estimate.value, estimate.clients) == (30.5, 30.5, 2)
    assert (estimate.floored, estimate.capped) == (False, False)


def test_estimates_below_one_sample_per_client_are_floored():
    estimate = LaplaceSize(3.0, 100).estimate([-10.0, 4.0, 1.0])
    assert (estimate.raw, estimate.value, estimate.floored, estimate.capped) == (-5.0, 3.0, True, False)


def test_estimates_are_at_least_one_even_where_clients_may_be_empty():
    estimate = LaplaceSize(3.0, 100, lower=0).estimate([-1.0, 1.0])
    assert (estimate.value, estimate.floored) == (1.0, True)


def test_estimates_above_the_bound_for_every_client_are_capped():
    estimate = LaplaceSize(3.0, 100).estimate([150.0, 90.0])
    assert (estimate.raw, estimate.value, estimate.floored, estimate.capped) == (240.0, 200.0, False, True)


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_estimates_always_give_a_usable_sampling_rate(name):
    mechanism = SIZE_MECHANISMS[name](0.2, 50)
    for i in range(300):
        estimate = mechanism.estimate(mechanism.respond([1, 2, 3], NoiseSource.from_key(i).stream(name)))
        assert 3 <= estimate.value <= 150
        assert estimate.floored == (estimate.raw < 3)
        assert estimate.capped == (estimate.raw > 150)
        assert 0 < sampling_rate(20, estimate.value).value <= 1


def test_the_estimate_from_randomised_response_is_the_published_formula():
    mechanism = RandomizedResponse(3.0, 100, convention="code")
    alpha = 0.161625
    expected = (5 + 99 + 42 - 3 * (1 - alpha) * 50) / alpha
    assert mechanism.estimate([5, 99, 42]).raw == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "answer"), [("grr", 101), ("grr", 0), ("duchi", 500), ("laplace", math.inf)])
def test_answers_that_no_client_can_give_are_refused(name, answer):
    with pytest.raises(DataError, match=f"a size answer is {float(answer)}"):
        SIZE_MECHANISMS[name](3.0, 100).estimate([5, answer])


def test_no_answers_give_no_estimate():
    with pytest.raises(DataError, match="no client answered"):
        RandomizedResponse(3.0, 100).estimate([])


# --- precision and bias ----------------------------------------------------------------------------------------------


def test_the_worst_case_of_randomised_response_is_every_client_at_one_end():
    """Equation (6) by hand: α = 0.161625, D = 99, 500 clients."""
    alpha = (math.e**3 - 1) / (math.e**3 + 98)
    variance = ((1 - alpha) * (99**2 - 1) / 12 + alpha * (1 - alpha) * 49**2) / alpha**2
    mechanism = RandomizedResponse(3.0, 100, convention="code")
    assert mechanism.worst_case_relative_sd(500) == pytest.approx(math.sqrt(variance / 500), rel=1e-12)
    assert mechanism.variance(np.full(500, 99)) == pytest.approx(500 * variance, rel=1e-12)


def test_mechanisms_too_noisy_for_the_clients_are_refused_with_the_number_that_would_do():
    mechanism = RandomizedResponse(3.0, 100)
    with pytest.raises(ConfigError, match=r"RandomizedResponse with epsilon 3 and bound 100 over 500 clients") as error:
        mechanism.require_precision(500)
    enough = int(str(error.value).rsplit("or ", 1)[1].split()[0])
    mechanism.require_precision(enough)
    with pytest.raises(ConfigError):
        mechanism.require_precision(enough - 1)


def test_a_mechanism_made_for_sums_or_a_looser_limit_is_accepted():
    PiecewiseSize(3.0, 100).require_precision(5000)
    RandomizedResponse(3.0, 100).require_precision(500, max_relative_sd=20.0)
    with pytest.raises(ConfigError, match="at least one must answer"):
        PiecewiseSize(3.0, 100).require_precision(0)
    with pytest.raises(ConfigError, match=r"size mechanism\.$"):  # no number of clients is enough
        PiecewiseSize(3.0, 100).require_precision(500, max_relative_sd=1e-320)


def test_the_clipping_bias_counts_both_ends():
    mechanism = RandomizedResponse(3.0, 100)
    assert mechanism.clipping_bias([0, 1, 100, 101, 350]) == 1 - 1 - 250
    assert mechanism.clipping_bias([1, 100]) == 0


def test_clients_outside_the_range_are_reported_with_the_bias_they_cause():
    mechanism = RandomizedResponse(3.0, 100)
    above, below = mechanism.check_sizes([0, 0, 1, 100, 150, 400])
    assert above == (
        "2 of 6 clients hold more than 100 samples (up to 400), so the estimated total is 350 too low on average "
        "(53.8% of 651): raise the bound or accept the bias."
    )
    assert below == (
        "2 of 6 clients hold fewer than 1 samples, so the estimated total is 2 too high on average: "
        "lower the lower end to 0 or accept the bias."
    )
    assert mechanism.check_sizes([1, 100]) == []


# --- the sampling rate -----------------------------------------------------------------------------------------------


def test_the_rate_is_k_over_the_estimate_and_never_above_one():
    assert sampling_rate(2048, 102_400) == Rate(0.02, capped=False)
    assert sampling_rate(100, 100) == Rate(1.0, capped=False)
    assert sampling_rate(2048, 100) == Rate(1.0, capped=True)


def test_contacting_fewer_clients_raises_the_rate_of_each_sample():
    assert sampling_rate(1200, 120_000, contacted_fraction=0.1).value == pytest.approx(0.1)


@pytest.mark.parametrize("arguments", [(0, 10), (-5, 10), (5, 0), (5, math.nan), (5, 10, 0), (5, 10, 1.5)])
def test_impossible_rates_are_refused(arguments):
    with pytest.raises(ConfigError):
        sampling_rate(*arguments)
