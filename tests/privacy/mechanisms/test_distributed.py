"""Shares of noise add up to at least the noise that is claimed, whoever drops out, and the claim is what a sum earns.

Statistical tests fix the key and have a false-alarm rate of at most 1e-6 over keys (chi-square, by the p-value).
"""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.events import ADD_REMOVE, REPLACE, SkellamDpEvent
from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfl.privacy.mechanisms.distributed_sum import DistributedSum
from privfl.privacy.noise.discrete import discrete_gaussian, skellam
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.rounding import round_within

BOTH = [DiscreteGaussianNoise, SkellamNoise]
FINE = DistributedSum(dimension=1000, levels=2.0**20, cohort=100, survivors=60)
SMALL = DistributedSum(dimension=1, levels=3.0, cohort=5, survivors=3)


def stream(*labels):
    return NoiseSource.from_key(20261121).stream("distributed noise", *labels)


def share_law(kind, variance):
    """The law of one share on -reach … reach, from its definition and from scipy."""
    numbers = np.arange(-math.ceil(14 * math.sqrt(variance)) - 20, math.ceil(14 * math.sqrt(variance)) + 21)
    if kind is SkellamNoise:
        return stats.skellam.pmf(numbers, variance / 2, variance / 2)
    weights = np.exp(-(numbers.astype(np.float64) ** 2) / (2 * variance))
    return weights / weights.sum()


def summed_law(kind, variance, shares):
    law = one = share_law(kind, variance)
    for _ in range(shares - 1):
        law = np.convolve(law, one)
    return law


# --- shares and sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_any_admissible_set_of_survivors_carries_the_full_noise_or_more(kind):
    noise = kind(1.5)
    full = (1.5 * SMALL.levels) ** 2
    shares = noise.share_variance(SMALL)
    assert SMALL.survivors * shares == pytest.approx(full, rel=1e-8)
    assert SMALL.survivors * shares >= full
    deviations = [noise.sum_deviation(SMALL, contributors) for contributors in range(3, 6)]
    assert deviations == pytest.approx([1.5 * math.sqrt(k / 3) for k in (3, 4, 5)], rel=1e-8)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("contributors", [3, 5])
def test_the_sum_of_the_shares_has_the_law_that_is_accounted(kind, contributors):
    """With 3 of 5 clients left, and with all: 100,000 sums against the convolution of the share's law."""
    noise, terms = kind(1.0), DistributedSum(100_000, 3.0, 5, 3)
    total = np.zeros(terms.dimension, dtype=np.int64)
    for client in range(contributors):
        total += noise.add_share_(np.zeros(terms.dimension, dtype=np.int64), stream("sum", client), terms)
    law = summed_law(kind, noise.share_variance(terms), contributors)
    middle, reach = len(law) // 2, 9
    expected = law[middle - reach : middle + reach + 1].copy()
    expected[[0, -1]] += (1 - expected.sum()) / 2
    seen = np.bincount(total.clip(-reach, reach) + reach, minlength=2 * reach + 1)
    assert stats.chisquare(seen, expected * terms.dimension).pvalue > 1e-6


@pytest.mark.parametrize(("kind", "draw"), [(DiscreteGaussianNoise, discrete_gaussian), (SkellamNoise, skellam)])
def test_a_share_is_an_exact_draw_added_in_place(kind, draw):
    terms = DistributedSum(5, 100.0, 10, 4)
    integers = np.array([60, -60, 0, 1, 2])
    kept = integers.copy()
    returned = kind(2.0).add_share_(integers, stream("share"), terms)
    assert returned is integers
    assert np.array_equal(integers - kept, draw(stream("share"), 5, kind(2.0).share_variance(terms)))


@pytest.mark.parametrize("kind", BOTH)
def test_what_conditional_rounding_returns_is_always_accepted(kind):
    terms = DistributedSum(500, 20.0, 10, 4)
    generator = np.random.default_rng(3)
    for trial in range(20):
        values = generator.normal(size=500)
        values *= 20.0 / np.linalg.norm(values)
        rounded = round_within(values, 20.0, stream("round", trial))
        assert np.linalg.norm(rounded) > 20.0, "rounding lengthens, which the bound must allow for"
        kind(1.0).add_share_(rounded, stream("share", trial), terms)


@pytest.mark.parametrize("kind", BOTH)
def test_a_vector_beyond_the_bound_is_refused_and_left_alone(kind):
    terms = DistributedSum(4, 10.0, 10, 4)
    integers = np.array([20, 0, 0, 0])
    with pytest.raises(PrivacyError, match="longer than the bound"):
        kind(1.0).add_share_(integers, stream("long"), terms)
    assert integers.tolist() == [20, 0, 0, 0]
    with pytest.raises(PrivacyError):
        kind(1.0).add_share_(np.full(4, 2**62), stream("long"), terms)


@pytest.mark.parametrize("vector", [np.zeros(4), np.zeros(4, dtype=np.int32), np.zeros(3, dtype=np.int64)])
def test_only_int64_vectors_of_the_right_length_take_a_share(vector):
    with pytest.raises(ConfigError, match="encode the vector first"):
        SkellamNoise(1.0).add_share_(vector, stream("wrong"), DistributedSum(4, 10.0, 10, 4))


# --- the claim -------------------------------------------------------------------------------------------------------


def divergence(law, move, order):
    """The Rényi divergence between ``law`` and itself moved by ``move``, over all of it above 1e-200."""
    here, there = law[move:], law[: len(law) - move]
    kept = (here > 1e-200) & (there > 1e-200)
    logs = order * np.log(here[kept]) + (1 - order) * np.log(there[kept])
    return float((logs.max() + np.log(np.exp(logs - logs.max()).sum())) / (order - 1))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("order", [2.0, 3.0, 6.0])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_no_move_within_the_bound_costs_more_than_the_event(kind, order, relation):
    """One number, three shares: every whole move up to the rounded norm (twice that if one example is replaced)."""
    noise = kind(1.0)
    law = summed_law(kind, noise.share_variance(SMALL), 3)
    event = noise.event(SMALL, relation)
    moves = (2 if relation is REPLACE else 1) * SMALL.l2_norm
    if isinstance(event, SkellamDpEvent):
        norm, variance = event.l2_norm * (2 if relation is REPLACE else 1), event.variance
        allowed = order * norm**2 / (2 * variance) + min(
            ((2 * order - 1) * norm**2 + 6 * norm) / (4 * variance**2), 1.5 * norm / variance
        )
    else:
        allowed = event.xi + event.rho * order
    worst = max(divergence(law, move, order) for move in range(1, math.floor(moves) + 1))
    assert allowed / 2.2 < worst <= allowed


def test_the_events_carry_the_noise_of_the_guaranteed_shares_and_the_rounded_norm():
    """By hand: C = 3 steps in one number is rounded to at most 3 + 1 (here √(9 + 1/4 + 3.5) is less)."""
    norm = math.sqrt(9 + 1 / 4 + 3.5)
    assert SMALL.l2_norm == pytest.approx(norm, rel=1e-8)
    assert SMALL.l1_norm == pytest.approx(norm, rel=1e-8)
    assert SMALL.lengthening == pytest.approx(norm / 3, rel=1e-8)
    wide = SkellamNoise(2.0).event(SMALL)
    assert (wide.variance, wide.l2_norm, wide.l1_norm) == pytest.approx((36.0, norm, norm), rel=1e-8)
    assert DiscreteGaussianNoise(2.0).event(SMALL).rho == pytest.approx(norm**2 / 72, rel=1e-8)
    assert DiscreteGaussianNoise(2.0).event(SMALL, REPLACE).rho == pytest.approx(4 * norm**2 / 72, rel=1e-8)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_epsilon_is_that_of_dp_accounting_for_the_same_zcdp_events(unit):
    cost = DiscreteGaussianNoise(2.0).cost(FINE, unit)
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(cost.event, 50)
    claim = epsilon({(cost.event, cost.relation): 50}, 1e-5)
    assert claim.accountant == "RDP"
    assert claim.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("unit", "moves"), [("client", 1), ("sample", 2)])
def test_on_a_fine_grid_the_claim_is_that_of_gaussian_noise(kind, unit, moves):
    """The same Rényi accounting of the continuous mechanism; its exact ε is lower by what Rényi accounting loses.

    Skellam noise is known at whole orders only, which costs up to half a per cent more here, and more at large ε.
    """
    cost = kind(4.0).cost(FINE, unit)
    claim = epsilon({(cost.event, cost.relation): 20}, 1e-5).epsilon
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(4.0 / moves), 20)
    assert claim == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3 if kind is DiscreteGaussianNoise else 5e-3)
    exact = epsilon({(dp.GaussianDpEvent(4.0 / moves), ADD_REMOVE): 20}, 1e-5).epsilon
    assert exact < claim < 1.12 * exact


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("unit", ["client", "sample"])
def test_on_a_fine_grid_cohorts_of_any_size_cost_the_same_event(kind, unit):
    costs = {kind(2.0).cost(DistributedSum(1000, 2.0**18, n, n * 2 // 3), unit) for n in range(10, 300, 7)}
    assert len(costs) == 1


@pytest.mark.parametrize("kind", BOTH)
def test_coarser_grids_and_more_numbers_cost_more(kind):
    def spent(levels, dimension):
        cost = kind(1.0).cost(DistributedSum(dimension, levels, 100, 60), "client")
        return epsilon({(cost.event, cost.relation): 10}, 1e-5).epsilon

    assert spent(1e6, 1000) < spent(100.0, 1000) < spent(30.0, 1000)
    assert spent(100.0, 1000) < spent(100.0, 100_000)


# --- room in the ring ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [1e-3, 2.0**-40])
@pytest.mark.parametrize("multiplier", [0.4, 30.0])
def test_skellam_noise_stays_within_its_reach_which_is_not_idle(failure, multiplier):
    noise = SkellamNoise(multiplier)
    terms = DistributedSum(100, 3.0, 5, 3)
    reach, half = noise.reach(terms, failure), 5 * noise.share_variance(terms) / 2
    assert 2 * terms.dimension * stats.skellam.sf(reach, half, half) < failure
    assert 2 * terms.dimension * stats.skellam.sf(math.floor(0.75 * reach) - 1, half, half) > failure


@pytest.mark.parametrize("failure", [1e-3, 2.0**-40])
def test_discrete_gaussian_noise_stays_within_its_reach_which_is_not_idle(failure):
    noise = DiscreteGaussianNoise(1.0)
    terms = DistributedSum(100, 3.0, 5, 3)
    law = summed_law(DiscreteGaussianNoise, noise.share_variance(terms), 5)
    reach, middle = noise.reach(terms, failure), len(law) // 2
    assert 2 * terms.dimension * law[middle + reach + 1 :].sum() < failure
    assert 2 * terms.dimension * law[middle + math.floor(0.75 * reach) :].sum() > failure


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_without_noise_nothing_is_added_and_nothing_is_claimed(kind):
    noise = kind(0.0)
    assert noise.add_share_(np.array([1]), stream("none"), SMALL).tolist() == [1]
    assert noise.event(SMALL) == dp.NonPrivateDpEvent()
    assert noise.cost(SMALL, "client").event is None
    assert (noise.reach(SMALL), noise.sum_deviation(SMALL, 5)) == (0, 0.0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf])
def test_noise_multipliers_that_make_no_sense_are_refused(kind, multiplier):
    with pytest.raises(ConfigError, match="noise_multiplier"):
        kind(multiplier)


def test_shares_too_narrow_for_the_theorem_on_sums_are_refused():
    with pytest.raises(PrivacyError, match="finer grid"):
        DiscreteGaussianNoise(0.1).event(SMALL)
    alone = DistributedSum(1, 3.0, 5, 1)
    assert DiscreteGaussianNoise(0.1).event(alone).rho == pytest.approx((alone.l2_norm / 0.3) ** 2 / 2, rel=1e-6)
    assert SkellamNoise(0.1).event(SMALL).variance == pytest.approx(0.09)


@pytest.mark.parametrize("kind", BOTH)
def test_shares_too_wide_for_the_exact_sampler_are_refused(kind):
    with pytest.raises(PrivacyError, match="coarser grid"):
        kind(1.0).event(DistributedSum(10, 2.0**45, 10, 5))


@pytest.mark.parametrize("kind", BOTH)
def test_a_failure_that_is_no_probability_is_refused(kind):
    with pytest.raises(ConfigError, match="wrap"):
        kind(1.0).reach(SMALL, 0.0)
