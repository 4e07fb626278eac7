"""Discretised losses of single events equal dp_accounting's, or lie between its lower and upper rounding."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special

from privfl.privacy.accounting import loss
from privfl.privacy.accounting.events import EpsilonDeltaDpEvent
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT, sampled

RR = dp.RandomizedResponseDpEvent(0.5, 10)


def dense(pmf):
    pmf = pmf.to_dense_pmf()
    return pmf._lower_loss, pmf._probs, pmf._infinity_mass


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.99])
@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_vectorised_poisson_gaussian_losses_are_those_of_dp_accounting(rate, noise):
    step = 2.0**-6 * min(1.0, 1 / noise)
    theirs = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=step)
    ours = loss.losses(sampled(rate, noise), step)
    for one, pmf in zip(ours, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        lower, probs, infinity = dense(pmf)
        assert (one.lower, len(one.probs)) == (lower, len(probs))
        # dp_accounting computes divergences with an absolute error of 1e-16, divided here by the step
        np.testing.assert_allclose(one.probs, probs, rtol=1e-8, atol=2e-15 / step)
        assert one.infinity == pytest.approx(infinity, abs=1e-20)


def test_moments_of_a_loss_are_those_of_scipys_sums():
    step, exponents = 2.0**-8, np.array([-40.0, -1.0, 1e-3, 1.0, 700.0])
    for one in loss.losses(sampled(0.1, 0.8), step):
        present = np.flatnonzero(one.probs)
        values = (one.lower + present) * step
        expected = [special.logsumexp(exponent * values, b=one.probs[present]) for exponent in exponents]
        np.testing.assert_allclose(loss.log_moments(one, step, exponents), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("event", "relation"),
    [(RR, REPLACE), (RR, ZERO_OUT), (dp.RandomizedResponseDpEvent(0.3, 2), REPLACE)],
    ids=str,
)
def test_connected_randomised_response_lies_between_rounding_down_and_rounding_up(event, relation):
    step = 0.01
    remove, add = loss.losses((event, relation), step)
    bounds = [
        pld.from_randomized_response(
            event.noise_parameter,
            event.num_buckets,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )
        for pessimistic in (False, True)
    ]
    grid = np.arange(-300, 300) * step + step / 3
    for one, name in ((remove, "_pmf_remove"), (add, "_pmf_add")):
        values = (one.lower + np.arange(len(one.probs))) * step
        ours = np.array([np.sum(one.probs * np.maximum(0, -np.expm1(epsilon - values))) for epsilon in grid])
        low, high = (np.array(getattr(bound, name).get_delta_for_epsilon(list(grid))) for bound in bounds)
        assert (ours >= low - 1e-12).all()
        assert (ours <= high + 1e-12).all()


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_an_epsilon_delta_mechanism_is_charged_its_worst_case(delta):
    remove, add = loss.losses((EpsilonDeltaDpEvent(1.0, delta), REPLACE), 0.125)
    assert remove is add
    values = (remove.lower + np.arange(len(remove.probs))) * 0.125
    likely = math.e / (1 + math.e)
    np.testing.assert_allclose(values[remove.probs > 1e-12], [-1.0, 1.0])
    np.testing.assert_allclose(remove.probs[remove.probs > 1e-12], (1 - delta) * np.array([1 - likely, likely]))
    assert remove.infinity == pytest.approx(delta, abs=1e-15)


def test_numbers_beyond_the_range_of_floats_claim_nothing():
    probs = np.array([0.5, math.nan])
    assert loss._connect_dots(probs, 0, 0.1).infinity == 1.0


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        ((dp.LaplaceDpEvent(0.5), ADD_REMOVE), 2.0),
        ((dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(0.5)), ADD_REMOVE), math.log(1 + 0.1 * math.expm1(2))),
        ((DiscreteLaplaceDpEvent(0.5, 3), ADD_REMOVE), 1.5),
        ((RR, REPLACE), math.log(11)),
        ((EpsilonDeltaDpEvent(0.7), REPLACE), 0.7),
        ((EpsilonDeltaDpEvent(0.7, 1e-9), REPLACE), math.inf),
        ((dp.ZCDpEvent(0.0, 0.3), REPLACE), 0.3),
        (sampled(0.1, 1.0), math.inf),
    ],
    ids=lambda case: str(case)[:60],
)
def test_pure_losses_are_the_closed_forms(kind, largest):
    assert loss.pure_loss(kind) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-12, 1.0, 30.0, 36.0, 300.0])
def test_the_worst_case_of_a_pure_mechanism_has_its_loss(epsilon):
    upper, lower, _ = loss._worst_pair(EpsilonDeltaDpEvent(epsilon), REPLACE)
    assert math.log(upper[0] / lower[0]) == pytest.approx(epsilon, rel=1e-12, abs=1e-15)


def test_zero_out_over_very_many_values_has_two_directions():
    remove, add = loss.losses((dp.RandomizedResponseDpEvent(0.9, 10**10), ZERO_OUT), 0.125)
    assert remove is not add
