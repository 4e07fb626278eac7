"""Attempts are repeated until one is good enough, and the best is kept."""

import math

import pytest
import torch

from attacks.gradient_inversion.attempts import NoReconstruction, Reconstruction, best_of


def attempts(*objectives):
    left = iter(objectives)

    def attempt():
        value = next(left)
        return Reconstruction(torch.full((2, 1, 2, 2), 0.5), torch.zeros(2, dtype=torch.int64), value, 7)

    return attempt


def test_the_lowest_finite_objective_wins():
    best = best_of(attempts(3.0, math.nan, 1.0, 2.0), 4)
    assert (best.objective, best.attempts, best.iterations) == (1.0, 4, 7)


def test_an_attempt_that_is_good_enough_is_the_last():
    assert best_of(attempts(3.0, 0.1, 0.0), 3, enough=0.5).attempts == 2


def test_nothing_but_divergence_is_an_error():
    with pytest.raises(NoReconstruction, match="all 2 attempts diverged"):
        best_of(attempts(math.nan, math.inf), 2)
