"""Loss-dependent weights and their power: equations (2) and (3) of GRP-FED, the cap, and the form of sums."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from privfl.algorithms.fair.adaptive_weights import (
    capped,
    loss_weights,
    next_power,
    share,
    spread,
    spread_from_sums,
)

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "grpfed.json").read_text())
LOSSES = torch.tensor([0.3, 0.9, 0.45, 2.0, 0.9], dtype=torch.float64)


def power(q, before, after, step=0.5, largest=50.0):
    values = (torch.tensor(float(value), dtype=torch.float64) for value in (q, before, after))
    return float(next_power(*values, step, largest))


def test_power_zero_weighs_all_clients_alike():
    assert torch.equal(loss_weights(LOSSES, 0.0), torch.full((5,), 0.2, dtype=torch.float64))


def test_a_huge_power_gives_all_weight_to_the_worst_client_and_ties_share_it():
    assert torch.equal(loss_weights(LOSSES, 1e6), torch.tensor([0.0, 0, 0, 1, 0], dtype=torch.float64))
    tied = torch.tensor([0.1, 0.9, 0.9])
    assert torch.equal(loss_weights(tied, 1e6), torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("q", [0.5, 1.0, 3.7, 10.0])
def test_weights_are_powers_of_losses_over_their_sum(q):
    powers = LOSSES.numpy() ** q
    np.testing.assert_allclose(loss_weights(LOSSES, q).numpy(), powers / powers.sum(), rtol=1e-13)


def test_weights_follow_a_permutation_of_the_clients_and_ignore_the_scale_of_the_losses():
    order = torch.tensor([3, 0, 4, 1, 2])
    weights = loss_weights(LOSSES, 10.0)
    torch.testing.assert_close(loss_weights(LOSSES[order], 10.0), weights[order], rtol=1e-14, atol=0)
    for factor in (1e-6, 7.0, 1e6):
        torch.testing.assert_close(loss_weights(factor * LOSSES, 10.0), weights, rtol=1e-12, atol=0)


def test_twice_the_loss_is_1024_times_the_weight_at_the_papers_power():
    weights = loss_weights(torch.tensor([0.5, 1.0]), 10.0)
    assert float(weights[1] / weights[0]) == pytest.approx(ORACLES["weights"]["twice_the_loss_at_q_10"], rel=1e-13)


@pytest.mark.parametrize("q", [0.0, 1.0, 10.0, 50.0])
def test_extreme_losses_give_finite_weights_that_sum_to_one(q):
    losses = torch.tensor([0.0, 1e-30, 1e-12, 1e-3, 1.0, 1e30], dtype=torch.float64)
    weights = loss_weights(losses, q)
    assert bool(weights.isfinite().all())
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(loss_weights(losses[:2], q), torch.full((2,), 0.5, dtype=torch.float64))  # both at the floor


def test_equal_spreads_leave_the_power_and_a_first_spread_too():
    assert power(10, 0.3, 0.3) == 10
    assert power(10, float("nan"), 0.3) == 10
    assert power(10, 0.0, 0.0) == 10
    assert power(10, 4e-13, 5e-13) == 10  # below what counts as a spread


def test_the_power_moves_with_the_spread_and_by_at_most_twice_its_step():
    draws = np.random.default_rng(0)
    for before, after, step in zip(*draws.exponential(size=(2, 300)), draws.uniform(0, 2, 300), strict=True):
        change = power(25, before, after, step) - 25
        assert np.sign(change) == np.sign(after - before)
        assert abs(change) <= 2 * step * (1 + 1e-12)
        assert change == pytest.approx(2 * step * (after - before) / (after + before), rel=1e-9)


def test_a_spread_out_of_nothing_raises_the_power_by_twice_its_step_and_the_reverse_lowers_it():
    assert power(10, 0.0, 0.2) == pytest.approx(11, abs=1e-15)
    assert power(10, 0.2, 0.0) == pytest.approx(9, abs=1e-15)


def test_the_power_stays_between_zero_and_its_maximum():
    assert power(0.4, 1.0, 0.0) == 0
    assert power(49.8, 0.0, 1.0) == 50


def brute_force_cap(weights, largest):
    """min(cap, c·λ) with c by root finding: the definition, without any sorting."""
    scale = brentq(lambda log_c: np.minimum(largest, np.exp(log_c) * weights).sum() - 1, -1, 700, xtol=1e-13)
    return np.minimum(largest, np.exp(scale) * weights)


@pytest.mark.parametrize("largest", [0.12, 0.2, 0.35, 0.9])
def test_the_cap_pours_what_it_cuts_off_over_the_others_in_proportion(largest):
    draws = np.random.default_rng(1)
    for _ in range(20):
        weights = loss_weights(torch.from_numpy(draws.exponential(size=10)), 8.0)
        found = capped(weights, largest).numpy()
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert found.max() <= largest * (1 + 1e-9)
        np.testing.assert_allclose(found, brute_force_cap(weights.numpy(), largest), rtol=1e-6, atol=1e-10)


def test_a_cap_that_does_not_bind_changes_nothing_and_one_that_nobody_can_meet_weighs_alike():
    weights = loss_weights(LOSSES, 1.0)
    assert torch.equal(capped(weights, 1.0), weights)
    assert torch.equal(capped(weights, 0.9), weights)
    assert torch.equal(capped(weights, 0.1), torch.full((5,), 0.2, dtype=torch.float64))
    assert torch.equal(capped(weights, 0.2), torch.full((5,), 0.2, dtype=torch.float64))


def test_weights_that_underflowed_share_what_the_cap_leaves():
    weights = loss_weights(torch.tensor([1e-12, 1e30, 1e-12], dtype=torch.float64), 50.0)
    assert weights.tolist() == [0, 1, 0]
    expected = torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64)
    torch.testing.assert_close(capped(weights, 0.4), expected, rtol=1e-12, atol=0)
    halves = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    torch.testing.assert_close(capped(weights, 0.5), halves, rtol=1e-12, atol=0)


def test_the_spread_is_the_population_standard_deviation():
    assert float(spread(LOSSES)) == pytest.approx(np.std(LOSSES.numpy()), rel=1e-14)
    assert float(spread(LOSSES[:1])) == 0


def test_two_passes_of_sums_give_the_weights_that_all_losses_give():
    total, squares, count = LOSSES.sum(), LOSSES.square().sum(), torch.tensor(5.0)
    mean, deviation, scale = spread_from_sums(total, squares, count)
    assert float(mean) == pytest.approx(np.mean(LOSSES.numpy()), rel=1e-14)
    assert float(deviation) == pytest.approx(np.std(LOSSES.numpy()), rel=1e-12)
    for q in (0.0, 1.0, 10.0, 50.0):
        shares = share(LOSSES, scale, torch.tensor(q))
        torch.testing.assert_close(shares / shares.sum(), loss_weights(LOSSES, q), rtol=1e-11, atol=0)


def test_the_scale_of_the_sums_is_never_below_the_largest_loss_and_met_by_one_bad_client():
    draws = np.random.default_rng(2)
    for size in (1, 2, 3, 10, 100):
        losses = torch.from_numpy(draws.exponential(size=size))
        scale = spread_from_sums(losses.sum(), losses.square().sum(), torch.tensor(float(size)))[2]
        assert float(scale) >= float(losses.max()) * (1 - 1e-9)
    losses = torch.tensor([0.5, 0.5, 0.5, 2.0], dtype=torch.float64)
    scale = spread_from_sums(losses.sum(), losses.square().sum(), torch.tensor(4.0))[2]
    assert float(scale) == pytest.approx(2, rel=1e-12)


def test_a_public_bound_would_round_every_share_to_zero_and_the_scale_does_not():
    losses, grid = torch.tensor([0.3, 0.5, 0.7, 0.9], dtype=torch.float64), 2.0**-20
    bound, ten = torch.tensor(5.0), torch.tensor(10.0)
    expected = [ORACLES["weights"][f"share_of_{loss}_at_public_bound_5"] for loss in (0.3, 0.9)]
    shares = share(losses, bound, ten)
    assert shares[[0, 3]].tolist() == pytest.approx(expected, rel=1e-9)
    assert float((shares / grid).round().abs().max()) == 0
    scale = spread_from_sums(losses.sum(), losses.square().sum(), torch.tensor(4.0))[2]
    assert float((share(losses, scale, ten) / grid).round().max()) > 2**17
