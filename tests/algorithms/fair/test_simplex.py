"""The capped simplex {l ≤ p ≤ u, Σp = 1}: its projection and its quadratics, against scipy and random points."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from privfl.algorithms.fair.simplex import minimise_quadratic, project, residual

CAPS = [(0.0, 1.0), (0.0, 0.25), (0.05, 1.0), (0.1, 0.2), (1 / 7 - 1e-9, 1 / 7 + 1e-9)]


def feasible(draws, lower, upper, count):
    """Random points of the capped simplex: projections of a different kind, by mixing with the centre."""
    points = draws.dirichlet(np.full(7, 0.5), count)
    gap = points - 1 / 7
    room = np.minimum(
        np.where(gap > 0, (upper - 1 / 7) / np.maximum(gap, 1e-300), np.inf).min(1),
        np.where(gap < 0, (lower - 1 / 7) / np.minimum(gap, -1e-300), np.inf).min(1),
    )
    return 1 / 7 + gap * np.minimum(room, 1)[:, None]


@pytest.mark.parametrize(("lower", "upper"), CAPS)
@pytest.mark.parametrize("seed", range(4))
def test_the_capped_projection_is_feasible_idempotent_and_nearest(seed, lower, upper):
    draws = np.random.default_rng(seed)
    point = draws.normal(size=7) * (0.1, 1.0, 10.0, 1e6)[seed]
    nearest = project(point, lower, upper)
    scale = max(1.0, np.abs(point).max())
    assert abs(nearest.sum() - 1) < 1e-14 * scale
    assert lower <= nearest.min()
    assert nearest.max() <= upper
    np.testing.assert_allclose(project(nearest, lower, upper), nearest, atol=1e-15)
    others = feasible(draws, lower, upper, 1000)
    assert np.linalg.norm(point - nearest) <= np.linalg.norm(point - others, axis=1).min() + 1e-15 * scale


@pytest.mark.parametrize(("lower", "upper"), CAPS[:4])
def test_the_capped_projection_cuts_off_at_the_root_that_a_bracketing_solver_finds(lower, upper):
    point = np.random.default_rng(9).normal(size=7)
    root = brentq(lambda at: np.clip(point - at, lower, upper).sum() - 1, -10, 10, xtol=1e-15, rtol=1e-15)
    np.testing.assert_allclose(project(point, lower, upper), np.clip(point - root, lower, upper), atol=1e-12)


@pytest.mark.parametrize("upper", [1.0, 0.9])
def test_entries_so_large_that_one_is_lost_beside_them_are_projected_all_the_same(upper):
    for large in (1e17, 1e300):
        np.testing.assert_allclose(project(np.full(3, large), 0.0, upper), np.full(3, 1 / 3), atol=1e-15)
        np.testing.assert_allclose(project(np.array([large, 0, large]), 0.0, upper), [0.5, 0, 0.5], atol=1e-15)


@pytest.mark.parametrize("shape", ["spread", "ties", "one"])
def test_ties_and_single_entries_are_projected_too(shape):
    point = {"spread": np.array([5.0, -5, 0, 0]), "ties": np.full(4, 3.0), "one": np.array([0.3])}[shape]
    found = project(point, 0.0, 0.4) if shape != "one" else project(point, 0.5, 1.0)
    expected = {"spread": [0.4, 0.0, 0.3, 0.3], "ties": [0.25] * 4, "one": [1.0]}[shape]
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize(("lower", "upper"), CAPS)
@pytest.mark.parametrize("seed", range(3))
def test_capped_quadratics_are_solved_to_kkt_and_no_worse_than_by_sequential_programming(seed, lower, upper):
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(7, 4)) * 10.0 ** draws.uniform(-1, 1)
    matrix, linear = 0.01 * np.eye(7) + root @ root.T, draws.normal(size=7)
    found = minimise_quadratic(matrix, linear, np.full(7, 1 / 7), lower, upper)
    assert abs(found.sum() - 1) < 1e-12
    assert lower <= found.min()
    assert found.max() <= upper
    assert residual(found, matrix @ found - linear, lower, upper) < 1e-8

    def value(p):
        return 0.5 * p @ matrix @ p - linear @ p

    other = minimize(
        value,
        np.full(7, 1 / 7),
        jac=lambda p: matrix @ p - linear,
        method="SLSQP",
        bounds=[(lower, upper)] * 7,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert value(found) <= other.fun + 1e-10 * max(1.0, abs(other.fun))


def test_the_residual_asks_only_entries_that_can_move():
    point, slope = np.array([0.1, 0.4, 0.5]), np.array([3.0, 1.0, 0.0])
    assert residual(point, slope, 0.1, 0.5) == 0  # the first cannot fall, the last cannot rise: the second is alone
    assert residual(point, slope, 0.0, 0.5) == 2
    assert residual(point, slope, 0.0, 1.0) == 3
