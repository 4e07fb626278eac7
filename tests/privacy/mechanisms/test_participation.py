"""In which rounds a client may take part, against every set of rounds that the pattern admits."""

import itertools

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.federation.cohorts import Everyone, FixedCohort, Rotation
from privfl.privacy.mechanisms.participation import ParticipationPattern as Pattern


def admissible(pattern):
    """Every set of rounds in which one client may take part, largest ones included."""
    for count in range(1, pattern.participations + 1):
        for rounds in itertools.combinations(range(pattern.rounds), count):
            if all(late - early >= pattern.separation for early, late in itertools.pairwise(rounds)):
                yield list(rounds)


@pytest.mark.parametrize(("separation", "participations"), [(1, 3), (2, 4), (3, 2), (5, 9), (9, 1)])
def test_the_largest_total_is_that_of_the_worst_admissible_rounds(separation, participations):
    pattern = Pattern(9, separation, participations)
    for seed in range(5):
        weights = np.random.default_rng(seed).random(9)
        brute = max(weights[rounds].sum() for rounds in admissible(pattern))
        assert pattern.largest_total(weights) == pytest.approx(brute, rel=1e-12)


def test_a_pattern_is_read_off_the_cohort():
    assert Pattern.of(Rotation(4), clients=12, rounds=10) == Pattern(10, 4, 3)
    assert Pattern.of(Everyone(), clients=12, rounds=10) == Pattern(10, 1, 10)
    assert Pattern.of(FixedCohort(3), clients=12, rounds=1) == Pattern(1, 1, 1)
    assert Pattern(10, 4, 99).participations == 3  # no more fit


def test_a_pattern_has_rounds_and_participations():
    with pytest.raises(ConfigError, match="is no pattern of participation"):
        Pattern(0, 1, 1)


def test_participations_are_apart_if_there_is_one_or_they_keep_the_distance():
    assert Pattern(10, 4, 3).apart(4)
    assert not Pattern(10, 4, 3).apart(5)
    assert Pattern(10, 4, 1).apart(10)
