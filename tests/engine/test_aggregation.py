"""How uploads are added up: in the model's own type, or wider where noise is added to the sum."""

import numpy as np
import torch

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine.aggregation import CohortSums, PlainAggregator
from privfl.engine.secure_aggregation import SecureAggregator
from privfl.engine.workspace import Phase
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.channel.field import Field
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

MANY = 2000
TINY = 2.0**-26
"""Less than half of what separates 1 from the next float32: added to it one by one, it is lost each time."""


def summed(aggregator):
    """One client with a large number, then many with a tiny one."""
    for client in range(MANY):
        aggregator.add(client, {"update": torch.tensor([1.0 if client == 0 else TINY])}, 1.0)
    sums = CohortSums()
    aggregator.close(sums)
    return sums.total["update"]


def test_a_sum_that_noise_is_added_to_does_not_lose_a_client_to_rounding():
    """What one client moves a sum by must be what it sent, or the noise is calibrated to something else."""
    wide = summed(PlainAggregator((Field("update"),), wide=True))
    assert wide.dtype == torch.float64
    assert float(wide) == 1.0 + (MANY - 1) * TINY
    assert float(summed(PlainAggregator((Field("update"),)))) == 1.0


def test_channels_that_noise_sums_at_the_server_say_so():
    def channel(*chain, dpsgd=None):
        return ChannelSpec.of(chain, (Field("update", per_sample_scale=1.0),), dpsgd)

    assert channel(pf.Clip(1.0), pf.GaussianNoise(1.0)).has_central_noise
    assert channel(dpsgd=pf.DPSGD(noise_multiplier=1.0, noise_at="server")).has_central_noise
    assert not channel().has_central_noise
    assert not channel(pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")).has_central_noise


def test_an_opened_secure_sum_is_wide_until_its_noise_is_added():
    channel = ChannelSpec.of((pf.Clip(2.0), pf.SecureSum(mode="ideal"), pf.GaussianNoise(1.0)), (Field("update"),))
    channel = channel.for_run(1, 5.0, ParticipationPattern(1, 1, 1), False).in_round(0, 5, {})
    aggregator = SecureAggregator(
        Phase(FedAvg(), channel), [*range(5)], [1] * 5, torch.zeros(1), NoiseSource.from_key(1)
    )
    for client in range(5):
        assert aggregator.add(client, {"update": torch.tensor([0.3 + 0.1 * client])}, 1.0) == ""
    sums = CohortSums()
    aggregator.close(sums)
    assert sums.total["update"].dtype == torch.float64
    assert sums.members == [*range(5)]
    step = channel.secure_encoding.encoding.step["update"]
    true = (0.3 + 0.1 * np.arange(5)).astype(np.float32).astype(np.float64).sum()
    assert abs(float(sums.total["update"]) - true) <= 5 * step


def test_a_wide_sum_does_not_tell_in_which_order_clients_came():
    values = {client: torch.randn(50, generator=torch.Generator().manual_seed(client)) for client in range(9)}

    def summed(order, **how):
        aggregator, sums = PlainAggregator((Field("update"),), narrows=True, **how), CohortSums()
        for client in order:
            aggregator.add(client, {"update": values[client]}, 1.0)
        aggregator.close(sums)
        return sums.total["update"]

    orders = list(range(9)), list(range(9))[::-1]
    assert torch.equal(*(summed(order, wide=True) for order in orders))
    assert not torch.equal(*(summed(order) for order in orders))
    assert summed(orders[0], wide=True).dtype == torch.float32


def test_weights_apply_to_what_is_weighted_from_the_first_upload_on():
    aggregator = PlainAggregator((Field("update"), Field("count", shape=(), weighted=False)))
    for client, factor in ((4, 3.0), (2, 5.0)):
        aggregator.add(client, {"update": torch.tensor([1.0, -2.0]), "count": torch.tensor(7.0)}, factor)
    sums = CohortSums()
    aggregator.close(sums)
    assert sums.total["update"].tolist() == [8.0, -16.0]
    assert float(sums.total["count"]) == 14.0
    assert (sums.members, sums.weights, sums.weight) == ([2, 4], [5.0, 3.0], 8.0)
