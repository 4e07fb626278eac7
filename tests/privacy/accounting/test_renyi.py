"""The Rényi curve of Skellam noise bounds the divergence added up term by term, and is as tight as its authors say."""

import math
from decimal import Context, Decimal, localcontext

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from scipy import sparse, special, stats

from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.events import SkellamDpEvent
from privfl.privacy.accounting.population import account
from privfl.privacy.accounting.renyi import ORDERS, _curve, renyi_epsilon, skellam_curve
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT

WHOLE = np.array([2.0, 3.0, 5.0, 16.0, 64.0])


def log_skellam(variance, numbers):
    """log P(x) by summing the product of two Poisson laws over all ways to get a difference."""
    ways = np.arange(0, 60 + math.ceil(variance + 30 * math.sqrt(variance)))
    first = stats.poisson.logpmf(ways[:, None] + np.abs(numbers), variance / 2)
    return special.logsumexp(first + stats.poisson.logpmf(ways, variance / 2)[:, None], axis=0)


def divergence(variance, moves, order):
    """The Rényi divergence between Skellam noise and itself moved by ``moves``, one number at a time."""
    total = 0.0
    for move in moves:
        reach = math.ceil(order * abs(move) + 14 * math.sqrt(variance)) + 60
        numbers = np.arange(-reach, reach + 1)
        here, there = log_skellam(variance, numbers), log_skellam(variance, numbers - move)
        total += special.logsumexp(order * here + (1 - order) * there) / (order - 1)
    return float(total)


@pytest.mark.parametrize("variance", [0.5, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("moves", [(1,), (3,), (2, -1, 1)], ids=str)
def test_the_curve_bounds_the_divergence_at_whole_orders_and_between(variance, moves):
    event = SkellamDpEvent(variance, math.hypot(*moves), sum(map(abs, moves)))
    orders = np.array([1.1, 1.5, 2.0, 2.7, 3.0, 5.0, 16.0])
    bounds = skellam_curve(event, orders)
    exact = [divergence(variance, moves, order) for order in orders]
    assert np.all(bounds >= np.array(exact) * (1 - 1e-9))


@pytest.mark.parametrize("variance", [200.0, 600.0])
def test_the_bound_is_tight_where_the_noise_is_wide(variance):
    """The paper calls it sharp: what the exact divergence adds to a Gaussian's is of the same order, 1/variance²."""
    event = SkellamDpEvent(variance, 2.0, 2.0)
    for order, bound in zip(WHOLE[:4], skellam_curve(event, WHOLE[:4]), strict=True):
        exact = divergence(variance, (2,), order)
        assert exact <= bound <= exact + 2 * (order * 4 + 6) / variance**2


def test_the_divergence_of_the_test_itself_is_a_gaussians_in_the_limit():
    assert divergence(600.0, (3,), 4.0) == pytest.approx(4 * 9 / 1200, rel=2e-3)


def test_the_curve_is_the_published_formula_at_whole_orders():
    """By hand for μ = 4, Δ₂² = 2, Δ₁ = 2: α/4 + min((4α + 10)/64, 3/4)."""
    curve = skellam_curve(SkellamDpEvent(4.0, math.sqrt(2.0), 2.0), np.array([2.0, 3.0, 20.0]))
    assert curve == pytest.approx([0.5 + 18 / 64, 0.75 + 22 / 64, 5 + 0.75], rel=1e-12)


def test_wide_skellam_noise_costs_what_gaussian_noise_costs_by_renyi():
    skellam = epsilon({(SkellamDpEvent(4e12, 1e6, 1e9), ADD_REMOVE): 100}, 1e-5).epsilon
    gaussian = renyi_epsilon({(dp.GaussianDpEvent(2.0), ADD_REMOVE): 100}, 1e-5)
    assert gaussian <= skellam < gaussian * 1.002


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT])
def test_a_hundred_sums_cost_the_conversion_of_a_hundred_curves(relation):
    event = SkellamDpEvent(1e4, 50.0, 500.0)
    expected = compute_epsilon(ORDERS, 100 * skellam_curve(event, ORDERS), 1e-6)[0]
    bound = epsilon({(event, relation): 100}, 1e-6)
    assert bound.accountant == "RDP"
    assert bound.epsilon == pytest.approx(expected, rel=1e-12)
    assert epsilon([((event, relation), 1)] * 100, 1e-6).epsilon == pytest.approx(expected, rel=1e-9)


def test_replacing_one_contribution_costs_the_doubled_norms():
    doubled = epsilon({(SkellamDpEvent(1e4, 100.0, 1000.0), ADD_REMOVE): 7}, 1e-5)
    assert epsilon({(SkellamDpEvent(1e4, 50.0, 500.0), REPLACE): 7}, 1e-5) == doubled


def test_skellam_noise_composes_with_gaussian_noise_in_one_curve():
    event = SkellamDpEvent(1e4, 50.0, 500.0)
    both = epsilon({(event, ADD_REMOVE): 3, (dp.GaussianDpEvent(2.0), ADD_REMOVE): 5}, 1e-5).epsilon
    expected = compute_epsilon(ORDERS, 3 * skellam_curve(event, ORDERS) + 5 * ORDERS / 8, 1e-5)[0]
    assert both == pytest.approx(expected, rel=1e-12)


def test_the_worst_of_several_clients_is_found_by_what_skellam_noise_cost_each():
    kinds = [(SkellamDpEvent(1e4, 50.0, 500.0), ADD_REMOVE), (dp.GaussianDpEvent(20.0), ADD_REMOVE)]
    population = account(kinds, sparse.csr_array(np.array([[1, 9], [5, 1], [3, 3]])), 1e-5)
    assert population.worst == 1


def exact_divergence(epsilon, domain, order):
    """The Rényi divergence of randomised response from itself about another value, in 60 digits."""
    with localcontext(Context(prec=60)):
        odds, order = Decimal(epsilon).exp(), Decimal(order)
        truth, other = odds / (odds + domain - 1), 1 / (odds + domain - 1)
        moved = truth**order * other ** (1 - order) + other**order * truth ** (1 - order)
        return float((moved + (domain - 2) * other).ln() / (order - 1))


@pytest.mark.parametrize(
    ("epsilon_0", "domain"), [(1e-8, 2), (1e-6, 2), (2e-4, 2), (2e-4, 1000), (1e-3, 10**5), (1.0, 10**9)]
)
def test_divergences_too_small_for_sums_of_probabilities_are_not_underrated(epsilon_0, domain):
    lie = domain * math.exp(-epsilon_0) / (1 + (domain - 1) * math.exp(-epsilon_0))
    curve, _ = _curve((dp.RandomizedResponseDpEvent(lie, domain), REPLACE))
    exact = np.array([exact_divergence(epsilon_0, domain, order) for order in ORDERS])
    assert (curve >= exact * (1 - 1e-9)).all()
