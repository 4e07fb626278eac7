"""Composition equals dp_accounting's convolution step by step, within a bounded and tested rounding error."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import fft

from privfl.privacy.accounting import composition
from privfl.privacy.accounting.composition import compose
from privfl.privacy.accounting.loss import log_moments, losses
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT, sampled

RR = dp.RandomizedResponseDpEvent(0.5, 10)

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
        for one in losses(kind, step):
            probs = {one.lower + place: mass for place, mass in enumerate(one.probs)}
            pmfs.append(pld_pmf.create_pmf(probs, step, one.infinity, pessimistic_estimate=True))
        total = total.compose(pld.PrivacyLossDistribution(*pmfs).self_compose(count))
    return total


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_the_product_of_transforms_is_dp_accountings_step_by_step_convolution(delta):
    step = 2.0**-7
    theirs = composed_by_dp_accounting(MIXED, step)
    remove, add = compose(MIXED, step, delta)
    for ours, pmf in ((remove, theirs._pmf_remove), (add, theirs._pmf_add)):
        assert ours.epsilon(delta)[0] == pytest.approx(pmf.get_epsilon_for_delta(delta), rel=2e-5)
        assert ours.epsilon(delta - ours.escaped)[0] >= pmf.get_epsilon_for_delta(delta) * (1 - 1e-9)
        assert ours.epsilon(delta + ours.escaped)[0] <= pmf.get_epsilon_for_delta(delta) * (1 + 1e-9)


def test_symmetric_histories_need_one_direction_and_mixtures_two():
    assert len(compose({(RR, REPLACE): 3, (dp.LaplaceDpEvent(1.0), ADD_REMOVE): 1}, 2.0**-6, 1e-5)) == 1
    assert len(compose({(RR, REPLACE): 3, sampled(0.1, 1.0): 1}, 2.0**-6, 1e-5)) == 2


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
    ours = composition._compose(kinds, direction, step, delta)
    length = 2 ** math.ceil(math.log2(len(ours.probs)))
    spectrum, lowest = np.ones(length, dtype=np.clongdouble), 0
    for kind, count in kinds.items():
        one = losses(kind, step)[direction]
        probs = np.pad(one.probs, (0, -len(one.probs) % length)).reshape(-1, length).sum(axis=0)
        transform = fft.fft(probs.astype(np.longdouble), length)
        assert transform.dtype == np.clongdouble
        while count:  # power by repeated squaring
            spectrum = spectrum * transform if count & 1 else spectrum
            transform, count = transform * transform, count >> 1
        lowest += kinds[kind] * one.lower
    exact = np.roll(np.real(fft.ifft(spectrum)), (lowest - ours.lower) % length)[: len(ours.probs)]
    rounding = composition._ROUNDING * (sum(kinds.values()) + math.log2(length)) * math.sqrt(length)
    rounding *= float(np.linalg.norm(ours.probs))
    assert float(np.abs(ours.probs - exact).sum()) < rounding / 2


def test_the_window_leaves_out_no_more_than_it_says():
    for delta in (1e-3, 1e-6):
        kinds = {sampled(0.01, 0.5): 100}  # rare, large losses: the hardest case for a Chernoff bound
        for one in compose(kinds, 2.0**-8, delta):
            assert 1 - one.escaped <= one.probs.sum() <= 1 + 1e-7  # noise is cut at 0, which adds mass, never takes it
            assert one.escaped < 2e-4 * delta


@pytest.mark.parametrize(("rate", "noise", "step"), [(1e-3, 0.3, 2.0**-9), (0.1, 1.0, 2.0**-7), (0.9, 5.0, 2.0**-12)])
def test_squared_exponentials_give_moments_never_too_small_and_too_large_by_rounding_alone(rate, noise, step):
    for direction, one in enumerate(losses(sampled(rate, noise), step)):
        for octave in (-8, 0, 3):
            exact = log_moments(one, step, composition._tilts(octave))
            excess = composition._cumulants(sampled(rate, noise), direction, step, octave) - exact
            assert (excess >= -1e-13 * np.abs(exact)).all()
            assert (excess <= 2e-10 + 1e-13 * np.abs(exact)).all()
