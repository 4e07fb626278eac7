"""Fairness metrics against pairwise definitions and closed forms (check 13)."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.metrics.fairness import (
    best_tenth,
    client_average,
    effective_clients,
    fairness,
    gini,
    parity_gap,
    worst_tenth,
)

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "aaggff.json").read_text())["gini"]


def test_the_gini_coefficient_has_the_published_value():
    assert gini(ORACLE["values"]) == pytest.approx(ORACLE["gini"], abs=5e-8)


@pytest.mark.parametrize("seed", range(5))
def test_the_gini_coefficient_is_half_the_mean_difference_of_pairs_over_the_mean(seed):
    values = np.random.default_rng(seed).random(37) ** 3
    pairs = np.abs(values[:, None] - values[None, :]).mean()
    assert gini(values) == pytest.approx(pairs / (2 * values.mean()), rel=1e-12)
    assert gini(values * 1e-9) == pytest.approx(gini(values), rel=1e-12)
    assert gini(values[::-1]) == gini(values)


@pytest.mark.parametrize("clients", [1, 2, 11])
def test_equal_clients_have_gini_zero_and_a_single_non_zero_one_the_largest(clients):
    assert gini(np.full(clients, 0.7)) == pytest.approx(0, abs=1e-15)
    assert gini(np.zeros(clients)) == 0
    assert gini([1.0] + [0.0] * (clients - 1)) == pytest.approx((clients - 1) / clients)


def test_averages_are_weighted_by_size_and_tenths_are_single_clients_below_twenty():
    values, sizes = [0.9, 0.2, 0.5], [1, 2, 7]
    assert client_average(values, sizes) == pytest.approx((0.9 + 0.4 + 3.5) / 10)
    assert client_average(values) == pytest.approx(1.6 / 3)
    assert (worst_tenth(values, sizes), best_tenth(values, sizes)) == (0.2, 0.9)
    assert worst_tenth(np.arange(19)) == 0
    assert worst_tenth(np.arange(20)) == 0.5
    assert worst_tenth(np.arange(20), np.arange(20, 0, -1)) == pytest.approx(19 / 39)
    assert best_tenth(np.arange(20), np.arange(20, 0, -1)) == pytest.approx((18 * 2 + 19) / 3)


@pytest.mark.parametrize("seed", range(5))
def test_the_worst_lie_below_the_average_and_the_best_above(seed):
    draws = np.random.default_rng(seed)
    values, sizes = draws.random(45), draws.integers(1, 100, 45)
    found = fairness(values, sizes)
    assert found["worst_tenth"] <= found["client_average"] <= found["best_tenth"]
    assert found["parity_gap"] == parity_gap(values) == values.max() - values.min()
    assert found["gini"] == gini(values)
    assert 0 <= found["gini"] <= 1 - 1 / 45


def test_the_effective_number_of_clients_counts_equal_weights_and_survives_tiny_ones():
    assert effective_clients([0.25] * 4) == pytest.approx(4)
    assert effective_clients([1, 0, 0]) == pytest.approx(1)
    assert effective_clients([3, 1]) == pytest.approx(16 / 10)
    assert effective_clients(np.full(7, 1e-200)) == pytest.approx(7)
    assert effective_clients([0.0, 0.0]) == 0


@pytest.mark.parametrize(
    ("values", "sizes", "message"),
    [
        ([], None, r"shape \(0,\)"),
        ([[1.0]], None, r"shape \(1, 1\)"),
        ([0.5, math.nan], None, "not finite"),
        ([0.5, 0.6], [1], "2 clients need as many sizes"),
        ([0.5, 0.6], [1, 0], "sizes > 0"),
        ([-0.5, 0.6], None, "metric is -0.5"),
    ],
)
def test_metrics_without_meaning_are_refused(values, sizes, message):
    with pytest.raises(ConfigError, match=message):
        fairness(values, sizes)
