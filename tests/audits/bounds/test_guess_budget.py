"""How many guesses are made follows from the claim, and is possible whatever the claim and the number of canaries."""

import math

import pytest

from audits.bounds.guess_budget import gaussian_strength, planned_guesses

CLAIMS = (0.0, 1e-9, 0.5, 3.0, 40.0, 1e4, math.inf)


@pytest.mark.parametrize("canaries", [*range(1, 36), 63, 65])
def test_every_number_of_canaries_has_a_plan(canaries):
    for claim in CLAIMS:
        above, below = planned_guesses(canaries, claim, delta=1e-5, confidence=0.95)
        assert 1 <= above + below <= canaries
        if canaries < 32:
            assert (above, below) == (canaries - canaries // 2, canaries // 2)


def test_a_plan_is_as_long_as_the_claim_is_strong():
    found = [planned_guesses(1000, claim, delta=1e-5, confidence=0.95)[0] for claim in (1.0, 20.0, math.inf)]
    assert 8 <= found[0] < found[1] <= found[2] == 500


def test_a_delta_next_to_one_has_a_strength():
    assert 12 < gaussian_strength(1.0, 1 - 1e-12) < 20
