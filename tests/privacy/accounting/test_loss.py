"""Discretised losses equal dp_accounting's, and their composition its own, within a bounded rounding error."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT, sampled
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import fft

from privfl.privacy.accounting import loss
from privfl.privacy.accounting.events import EpsilonDeltaDpEvent

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


MIXED = {
    sampled(0.1, 1.0): 40,
    (dp.LaplaceDpEvent(2.0), ADD_REMOVE): 5,
    (RR, ZERO_OUT): 3,
    (dp.PoissonSampledDpEvent(0.2, dp.LaplaceDpEvent(1.0)), ADD_REMOVE): 4,
    (DiscreteLaplaceDpEvent(0.5, 1), ADD_REMOVE): 2,
    (dp.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 2.0), ADD_REMOVE): 2,
    (dp.GaussianDpEvent(2.0), ADD_REMOVE): 1,
}


def composed_by_dp_accounting(kinds, step):
    total = pld.identity(value_discretization_interval=step)
    for kind, count in kinds.items():
        pmfs = []
        for one in loss.losses(kind, step):
            probs = {one.lower + place: mass for place, mass in enumerate(one.probs)}
            pmfs.append(loss.pld_pmf.create_pmf(probs, step, one.infinity, pessimistic_estimate=True))
        total = total.compose(pld.PrivacyLossDistribution(*pmfs).self_compose(count))
    return total


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_the_product_of_transforms_is_dp_accountings_step_by_step_convolution(delta):
    step = 2.0**-7
    theirs = composed_by_dp_accounting(MIXED, step)
    remove, add = loss.compose(MIXED, step, delta)
    for ours, pmf in ((remove, theirs._pmf_remove), (add, theirs._pmf_add)):
        assert ours.epsilon(delta)[0] == pytest.approx(pmf.get_epsilon_for_delta(delta), rel=2e-5)
        assert ours.epsilon(delta - ours.escaped)[0] >= pmf.get_epsilon_for_delta(delta) * (1 - 1e-9)
        assert ours.epsilon(delta + ours.escaped)[0] <= pmf.get_epsilon_for_delta(delta) * (1 + 1e-9)


def test_symmetric_histories_need_one_direction_and_mixtures_two():
    assert len(loss.compose({(RR, REPLACE): 3, (dp.LaplaceDpEvent(1.0), ADD_REMOVE): 1}, 2.0**-6, 1e-5)) == 1
    assert len(loss.compose({(RR, REPLACE): 3, sampled(0.1, 1.0): 1}, 2.0**-6, 1e-5)) == 2


@pytest.mark.parametrize(
    ("kinds", "step", "delta"),
    [
        ({sampled(0.04, 1.5): 2250}, 2.0**-8, 1e-5),
        ({sampled(0.006549, 1.0): 5000}, 2.0**-10, 1e-9),
        ({sampled(0.001, 1.0): 10**6}, 2.0**-11, 1e-7),
        ({sampled(0.001, 1.0): 10**5, sampled(0.1, 1.0): 300}, 2.0**-9, 1e-7),
    ],
    ids=lambda case: str(case)[:40],
)
@pytest.mark.parametrize("direction", [0, 1])
def test_the_stated_rounding_error_covers_that_against_transforms_of_80_bits(kinds, step, delta, direction):
    ours = loss._compose(kinds, direction, step, delta)
    length = 2 ** math.ceil(math.log2(len(ours.probs)))
    spectrum, lowest = np.ones(length, dtype=np.clongdouble), 0
    for kind, count in kinds.items():
        one = loss.losses(kind, step)[direction]
        probs = np.pad(one.probs, (0, -len(one.probs) % length)).reshape(-1, length).sum(axis=0)
        transform = fft.fft(probs.astype(np.longdouble), length)
        assert transform.dtype == np.clongdouble
        while count:  # power by repeated squaring
            spectrum = spectrum * transform if count & 1 else spectrum
            transform, count = transform * transform, count >> 1
        lowest += kinds[kind] * one.lower
    exact = np.roll(np.real(fft.ifft(spectrum)), (lowest - ours.lower) % length)[: len(ours.probs)]
    rounding = loss._ROUNDING * (sum(kinds.values()) + math.log2(length)) * math.sqrt(length)
    rounding *= float(np.linalg.norm(ours.probs))
    assert float(np.abs(ours.probs - exact).sum()) < rounding / 2


def test_the_window_leaves_out_no_more_than_it_says():
    for delta in (1e-3, 1e-6):
        kinds = {sampled(0.01, 0.5): 100}  # rare, large losses: the hardest case for a Chernoff bound
        for one in loss.compose(kinds, 2.0**-8, delta):
            assert 1 - one.escaped <= one.probs.sum() <= 1 + 1e-7  # noise is cut at 0, which adds mass, never takes it
            assert one.escaped < 2e-4 * delta


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
