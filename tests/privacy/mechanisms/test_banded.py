"""Banded noise against dense linear algebra: the stream is C⁻¹ξ, and reveals what the claim says."""

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

SOURCE = NoiseSource.from_key(21)


def dense(plan):
    rounds = plan.pattern.rounds
    return toeplitz(np.pad(plan.coefficients, (0, rounds - len(plan.coefficients))), np.zeros(rounds))


@pytest.mark.parametrize("objective", ["mean", "max", "square-root"])
@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (7, 1), (12, 4), (9, 9)])
def test_the_streamed_noise_is_the_dense_solution(rounds, bands, objective):
    plan = BandedNoise(1.3, bands, objective).plan(ParticipationPattern(rounds, bands, rounds), 0.8)
    fresh = np.array([SOURCE.stream("server", "correlated", round).normal(17) for round in range(rounds)])
    wanted = plan.deviation * np.linalg.solve(dense(plan), fresh)
    found = np.array([plan.add_(torch.zeros(17, dtype=torch.float64), t, SOURCE).numpy() for t in range(rounds)])
    assert np.abs(found - wanted).max() <= plan.deviation * 2**-20


@pytest.mark.parametrize("objective", ["mean", "square-root"])
@pytest.mark.parametrize(
    ("rounds", "bands", "separation", "participations"),
    [(8, 3, 3, 3), (8, 2, 3, 2), (8, 1, 2, 4), (8, 1, 1, 3), (7, 7, 7, 1), (7, 5, 3, 1), (9, 4, 4, 3), (6, 1, 1, 6)],
)
def test_the_sensitivity_is_that_of_the_worst_rounds_and_signs(rounds, bands, separation, participations, objective):
    """Every admissible set of rounds, every sign in each: the norm is convex, so extreme contributions are the worst.

    Contributions that point elsewhere gain nothing, because the columns of C in question are orthogonal.
    """
    plan = BandedNoise(1.0, bands, objective).plan(ParticipationPattern(rounds, separation, participations), 1.0)
    strategy, worst = dense(plan), 0.0
    for count in range(1, participations + 1):
        for places in itertools.combinations(range(rounds), count):
            if any(late - early < separation for early, late in itertools.pairwise(places)):
                continue
            columns = strategy[:, places]
            gram = columns.T @ columns
            assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-12
            worst = max(worst, *(np.linalg.norm(columns @ signs) for signs in itertools.product((-1, 1), repeat=count)))
    assert plan.sensitivity == pytest.approx(worst, rel=1e-12)


def test_what_the_releases_reveal_of_a_client_is_what_the_claim_says():
    """Two Gaussians of one covariance are told apart by the Mahalanobis distance of their means: 1/z at most."""
    plan = BandedNoise(0.7).plan(ParticipationPattern(9, 4, 3), 1.5)
    inverse = np.linalg.inv(dense(plan)) * plan.deviation
    precision = np.linalg.inv(inverse @ inverse.T)
    distances = []
    for places in ([0, 4, 8], [0, 5], [2, 6], [8], [1, 5]):
        shift = np.zeros(9)
        shift[places] = 1.5
        distances.append(np.sqrt(shift @ precision @ shift))
        apart = sum(plan.participation_event(t).noise_multiplier ** -2 for t in places)
        assert distances[-1] ** 2 == pytest.approx(apart, rel=1e-9)
    assert max(distances) == pytest.approx(1 / 0.7, rel=1e-9)


def test_the_server_keeps_as_many_vectors_as_bands_before_the_present():
    plan = BandedNoise(1.0, 4).plan(ParticipationPattern(40, 4, 10), 1.0)
    for round in range(40):
        plan.add_(torch.zeros(5), round, SOURCE)
        assert len(plan._latest) <= 3


def test_bands_reach_as_far_as_the_pattern_lets_them():
    assert len(BandedNoise(1.0).plan(ParticipationPattern(40, 8, 5), 1.0).coefficients) == 8
    assert len(BandedNoise(1.0).plan(ParticipationPattern(40, 40, 1), 1.0).coefficients) == 40
    assert len(BandedNoise(1.0, 99).plan(ParticipationPattern(40, 3, 1), 1.0).coefficients) == 40
    assert len(BandedNoise(1.0, 3).plan(ParticipationPattern(40, 8, 5), 1.0).coefficients) == 3


def test_a_mistake_is_one_sentence():
    with pytest.raises(ConfigError, match="9 bands, but a client may return after 8 rounds; give at most 8 bands"):
        BandedNoise(1.0, 9).plan(ParticipationPattern(40, 8, 5), 1.0)
    with pytest.raises(ConfigError, match="unknown objective 'median'"):
        BandedNoise(1.0, objective="median")
