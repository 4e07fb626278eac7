"""The closed form of the Gaussian mechanism is dp_accounting's, and the definition's, wherever noise and delta are."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from mpmath import erfc, exp, mp, mpf, sqrt

from privfl.privacy.accounting.closed_form import gaussian_epsilon


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log1p")  # dp_accounting's own
def test_it_is_what_dp_accounting_finds():
    draws = np.random.default_rng(0)
    for noise, delta in zip(10 ** draws.uniform(-3, 4, 300), 10 ** draws.uniform(-40, -0.01, 300), strict=True):
        expected = float(dp.get_epsilon_gaussian(noise, delta))
        assert gaussian_epsilon(float(noise), float(delta)) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("noise", [0.05, 0.7, 3.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-3])
def test_delta_at_that_epsilon_is_the_one_that_was_asked_for(noise, delta):
    found = gaussian_epsilon(noise, delta)
    with mp.workdps(50):

        def phi(value):
            return erfc(-value / sqrt(2)) / 2

        z, epsilon = mpf(noise), mpf(found)
        exact = phi(1 / (2 * z) - epsilon * z) - exp(epsilon) * phi(-1 / (2 * z) - epsilon * z)
    assert float(exact) == pytest.approx(delta, rel=1e-7)


@pytest.mark.parametrize("noise", [1e3, 1e6, 1e12])
def test_noise_that_delta_alone_covers_costs_nothing(noise):
    assert gaussian_epsilon(noise, 0.5) == 0.0
    assert gaussian_epsilon(noise, 1e-3) == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 1 - 1e-12])
@pytest.mark.parametrize("noise", [1e-6, 1e-2, 1.0, 1e9])
def test_extremes_give_finite_numbers(noise, delta):
    found = gaussian_epsilon(noise, delta)
    assert math.isfinite(found)
    assert found >= 0
