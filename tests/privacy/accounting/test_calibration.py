"""Calibrated noise keeps its target, is hardly more than needed, and agrees with Opacus and dp_accounting."""

import dp_accounting as dp
import pytest
from opacus.accountants.utils import get_noise_multiplier

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.calibration import noise_multiplier_for
from tests.privacy.accounting.accounting_oracles import ORACLES, REPLACE, poisson, rows, sampled

SETTINGS = [
    (1.0, 1e-5, 0.01, 1000),
    (8.0, 1e-5, 0.1, 100),
    (0.1, 1e-6, 0.001, 2000),
    (3.0, 1e-5, 1.0, 50),
    (50.0, 1e-5, 0.3, 5),
]


def claim(rate, noise, steps, delta):
    return epsilon({sampled(rate, noise): steps}, delta, interval=False).epsilon


@pytest.mark.parametrize(("target", "delta", "rate", "steps"), SETTINGS)
def test_the_target_is_kept_and_one_digit_less_noise_would_break_it(target, delta, rate, steps):
    noise = noise_multiplier_for(target, delta, {rate: steps})
    assert claim(rate, noise, steps, delta) <= target
    assert claim(rate, noise * (1 - 1.2e-3), steps, delta) > target


@pytest.mark.parametrize(("target", "delta", "rate", "steps"), SETTINGS[:2])
def test_opacus_needs_a_little_more_noise_by_prv_and_much_more_by_rdp(target, delta, rate, steps):
    ours = noise_multiplier_for(target, delta, {rate: steps})
    by_prv, by_rdp = (
        get_noise_multiplier(
            target_epsilon=target, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant
        )
        for accountant in ("prv", "rdp")
    )
    assert ours < by_prv < 1.03 * ours
    assert ours < by_rdp


def test_dp_accounting_calibrates_to_the_same_noise():
    def event(noise):
        return dp.SelfComposedDpEvent(poisson(0.05, noise), 100)

    theirs = dp.calibrate_dp_mechanism(
        dp.pld.PLDAccountant, event, 2.0, 1e-5, dp.ExplicitBracketInterval(0.7, 3.0), tol=1e-4
    )
    assert noise_multiplier_for(2.0, 1e-5, {0.05: 100}) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("row", rows("gdp_sigma_for_eps"), ids=lambda row: f"eps{row['eps']}-delta{row['delta']}")
def test_plain_noise_is_that_of_the_analytic_gaussian_mechanism(row):
    ours = noise_multiplier_for(row["eps"], row["delta"], {1.0: 1})
    assert row["sigma_dp_accounting"] <= ours <= row["sigma_dp_accounting"] * (1 + 1.1e-3)


def test_the_noise_that_opacus_pins_by_prv_is_enough():
    pinned = ORACLES["opacus_accountants_test_pins"]["get_noise_multiplier"]["prv"][0]
    assert noise_multiplier_for(7.5, 1e-5, {0.04: 2500}) == pytest.approx(pinned, rel=0.1)


def test_other_releases_leave_less_room():
    besides = {(dp.RandomizedResponseDpEvent(0.5, 10), REPLACE): 1}
    alone = noise_multiplier_for(4.0, 1e-5, {0.1: 100})
    beside = noise_multiplier_for(4.0, 1e-5, {0.1: 100}, besides=besides)
    assert beside > alone
    assert epsilon({sampled(0.1, beside): 100} | besides, 1e-5, interval=False).epsilon <= 4.0
    with pytest.raises(PrivacyError, match="besides gradients alone costs"):
        noise_multiplier_for(0.5, 1e-5, {0.1: 100}, besides=besides)


def test_without_steps_no_noise_is_needed():
    assert noise_multiplier_for(1.0, 1e-5, {0.1: 0}) == 0.0
    assert noise_multiplier_for(1.0, 1e-5, {0.0: 10}) == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.0, 1e-5, {0.1: 10}), "positive number"),
        ((-1.0, 1e-5, {0.1: 10}), "positive number"),
        ((1.0, 0.0, {0.1: 10}), "delta = 0"),
        ((1.0, 1.0, {0.1: 10}), "delta is"),
        ((1.0, 1e-5, {1.1: 10}), "rate"),
        ((1.0, 1e-5, {0.1: -1}), "steps"),
        ((1e-8, 1e-12, {1.0: 10**6}), "above a million"),
    ],
)
def test_impossible_targets_are_refused_in_words(arguments, words):
    with pytest.raises(PrivacyError, match=words):
        noise_multiplier_for(*arguments)
