"""Sums of discrete Gaussians keep what the theorem promises, checked against their convolution, number by number."""

import math

import numpy as np
import pytest

from privfl.privacy.accounting.summed_gaussian import summed_gaussian_event


def summed_law(share, shares, reach):
    """The law of the sum by convolution of the law of one."""
    numbers = np.arange(-reach, reach + 1)
    one = np.exp(-(numbers.astype(np.float64) ** 2) / (2 * share))
    one /= one.sum()
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return np.arange(-(len(total) // 2), len(total) // 2 + 1), total


def divergence(share, shares, moves, order):
    """The Rényi divergence between the summed noise and itself moved by ``moves``, over all of the law above 1e-280."""
    total = 0.0
    for move in moves:
        _, law = summed_law(share, shares, math.ceil(30 * math.sqrt(share)) + 2)
        here, there = law[abs(move) :], law[: len(law) - abs(move)]
        kept = (here > 1e-280) & (there > 1e-280)
        logs = order * np.log(here[kept]) + (1 - order) * np.log(there[kept])
        total += np.log(np.exp(logs - logs.max()).sum()) + logs.max()
    return float(total) / (order - 1)


def bound(share, shares, moves, order):
    event = summed_gaussian_event(share * shares, shares, math.hypot(*moves), sum(map(abs, moves)), len(moves))
    return event.xi + event.rho * order


@pytest.mark.parametrize("share", [0.25, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("shares", [1, 2, 3, 6])
@pytest.mark.parametrize("moves", [(1,), (2,), (1, 1, 1)], ids=str)
def test_no_divergence_of_a_sum_exceeds_its_event(share, shares, moves):
    for order in (1.01, 1.5, 2.0, 4.0, 9.0):
        assert divergence(share, shares, moves, order) <= bound(share, shares, moves, order) * (1 + 1e-9)


def test_the_price_of_summing_is_not_idle():
    """A move that the lattice favours: without τ, narrow shares would be charged too little."""
    exact = divergence(0.25, 2, (1,), 3.5)
    assert exact > 1.04 * 3.5 / (2 * 0.5)
    assert exact <= bound(0.25, 2, (1,), 3.5)


def test_the_pointwise_lemma_behind_it_holds():
    """Half of τ bounds |log| of the ratio between the sum of two and the discrete Gaussian of their variance."""
    for share in (0.25, 0.5, 1.0, 2.0):
        numbers, law = summed_law(share, 2, 40)
        gaussian = np.exp(-(numbers.astype(np.float64) ** 2) / (4 * share))
        gaussian /= gaussian.sum()
        near = np.abs(numbers) <= 6 * math.sqrt(share) + 1
        gap = np.abs(np.log(law[near] / gaussian[near])).max()
        assert gap <= 5 * math.exp(-(math.pi**2) * share) + 1e-12


@pytest.mark.parametrize("shares", [1, 2, 50])
def test_from_a_deviation_of_two_on_a_sum_is_charged_as_one_gaussian(shares):
    event = summed_gaussian_event(4.0 * shares, shares, 10.0, 40.0, 1000)
    assert event.rho == pytest.approx(100 / (2 * 4 * shares), rel=1e-9)
    assert event.xi < 1e-11
    assert divergence(4.0, 3, (2,), 3.0) == pytest.approx(3 * 4 / (2 * 12), rel=1e-9)


def test_one_share_alone_costs_nothing_besides():
    event = summed_gaussian_event(0.01, 1, 1.0, 1.0, 10**6)
    assert (event.rho, event.xi) == (50.0, 0.0)


def test_the_smallest_of_the_three_published_bounds_is_taken():
    """By hand for one pair of shares of variance 1/4: τ = 10·exp(-π²/4), v = 1/2."""
    tau = 10 * math.exp(-(math.pi**2) / 4)
    few = summed_gaussian_event(0.5, 2, 8.0, 8.0, 1)
    assert (few.rho, few.xi) == (pytest.approx(64.0), pytest.approx(tau))
    many = summed_gaussian_event(0.5, 2, 1.0, 1.0, 100)
    assert (many.rho, many.xi) == (pytest.approx((2 + 2 * tau / math.sqrt(0.5) + 100 * tau**2) / 2), 0.0)
    long = summed_gaussian_event(0.5, 2, 1.0, 1000.0, 100)
    assert (long.rho, long.xi) == (pytest.approx((math.sqrt(2) + 10 * tau) ** 2 / 2), 0.0)
