"""Noise that is planned for a whole run covers what the rounding of a secure sum adds to an update."""

import math

import numpy as np
import pytest

import privfl as pf
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.channel.field import Field
from privfl.privacy.channel.secure_encoding import grid, longest
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.rounding import round_within

SIZE, BOUND = 4_000_000, 0.7


@pytest.mark.parametrize("noise", [pf.TreeNoise(2.0), pf.BandedNoise(2.0)], ids=["tree", "banded"])
def test_planned_noise_is_sized_for_the_longest_update_that_rounding_makes(noise):
    def planned(*chain):
        channel = ChannelSpec.of(chain, (Field("update"),))
        return channel.for_run(SIZE, 10.0, ParticipationPattern(8, 8, 1), False).noise.state

    secure = planned(pf.Clip(BOUND), pf.SecureSum(mode="ideal"), noise)
    plain = planned(pf.Clip(BOUND), noise)
    assert plain.bound == BOUND
    assert secure.bound == pytest.approx(BOUND * longest(BOUND, SIZE), rel=1e-12)
    assert secure.deviation == pytest.approx(plain.deviation * longest(BOUND, SIZE), rel=1e-12)
    assert longest(BOUND, SIZE) > 1.000001


def test_no_update_within_the_bound_is_rounded_to_more_than_the_longest():
    size, step = 100_000, grid(BOUND)
    noise = NoiseSource.from_key(1)
    flat = np.full(size, BOUND / math.sqrt(size) / step * (1 - 1e-9))
    lengths = [
        float(np.sqrt(np.square(round_within(flat, BOUND / step, noise.stream(i)).astype(float)).sum()) * step)
        for i in range(5)
    ]
    assert BOUND < max(lengths) <= longest(BOUND, size) * BOUND
