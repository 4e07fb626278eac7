"""The bounds on an attacker are those of hypothesis testing, and no mechanism with the claim beats them."""

import math

import pytest
from scipy.stats import norm

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.events import ADD_REMOVE
from privfl.privacy.accounting.trade_off import most_accurate, most_found


@pytest.mark.parametrize("claim", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("alarm", [0.001, 0.01, 0.2, 0.7])
def test_randomised_response_with_delta_reaches_the_bound(claim, alarm):
    """Telling with probability δ, and randomised response otherwise, is the worst mechanism there is."""
    delta, truth = 0.05, math.exp(claim) / (1 + math.exp(claim))
    # The best test accuses on "told", which never lies, then on the likely answer, then on the other one.
    likely, other = (1 - delta) * truth, (1 - delta) * (1 - truth)
    found = delta + likely * min(1.0, alarm / other) + other * min(1.0, max(0.0, alarm - other) / likely)
    assert most_found(claim, delta, alarm) == pytest.approx(min(found, 1.0))
    assert most_accurate(claim, delta) == pytest.approx((1 + delta + (1 - delta) * (2 * truth - 1)) / 2)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_the_best_test_against_gaussian_noise_stays_below_the_bound_of_its_claim(noise, delta):
    import dp_accounting as dp

    claim = epsilon({(dp.GaussianDpEvent(noise), ADD_REMOVE): 1}, delta).epsilon
    for alarm in (1e-4, 0.01, 0.1, 0.5):
        best = norm.cdf(1 / noise + norm.ppf(alarm))
        assert best <= most_found(claim, delta, alarm) <= 1
    assert norm.cdf(0.5 / noise) <= most_accurate(claim, delta) <= 1


def test_the_ends_are_a_blind_guess_and_no_bound_at_all():
    assert most_found(0.0, 0.0, 0.01) == 0.01
    assert most_found(0.0, 0.25, 0.01) == pytest.approx(0.26)
    assert most_accurate(0.0, 0.0) == 0.5
    for endless in (800.0, math.inf):
        assert (most_found(endless, 0.0, 0.01), most_accurate(endless, 0.0)) == (1.0, 1.0)
    assert most_found(math.inf, 0.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ((-1.0, 0.0, 0.1), "epsilon is -1.0"),
        ((1.0, 2.0, 0.1), "delta is 2.0"),
        ((1.0, 0.0, -0.1), "false_alarm is -0.1"),
        ((math.nan, 0.0, 0.1), "epsilon is nan"),
    ],
)
def test_impossible_values_are_refused_by_name(bad, named):
    with pytest.raises(PrivacyError, match=named):
        most_found(*bad)
