"""All five size mechanisms are unbiased with the variance of their closed form, keep their ε, and cost what they leak.

Statistical tests fix the key and have a false-alarm rate of at most 1e-6 over keys.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy import integrate, stats

from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.noise.source import NoiseSource, release_grid
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS, DuchiSize, HybridSize, LaplaceSize, PiecewiseSize

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "local_randomizers.json").read_text())
FALSE_ALARM = 1e-6
SIZES = np.array([1, 1, 1, 2, 2, 3, 5, 8, 13, 30, 60, 80, 99, 100, 100, 400])


def stream(*labels):
    return NoiseSource.from_key(2019).stream("size", *labels)


def unit(mechanism, truth):
    """x ∈ [−1, 1] of a true size inside the range, written out anew."""
    return 2 * (truth - mechanism.range.lo) / (mechanism.range.hi - mechanism.range.lo) - 1


# --- estimator and variance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_raw_estimate_has_the_clipped_total_as_mean_and_the_closed_form_as_variance(name, epsilon):
    """25 000 estimates: mean within 5 standard errors; variance within 5 % (5.6 standard deviations, √(2/25 000))."""
    mechanism, draws = SIZE_MECHANISMS[name](epsilon, 100), 25_000
    answers = mechanism.respond(np.tile(SIZES, draws), stream("mc", name, str(epsilon))).reshape(draws, -1)
    raw = np.array([mechanism.estimate(row).raw for row in answers])
    clipped = np.clip(SIZES, 1, 100).sum()
    assert clipped - SIZES.sum() == mechanism.clipping_bias(SIZES) == -300
    assert abs(raw.mean() - clipped) < 5 * math.sqrt(mechanism.variance(SIZES) / draws)
    assert raw.var() == pytest.approx(mechanism.variance(SIZES), rel=0.05)


@pytest.mark.parametrize("row", ORACLES["size_variance_table"]["rows"], ids="-".join)
def test_relative_standard_deviations_are_those_tabulated(row):
    bound, epsilon, size, clients = int(row[0]), float(row[1]), int(row[2]), int(row[3])
    for name, printed in zip(ORACLES["size_variance_table"]["columns"][4:], row[4:], strict=True):
        mechanism = SIZE_MECHANISMS[name](epsilon, bound, convention="code")
        relative = math.sqrt(mechanism.variance(np.full(clients, size))) / (clients * size)
        assert relative == pytest.approx(float(printed), abs=0.5 * 10.0 ** -len(printed.split(".")[1]) + 1e-12)


@pytest.mark.parametrize("row", ORACLES["size_estimators_rmse"]["rows"], ids=lambda row: f"{row['M']}-{row['eps']}")
def test_errors_per_client_agree_with_the_oracle_on_one_and_the_same_mix_of_sizes(row):
    """The mix enters only through E[x²]; Duchi's column gives it, and then every other column must follow."""
    half = (row["M"] - 2) / 2
    mean_square = DuchiSize(row["eps"], row["M"], convention="code").magnitude ** 2 - (row["duchi"] / half) ** 2
    assert 0 < mean_square < 1
    for name, column in [("grr", "rr"), ("laplace", "lap"), ("piecewise", "pm"), ("hybrid", "hyb")]:
        mechanism = SIZE_MECHANISMS[name](row["eps"], row["M"], convention="code")
        truth = np.array([mechanism.range.centre + half * math.sqrt(mean_square)])
        variance = mechanism.response_variance(truth)[0]
        assert math.sqrt(variance) == pytest.approx(row[column], rel=1e-9)


def test_the_hybrid_is_never_worse_in_the_worst_case_than_either_of_its_parts():
    for epsilon in np.linspace(0.1, 10, 100):
        piecewise, duchi, hybrid = (m(epsilon, 100) for m in (PiecewiseSize, DuchiSize, HybridSize))
        worst = min(piecewise.worst_case_relative_sd(10), duchi.worst_case_relative_sd(10))
        assert hybrid.worst_case_relative_sd(10) <= worst * (1 + 1e-9)


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
@pytest.mark.parametrize(("lower", "bound"), [(1, 2), (0, 7), (1, 100), (1, 101)])
@pytest.mark.parametrize("epsilon", [0.3, 3.0, 10.0])
def test_the_worst_case_is_the_largest_standard_deviation_over_all_sizes(name, lower, bound, epsilon):
    mechanism = SIZE_MECHANISMS[name](epsilon, bound, lower=lower)
    every = [mechanism.variance([size]) for size in range(lower, bound + 1)]
    worst = mechanism.worst_case_relative_sd(4) * 2 * max(lower, 1)
    assert worst == pytest.approx(math.sqrt(max(every)), rel=1e-12)


# --- the output laws -------------------------------------------------------------------------------------------------


def piecewise_density(epsilon, x):
    """Wang et al. 2019, equation (5): the two densities and the ends of the likely piece."""
    s = math.exp(epsilon / 2)
    reach = (s + 1) / (s - 1)
    high = (math.exp(epsilon) - s) / (2 * s + 2)
    left = (reach + 1) / 2 * x - (reach - 1) / 2
    return reach, left, left + reach - 1, high, high / math.exp(epsilon)


def piecewise_cdf(epsilon, x):
    reach, left, right, high, low = piecewise_density(epsilon, x)
    points = [-reach, left, right, reach]
    heights = np.cumsum([0, low * (left + reach), high * (right - left), low * (reach - right)])
    return lambda y: np.interp(y, points, heights)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 6.0])
@pytest.mark.parametrize("truth", [1, 20, 50, 100])
def test_piecewise_answers_have_the_published_density(epsilon, truth):
    mechanism = PiecewiseSize(epsilon, 100)
    answers = mechanism.respond(np.full(200_000, truth), stream("pm", str(epsilon), truth))
    y = (answers - mechanism.range.centre) / mechanism.range.half_width
    cdf = piecewise_cdf(epsilon, unit(mechanism, truth))
    assert cdf(2 * mechanism.magnitude) == pytest.approx(1, abs=1e-12)
    units = answers / release_grid(mechanism.range.half_width * (mechanism.magnitude - 1))
    assert np.array_equal(units, np.rint(units))
    assert stats.kstest(y, cdf).pvalue > FALSE_ALARM / 12


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 6.0])
@pytest.mark.parametrize("x", [-1.0, -0.3, 0.0, 1.0])
def test_the_published_piecewise_density_integrates_to_the_variance_in_closed_form(epsilon, x):
    reach, left, right, high, low = piecewise_density(epsilon, x)
    mechanism = PiecewiseSize(epsilon, 201)
    pieces = [(-reach, left, low), (left, right, high), (right, reach, low)]

    def moment(k):
        return sum(h * integrate.quad(lambda y: y**k, a, b)[0] for a, b, h in pieces)

    assert (moment(0), moment(1)) == pytest.approx((1, x), abs=1e-9)
    variance = mechanism.variance([round(101 + 100 * x)]) / 100**2
    assert variance == pytest.approx(moment(2) - x**2, rel=1e-9)


@pytest.mark.parametrize("truth", [1, 20, 50, 100])
def test_duchi_answers_are_two_values_with_the_published_probability(truth):
    mechanism, n = DuchiSize(1.0, 100), 200_000
    answers = mechanism.respond(np.full(n, truth), stream("duchi", truth))
    reach = (math.e + 1) / (math.e - 1)
    low, high = 50.5 - 49.5 * reach, 50.5 + 49.5 * reach
    assert np.unique(answers) == pytest.approx([low, high], rel=1e-12)
    probability = 0.5 + unit(mechanism, truth) / (2 * reach)
    assert stats.binomtest(int(np.sum(answers > 50)), n, probability).pvalue > FALSE_ALARM / 4


@pytest.mark.parametrize("truth", [1, 100])
def test_laplace_answers_are_the_truth_plus_noise_on_the_grid(truth):
    mechanism = LaplaceSize(2.0, 100)
    answers = mechanism.respond(np.full(200_000, truth), stream("laplace", truth))
    assert stats.kstest(answers, stats.laplace(truth, 99 / 2).cdf).pvalue > FALSE_ALARM / 2
    units = answers / release_grid(99 / 2)
    assert np.array_equal(units, np.rint(units))


def test_hybrid_answers_are_a_mixture_with_the_published_weight():
    mechanism, n, truth = HybridSize(2.0, 100), 300_000, 20
    answers = mechanism.respond(np.full(n, truth), stream("hybrid"))
    low, high = DuchiSize(2.0, 100).support()
    bit = np.isin(answers, [low, high])
    assert stats.binomtest(int(bit.sum()), n, math.exp(-1)).pvalue > FALSE_ALARM / 3
    y = (answers[~bit] - 50.5) / 49.5
    assert stats.kstest(y, piecewise_cdf(2.0, unit(mechanism, truth))).pvalue > FALSE_ALARM / 3
    probability = 0.5 * (1 + unit(mechanism, truth) * math.tanh(1))
    assert stats.binomtest(int(np.sum(answers[bit] == high)), int(bit.sum()), probability).pvalue > FALSE_ALARM / 3


def test_the_hybrid_is_duchis_bit_up_to_its_threshold():
    assert HybridSize(0.61, 100).piecewise_probability == 0
    assert HybridSize(0.62, 100).piecewise_probability == pytest.approx(1 - math.exp(-0.31))


# --- privacy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_no_pair_of_sizes_is_told_apart_by_more_than_epsilon(name, epsilon):
    """Answers cut into 40 intervals (post-processing): certified lower bound over all cells, level 1e-6 in all."""
    mechanism, n = SIZE_MECHANISMS[name](epsilon, 50), 100_000
    truths = [0, 1, 2, 13, 25, 26, 49, 50, 51, 90]
    answers = [mechanism.respond(np.full(n, truth), stream("pair", name, str(epsilon), truth)) for truth in truths]
    edges = np.unique(np.quantile(np.concatenate(answers), np.linspace(0, 1, 41)[1:-1]))
    counts = np.array([np.bincount(np.searchsorted(edges, row), minlength=edges.size + 1) for row in answers])
    share = FALSE_ALARM / 10 / (2 * counts.size)
    lower = np.where(counts == 0, 0, stats.beta.ppf(share, counts, n - counts + 1))
    upper = stats.beta.isf(share, counts + 1, np.maximum(n - counts, 1e-300))
    ratios = np.log(np.maximum(lower.max(axis=0), 1e-300) / upper.min(axis=0))
    assert ratios.max() <= epsilon
    assert ratios.max() > 0.6 * epsilon  # the test has power: the mechanisms use most of their ε


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_the_cost_of_one_answer_to_a_client_is_epsilon_before_both_observers(name):
    release = SIZE_MECHANISMS[name](3.0, 100).costs()
    assert release.name == "size response"
    assert len(release.costs) == len(UNITS) * len(OBSERVERS)
    for observer in OBSERVERS:
        cost = release.cost("client", observer)
        accountant = PLDAccountant(cost.relation)
        assert accountant.supports(cost.event)
        assert accountant.compose(cost.event).get_epsilon(1e-12) == pytest.approx(3.0, abs=2e-4)


def sample_epsilon(mechanism):
    cost = mechanism.costs().cost("sample", "server")
    return PLDAccountant(cost.relation).compose(cost.event).get_epsilon(1e-12)


@pytest.mark.parametrize(("epsilon", "bound"), list(itertools.product([0.1, 1.0, 3.0, 8.0], [2, 3, 20, 300])))
def test_one_sample_changes_duchis_bit_by_the_claimed_factor_and_some_pair_attains_it(epsilon, bound):
    mechanism = DuchiSize(epsilon, bound)
    reach = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    upper = np.array([0.5 + unit(mechanism, truth) / (2 * reach) for truth in range(1, bound + 1)])
    law = np.stack([upper, 1 - upper])
    worst = np.max(np.abs(np.diff(np.log(law), axis=1)))
    assert mechanism.sample_epsilon == pytest.approx(worst, rel=1e-9)
    assert sample_epsilon(mechanism) == pytest.approx(worst, abs=2e-4)


def test_binary_response_at_the_sample_epsilon_dominates_duchis_bit_also_when_composed():
    """Ten answers about each neighbouring pair: the claimed event is never below the exact pair, at any δ."""
    mechanism, answers = DuchiSize(2.0, 6), 10
    event = mechanism.costs().cost("sample", "server").event
    claimed = pld.from_randomized_response(event.noise_parameter, event.num_buckets).self_compose(answers)
    upper = mechanism._upper_probability(np.arange(1, 7))
    for p, q in itertools.permutations(upper, 2):
        if abs(np.argmax(upper == p) - np.argmax(upper == q)) == 1:
            exact = pld.from_two_probability_mass_functions(
                {0: math.log(q), 1: math.log1p(-q)}, {0: math.log(p), 1: math.log1p(-p)}
            ).self_compose(answers)
            for delta in (1e-9, 1e-5, 1e-2):
                assert exact.get_epsilon_for_delta(delta) <= claimed.get_epsilon_for_delta(delta) + 2e-3


def test_one_sample_costs_laplace_its_share_of_the_range():
    mechanism = LaplaceSize(3.0, 100)
    assert sample_epsilon(mechanism) == pytest.approx(3 / 99, abs=2e-4)
    assert mechanism.costs().cost("sample", "server").relation is NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("name", ["grr", "piecewise", "hybrid"])
def test_one_sample_costs_the_others_all_of_epsilon(name):
    release = SIZE_MECHANISMS[name](1.5, 100).costs()
    assert release.cost("sample", "server") == release.cost("client", "server")


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_infinite_epsilon_is_the_limit_and_unprotected(name):
    mechanism = SIZE_MECHANISMS[name](math.inf, 100)
    sizes = np.array([0, 1, 42, 100, 101])
    answers = mechanism.respond(sizes, stream("inf", name))
    if name == "duchi":
        assert set(answers) <= {1.0, 100.0}
        assert answers[[0, 1, 3, 4]].tolist() == [1, 1, 100, 100]
    else:
        assert answers.tolist() == [1, 1, 42, 100, 100]
        assert mechanism.estimate(answers).raw == 244
        assert mechanism.variance(sizes) == 0
    assert all(cost.event is None for _, cost in mechanism.costs().costs)


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_the_largest_finite_epsilon_still_lies_in_principle(name):
    """At ε = 32 every coin is at least 2⁻⁶⁴ away from certainty, so the claim is not void by rounding."""
    mechanism = SIZE_MECHANISMS[name](32.0, 2)
    event = mechanism.costs().cost("client", "server").event
    assert getattr(event, "noise_parameter", 1.0) > 2**-60
    assert mechanism.respond([1, 2], stream("large")) == pytest.approx([1, 2], abs=0.5)
