"""Toeplitz strategies against dense matrices and the values of jax-privacy."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import toeplitz

from privfl.privacy.mechanisms.toeplitz import column_norms, optimised, prefix_variances, solve, square_root

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "correlated_noise.json").read_text())


def rows(section):
    return [pytest.param(row, id=f"n{row['rounds']}") for row in ORACLES[section]["rows"]]


def dense(coefficients, rounds):
    return toeplitz(np.pad(coefficients, (0, rounds - len(coefficients))), np.zeros(rounds))


@pytest.mark.parametrize("row", rows("optimal_for_single_participation"))
def test_the_square_root_strategy_has_jax_privacys_coefficients_sensitivity_and_errors(row):
    rounds = row["rounds"]
    strategy = square_root(rounds)
    variances = prefix_variances(strategy, rounds)
    norm = column_norms(strategy, rounds)[0]
    assert strategy[:8] == pytest.approx(row.get("coefficients", strategy[:8]))
    assert norm == pytest.approx(row.get("sensitivity_squared", norm))
    assert variances[-1] == pytest.approx(row.get("last_error", variances[-1]))
    assert variances.mean() * norm == pytest.approx(row.get("mean_loss", variances.mean() * norm))
    independent = prefix_variances(np.array([1.0]), rounds)
    assert independent[-1] == row.get("independent_last", rounds)


def test_all_its_coefficients_are_a_square_root_of_the_prefix_sums():
    root = dense(square_root(20), 20)
    assert root @ root == pytest.approx(np.tril(np.ones((20, 20))))


@pytest.mark.parametrize("row", rows("optimised_banded"))
def test_the_optimised_bands_are_jax_privacys(row):
    found = np.array(optimised(row["rounds"], row["bands"], "mean"))
    norm = np.linalg.norm(found)
    assert found[0] == 1
    assert found[:4] / norm == pytest.approx(row["coefficients"], rel=2e-6)
    places = np.arange(row["participations"]) * row["bands"]
    squared = column_norms(found, row["rounds"])[places].sum() / norm**2
    assert squared == pytest.approx(row["sensitivity_squared"])


@pytest.mark.parametrize("bands", [1, 3, 12])
def test_norms_and_errors_are_those_of_the_dense_matrices(bands):
    rounds = 12
    coefficients = np.concatenate([[1.0], np.linspace(0.7, -0.2, bands - 1)])
    strategy = dense(coefficients, rounds)
    noise_on_sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(strategy)
    assert column_norms(coefficients, rounds) == pytest.approx((strategy**2).sum(0))
    assert prefix_variances(coefficients, rounds) == pytest.approx((noise_on_sums**2).sum(1))
    values = np.arange(rounds) + 0.5
    assert solve(coefficients, values) == pytest.approx(np.linalg.solve(strategy, values))


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize(("rounds", "bands"), [(2, 2), (9, 4), (40, 40), (300, 20)])
def test_no_small_change_of_the_optimised_coefficients_lowers_the_error(rounds, bands, objective):
    def loss(coefficients):
        variances = prefix_variances(coefficients, rounds)
        return (coefficients @ coefficients) * (variances.mean() if objective == "mean" else variances.max())

    found = np.array(optimised(rounds, bands, objective))
    best = loss(found)
    assert best <= loss(square_root(bands)) * (1 + 1e-12)
    generator = np.random.default_rng(5)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(30):
            assert loss(found + size * generator.standard_normal(bands) / bands) > best * (1 - 1e-9)


@pytest.mark.parametrize("row", rows("full_strategy_with_returning_clients"))
def test_wide_strategies_cost_more_than_the_norms_of_their_columns_when_clients_return(row):
    """Why bands never reach further than the rounds between two participations: the columns would not be orthogonal."""
    taken = np.zeros(row["rounds"])
    taken[np.arange(row["participations"]) * row["separation"]] = 1
    answer = np.convolve(square_root(row["rounds"]), taken)[: row["rounds"]]
    assert answer @ answer == pytest.approx(row["sensitivity_squared"])
    assert answer @ answer > 1.4 * row["participations"] * column_norms(square_root(row["rounds"]), row["rounds"])[0]
