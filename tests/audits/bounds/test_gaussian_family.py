"""The Gaussian family: closed forms, dp_accounting's curves, and how often its noise is under-stated."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.rates import ErrorRates
from privfl.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "oracles"
ORACLES = json.loads((FOLDER / "audits.json").read_text())
ACCOUNTING = json.loads((FOLDER / "accounting.json").read_text())


@cache
def composed(rate, steps, noise):
    """dp_accounting's loss of several sampled steps."""
    made = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-3)
    return made.self_compose(steps)


def exactly(fpr, fnr):
    """Error rates that are known."""
    return ErrorRates(np.asarray(fpr), np.asarray(fnr), np.asarray(1 - fnr), np.asarray(1 - fpr))


@pytest.mark.parametrize("row", ORACLES["gdp_mu_to_eps"]["rows"])
def test_error_rates_on_the_curve_give_the_epsilon_of_that_curve(row):
    fpr = 0.07
    rates = exactly(fpr, norm.cdf(norm.isf(fpr) - row["mu"]))
    family = GaussianFamily()
    found = family.epsilon(family.noise(rates), row["delta"])
    assert found == pytest.approx(row["scipy_brentq"], rel=1e-8)
    assert found <= row["scipy_brentq"]


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 1.993), (1, 4.377), (1.5, 7.051), (2, 9.997), (3, 16.676)])
def test_the_published_conversions(mu, epsilon):
    assert GaussianFamily().epsilon(1 / mu, 1e-5) == pytest.approx(epsilon, abs=6e-4)


def test_scores_of_single_steps_and_of_whole_runs_are_worth_the_same_noise():
    """Per step μ = 1/σ, of 16 steps √16/σ: rates of one step at μ = ¼ and of a run at μ = 1 are σ = 4 both."""
    step, run = (exactly(0.1, norm.cdf(norm.isf(0.1) - mu)) for mu in (0.25, 1.0))
    assert GaussianFamily(steps=16).noise(step) == pytest.approx(4, rel=1e-8)
    assert GaussianFamily(steps=16, observed_steps=16).noise(run) == pytest.approx(4, rel=1e-8)
    assert GaussianFamily(steps=16).epsilon(4.0, 1e-5) == pytest.approx(4.377178, abs=1e-6)


@pytest.mark.parametrize("noise", [0.6, 1.0, 5.0])
def test_one_sampled_step_is_inverted_in_closed_form(noise):
    """Below threshold t: 1 − FPR = Φ(t/σ), and FNR = (1−q)·Φ(t/σ) + q·Φ((t−1)/σ)."""
    threshold, rate = 1.3, 0.2
    fnr = (1 - rate) * norm.cdf(threshold / noise) + rate * norm.cdf((threshold - 1) / noise)
    rates = exactly(norm.sf(threshold / noise), fnr)
    assert GaussianFamily(rate).noise(rates) == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize(("rate", "steps", "noise"), [(0.3, 1, 1.0), (0.1, 20, 0.8), (0.02, 200, 1.5)])
def test_curves_of_sampled_steps_are_those_of_dp_accounting(rate, steps, noise):
    epsilons = np.concatenate([np.linspace(0, 1, 30), np.linspace(1.1, 9, 30)])
    deltas = np.array(composed(rate, steps, noise).get_delta_for_epsilon(epsilons))
    missed = GaussianFamily(rate, steps, steps).missed(noise)
    for caught in (0.02, 0.3, 0.7, 0.99):
        falling = 1 - np.exp(epsilons) * (1 - caught) - deltas  # the lines of slope e^ε > 1, by symmetry
        expected = max(0.0, ((caught - deltas) * np.exp(-epsilons)).max(), falling.max())
        assert missed(caught) == pytest.approx(expected, abs=1.5e-3)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_rates_on_a_composed_curve_give_its_noise(epsilon):
    """The decision "loss > ε" has FPR = −e^−ε·δ′(ε) and TPR = δ(ε) + e^ε·FPR: δ and its slope are dp_accounting's."""
    rate, steps, noise = 0.1, 20, 0.8
    theirs = composed(rate, steps, noise)
    low, middle, high = theirs._pmf_remove.get_delta_for_epsilon(epsilon + np.array([-0.01, 0.0, 0.01]))
    fpr = math.exp(-epsilon) * (low - high) / 0.02
    found = GaussianFamily(rate, steps, steps).noise(exactly(fpr, 1 - middle - math.exp(epsilon) * fpr))
    assert found == pytest.approx(noise, rel=2e-3)


def test_the_epsilon_of_a_noise_is_below_the_claim_and_within_the_certain_interval():
    row = next(row for row in ACCOUNTING["subsampled_gaussian"]["rows"] if row["id"] == "opacus_test")
    found = GaussianFamily(row["q"], row["T"]).epsilon(row["sigma"], row["delta"])
    assert row["prv_lower"] - 0.01 <= found <= row["pld"]


def test_noise_is_understated_no_more_often_than_the_level_says():
    """Exactly, over all outcomes of 40 trials per world of one step at σ = 1, with and without sampling."""
    trials, level = 40, 0.1
    hits, alarms = np.meshgrid(np.arange(trials + 1), np.arange(trials + 1), indexing="ij")
    rates = ErrorRates.from_counts(hits, trials, alarms, trials, (level / 2, level / 2))
    for rate in (1.0, 0.5):
        strengths = GaussianFamily(rate).strengths(rates)  # what noise() inverts: 1/σ
        for threshold in (-0.5, 0.5, 1.5):
            fpr = norm.sf(threshold)
            tpr = (1 - rate) * fpr + rate * norm.sf(threshold - 1)
            law = binom.pmf(hits, trials, tpr) * binom.pmf(alarms, trials, fpr)
            assert law[strengths > 1].sum() <= level


def test_no_better_than_guessing_is_any_noise_and_better_than_sampling_allows_is_none():
    assert GaussianFamily().noise(exactly(0.5, 0.5)) == math.inf
    assert GaussianFamily().noise(exactly(0.9, 0.9)) == math.inf
    assert GaussianFamily(0.1).noise(exactly(0.01, 0.1)) == 0  # found 9 in 10 although 1 in 10 takes part
    assert GaussianFamily(0.1).epsilon(0.0, 1e-5) == math.inf
    assert GaussianFamily().epsilon(math.inf, 1e-5) == 0


def test_fewer_errors_and_smaller_rates_leave_less_noise():
    at = {fnr: GaussianFamily().noise(exactly(0.1, fnr)) for fnr in (0.6, 0.3, 0.05)}
    assert at[0.6] > at[0.3] > at[0.05]
    assert GaussianFamily(0.5).noise(exactly(0.1, 0.6)) < at[0.6]


def test_the_assumption_names_steps_and_sampling():
    assert GaussianFamily().assumption == "the trade-off curve is that of one step of Gaussian noise"
    assert "100 steps" in GaussianFamily(0.1, 100).assumption
    assert "rate 0.1" in GaussianFamily(0.1, 100).assumption


@pytest.mark.parametrize("arguments", [(0.0,), (1.5,), (1.0, 0), (1.0, 3, 4), (1.0, 3, 0)])
def test_impossible_families_are_refused(arguments):
    with pytest.raises(ConfigError):
        GaussianFamily(*arguments)


def test_a_pure_epsilon_of_gaussian_noise_is_refused():
    with pytest.raises(ConfigError, match="delta is 0"):
        GaussianFamily().epsilon(1.0, 0.0)
