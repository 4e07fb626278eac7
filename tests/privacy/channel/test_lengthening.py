"""Noise that is planned for a whole run covers what the rounding of a secure sum adds to an update."""

import math

import numpy as np
import pytest
import torch

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


def test_a_rounds_noise_covers_the_rounding_of_its_own_sum():
    chain = (pf.Clip(BOUND), pf.SecureSum(mode="ideal"), pf.GaussianNoise(1.0))
    channel = ChannelSpec.of(chain, (Field("update"),)).for_run(SIZE, 10.0, ParticipationPattern(8, 8, 1), False)
    found = channel.in_round(0, 10, {})
    assert found.round.lengthening == found.secure_encoding.lengthening == longest(BOUND, SIZE)


def test_noise_on_a_secure_sum_of_gradients_grows_by_what_rounding_may_move_it():
    """Both sums get the same noise but for its deviation, so the ratio of the noises is that of the deviations."""
    dpsgd, size = pf.DPSGD(noise_multiplier=1.0, max_grad_norm=0.01, noise_at="server"), 10_000
    fields = (Field("update", per_sample_scale=1.0),)
    sums = []
    for chain in ((), (pf.SecureSum(mode="ideal", largest=2.0**32),)):
        channel = ChannelSpec.of(chain, fields, dpsgd).for_run(size, 10.0, ParticipationPattern(8, 8, 1), False)
        channel = channel.in_round(0, 10, {})
        total = {"update": torch.zeros(size, dtype=torch.float64)}
        sums.append(channel.at_server(total, NoiseSource.from_key(1))["update"])
    step = channel.secure_encoding.encoding.step["update"]
    factor = 1 + math.sqrt(size) * step / 0.01
    assert 1.001 < factor < 1.01
    assert float(sums[1].norm() / sums[0].norm()) == pytest.approx(factor, rel=1e-5)


def test_no_update_within_the_bound_is_rounded_to_more_than_the_longest():
    size, step = SIZE, grid(BOUND)
    noise = NoiseSource.from_key(1)
    flat = np.full(size, BOUND / math.sqrt(size) / step * (1 - 1e-9))
    lengths = [
        float(np.sqrt(np.square(round_within(flat, BOUND / step, noise.stream(i)).astype(float)).sum()) * step)
        for i in range(2)
    ]
    assert BOUND < max(lengths) <= longest(BOUND, size) * BOUND
