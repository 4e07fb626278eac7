"""Randomised response has the law, the ε and the cost it claims; broken ones are caught by the same audit.

Statistical tests fix the key and have a false-alarm rate of at most 1e-6 over keys.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.randomized_response import RandomizedResponse, response_epsilon, truth_probability

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "local_randomizers.json").read_text())
GAMMA = 1e-6


def stream(*labels):
    return NoiseSource.from_key(2023).stream("grr", *labels)


# --- α and ε ---------------------------------------------------------------------------------------------------------


def test_reference_values_of_alpha_and_epsilon():
    assert truth_probability(3, 99) == pytest.approx(0.161625, abs=5e-7)
    assert truth_probability(3, 100) == pytest.approx(0.160267, abs=5e-7)
    assert truth_probability(3, 299) == pytest.approx(0.060001, abs=5e-7)
    assert response_epsilon(0.5, 99) == pytest.approx(math.log(100), abs=1e-12)
    assert response_epsilon(0.5, 100) == pytest.approx(4.615121, abs=5e-7)
    assert response_epsilon(0.5, 699) == pytest.approx(6.551080, abs=5e-7)


@pytest.mark.parametrize("row", ORACLES["randomized_response"]["rows"], ids=lambda row: f"{row['alpha']}-{row['k']}")
def test_epsilon_is_that_of_dp_accounting(row):
    assert response_epsilon(row["alpha"], row["k"]) == pytest.approx(row["closed_form"], abs=1e-12)
    assert response_epsilon(row["alpha"], row["k"]) == pytest.approx(row["dp_accounting_rdp_inf_REPLACE_ONE"], abs=1e-9)


def test_alpha_and_epsilon_are_inverses():
    for epsilon, domain in itertools.product([1e-6, 0.01, 0.5, 1, 3, 4.605, 10, 20], [2, 3, 99, 699, 10**6]):
        assert response_epsilon(truth_probability(epsilon, domain), domain) == pytest.approx(epsilon, rel=1e-6, abs=0)
    for alpha, domain in itertools.product([1e-9, 0.01, 0.16, 0.5, 0.9, 0.999], [2, 3, 99, 699, 10**6]):
        assert truth_probability(response_epsilon(alpha, domain), domain) == pytest.approx(alpha, abs=1e-10)
    for epsilon, domain in itertools.product([0.01, 0.5, 1, 3, 4.605, 10], [2, 99, 699]):
        assert response_epsilon(truth_probability(epsilon, domain), domain) == pytest.approx(epsilon, abs=1e-10)


def test_limits_of_alpha():
    assert truth_probability(0.0, 99) == 0.0
    assert truth_probability(1e-12, 99) < 1e-12
    assert truth_probability(math.inf, 99) == 1.0
    assert response_epsilon(1.0, 99) == math.inf
    assert response_epsilon(0.0, 99) == 0.0
    assert 0.999 < truth_probability(12.0, 99) < 1


@pytest.mark.parametrize("row", ORACLES["grr_frequency_oracle"]["rows"], ids=lambda row: f"{row['eps']}-{row['k']}")
def test_the_law_is_that_of_the_published_frequency_oracle(row):
    mechanism = RandomizedResponse(row["eps"], bound=row["k"])
    q = mechanism.lie_probability / mechanism.range.domain
    p = mechanism.alpha + q
    assert (p, q) == pytest.approx((row["GRR_p"], row["GRR_q"]), rel=1e-12)
    assert q * (1 - q) / (p - q) ** 2 == pytest.approx(row["GRR_var"], rel=1e-9)


@pytest.mark.parametrize(("epsilon", "domain"), [(-1, 5), (math.nan, 5), (1, 1)])
def test_impossible_arguments_of_alpha_are_refused(epsilon, domain):
    with pytest.raises(ConfigError):
        truth_probability(epsilon, domain)


@pytest.mark.parametrize(("alpha", "domain"), [(-0.1, 5), (1.1, 5), (math.nan, 5), (0.5, 0)])
def test_impossible_arguments_of_epsilon_are_refused(alpha, domain):
    with pytest.raises(ConfigError):
        response_epsilon(alpha, domain)


# --- the output law --------------------------------------------------------------------------------------------------


def count_answers(mechanism, trials, truths=None, outcomes=None):
    """Counts of answers, shape (truths, outcomes): row i for the i-th true size."""
    truths = range(mechanism.range.lo, mechanism.range.hi + 1) if truths is None else truths
    width = (outcomes or mechanism.range.hi) + 1
    return np.array(
        [
            np.bincount(mechanism.respond(np.full(trials, truth), stream("law", truth)), minlength=width)
            for truth in truths
        ]
    )


@pytest.mark.parametrize("convention", ["paper", "code"])
@pytest.mark.parametrize("truth", [0, 1, 2, 50, 99, 100, 812])
def test_answers_have_the_law_of_the_clipped_truth(convention, truth):
    mechanism = RandomizedResponse(3.0, 100, convention=convention)
    n, domain = 200_000, mechanism.range.domain
    counts = count_answers(mechanism, n, [truth])[0][1 : domain + 1]
    assert counts.sum() == n
    expected = np.full(domain, n * (1 - mechanism.alpha) / domain)
    expected[min(max(truth, 1), domain) - 1] += n * mechanism.alpha
    assert stats.chisquare(counts, expected).pvalue > GAMMA / 14


def test_with_epsilon_infinite_every_answer_is_the_clipped_truth():
    mechanism = RandomizedResponse(math.inf, 10, lower=0)
    assert mechanism.respond([0, 3, 10, 11], stream("inf")).tolist() == [0, 3, 10, 10]
    assert mechanism.alpha == 1


# --- the audit -------------------------------------------------------------------------------------------------------


def certified_epsilon(counts, trials, gamma=GAMMA):
    """A lower bound on ε at confidence 1 − γ over all pairs of inputs and all outputs (Clopper–Pearson, Bonferroni).

    Each side of each (input, output) cell gets γ/(2·cells), so the bound exceeds the true ε with probability ≤ γ.
    """
    share = gamma / (2 * counts.size)
    lower = np.where(counts == 0, 0.0, stats.beta.ppf(share, counts, trials - counts + 1))
    upper = np.where(counts == trials, 1.0, stats.beta.isf(share, counts + 1, trials - counts))
    with np.errstate(divide="ignore"):
        return float(np.max(np.log(lower.max(axis=0)) - np.log(upper.min(axis=0))))


def holes(counts, trials, mechanism, gamma=GAMMA):
    """Outputs seen under one input and never under another, where so many trials would have shown them."""
    domain = mechanism.range.domain
    assert trials >= math.log(domain**2 / gamma) / ((1 - mechanism.alpha) / domain), "too few trials for the test"
    return np.flatnonzero((counts.max(axis=0) > 0) & (counts.min(axis=0) == 0))


class LiesStopBelowTheBound(RandomizedResponse):
    """Lies from {1..M−1}, truth clipped at M: the authors' programme after a half-hearted mend."""

    def randomise(self, truths, stream):
        lies = stream.integers(self.range.lo, self.range.hi - 1, truths.size)
        return np.where(stream.bernoulli(self.lie_probability, truths.size), lies, truths)


class TruthIsNotClipped(RandomizedResponse):
    """Lies from the range, truth as it is: the authors' programme."""

    def respond(self, sizes, stream):
        return self.randomise(np.asarray(sizes), stream)


class LiesHalfAsOften(RandomizedResponse):
    """The right range and the wrong coin."""

    def randomise(self, truths, stream):
        lies = self.range.uniform(truths.size, stream)
        return np.where(stream.bernoulli(0.5 * self.lie_probability, truths.size), lies, truths)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_an_honest_randomiser_passes_the_audit_over_all_pairs(epsilon):
    mechanism, trials = RandomizedResponse(epsilon, 30), 50_000
    counts = count_answers(mechanism, trials, truths=range(0, 40))
    assert certified_epsilon(counts, trials) <= epsilon
    assert certified_epsilon(counts, trials) > epsilon - 0.4
    assert holes(counts, trials, mechanism).size == 0


@pytest.mark.parametrize("broken", [LiesStopBelowTheBound, TruthIsNotClipped, LiesHalfAsOften])
def test_broken_randomisers_fail_the_audit(broken):
    mechanism, trials = broken(3.0, 30), 50_000
    counts = count_answers(mechanism, trials, truths=range(0, 40), outcomes=40)
    assert certified_epsilon(counts, trials) > 3.0


@pytest.mark.parametrize(("broken", "hole"), [(LiesStopBelowTheBound, 30), (TruthIsNotClipped, 35)])
def test_answers_that_only_some_clients_can_give_are_found(broken, hole):
    mechanism, trials = broken(3.0, 30), 50_000
    assert hole in holes(count_answers(mechanism, trials, range(0, 40), 40), trials, mechanism)


@pytest.mark.parametrize(
    "row", ORACLES["ldp_audit_expected"]["rows"], ids=lambda r: f"{r['eps']:.2f}-{r['k']}-{r['n']}"
)
def test_expected_counts_and_their_bound_are_those_of_ldp_audit(row):
    mechanism, n = RandomizedResponse(row["eps"], row["k"]), row["n"]
    lie = mechanism.lie_probability / row["k"]
    true_positives, false_positives = round(n * (mechanism.alpha + lie)), round(n * lie)
    assert (true_positives, false_positives) == (row["tp"], row["fp"])
    lower = stats.beta.ppf(0.005, true_positives, n - true_positives + 1)
    upper = stats.beta.ppf(0.995, false_positives + 1, n - false_positives)
    assert max(math.log(lower / upper), 0.0) == pytest.approx(row["each_side_0.005"], abs=1e-9)


@pytest.mark.slow
def test_a_million_trials_certify_almost_all_of_epsilon_and_not_more():
    """One pair of inputs, event "answer = first input", ε = 3, D = 99: 2.97 at total level 1 %, 2.94 at 1e-6.

    The bound moves with standard deviation √(1/170 000 + 1/8 470) = 0.011; six of them make 2e-9.
    """
    mechanism, n = RandomizedResponse(3.0, 99), 10**6
    hits, false = count_answers(mechanism, n, [1, 99])[:, 1]
    for level, expected in [(0.01, 2.97), (1e-6, 2.94)]:
        lower = stats.beta.ppf(level / 2, hits, n - hits + 1)
        upper = stats.beta.isf(level / 2, false + 1, n - false)
        assert math.log(lower / upper) == pytest.approx(expected, abs=0.066 + 0.005)
    assert math.log(lower / upper) <= 3.0


@pytest.mark.slow
def test_a_million_trials_of_every_input_stay_below_epsilon_in_every_cell():
    mechanism, n = RandomizedResponse(3.0, 99), 10**6
    counts = count_answers(mechanism, n)[:, 1:]
    assert 2.85 < certified_epsilon(counts, n) <= 3.0
    assert holes(counts, n, mechanism).size == 0


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ORACLES["randomized_response_composition"]["rows"])
def test_the_event_composes_to_the_exact_trinomial_value(row):
    """Both units and observers carry the same event; T fresh answers cost what the trinomial convolution says."""
    release = RandomizedResponse(row["eps_per_response"], row["domain"]).costs()
    events = {cost.event for _, cost in release.costs}
    assert len(events) == 1
    assert len(release.costs) == 4
    (event,) = events
    loss = pld.from_randomized_response(event.noise_parameter, event.num_buckets).self_compose(row["T"])
    epsilon = loss.get_epsilon_for_delta(row["delta"])
    assert epsilon == pytest.approx(row["exact_trinomial"], abs=1.01e-4 * row["T"])  # the discretisation interval
    assert epsilon >= row["exact_trinomial"] - 1e-9


def test_epsilon_infinite_costs_everything_and_says_why():
    for _, cost in RandomizedResponse(math.inf, 100).costs().costs:
        assert cost.event is None
        assert "inf" in cost.reason
