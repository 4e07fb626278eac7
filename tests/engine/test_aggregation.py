"""How uploads are added up: in clear, in any order, or securely; and what cannot be added up."""

import numpy as np
import pytest
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


def test_a_sum_does_not_lose_a_client_to_rounding():
    """What one client moves a sum by must be what it sent, or the noise is calibrated to something else."""
    wide = summed(PlainAggregator((Field("update"),)))
    assert wide.dtype == torch.float64
    assert float(wide) == 1.0 + (MANY - 1) * TINY
    narrow = summed(PlainAggregator((Field("update"),), narrows=True))
    assert narrow.dtype == torch.float32
    assert float(narrow) == float(np.float32(1.0 + (MANY - 1) * TINY)) > 1.0


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


FIELDS = (Field("update"), Field("prototype", combine="each"), Field("count", shape=(), weighted=False))


def aggregated(parts, weights, *, narrows=False):
    """The sums of a cohort whose ``parts`` were added up apart and then merged."""
    aggregators = []
    for part in parts:
        aggregators.append(PlainAggregator(FIELDS, narrows=narrows))
        for client in part:
            torch.manual_seed(client)
            upload = {"update": torch.randn(50), "prototype": torch.randn(3), "count": torch.tensor(client / 3)}
            assert aggregators[-1].add(client, upload, weights[client]) == ""
    first, *others = aggregators
    for other in others:
        first.merge(other)
    sums = CohortSums()
    first.close(sums)
    return sums


@pytest.mark.parametrize("narrows", [False, True])
def test_sums_tell_neither_the_order_of_clients_nor_who_added_which(narrows):
    """A stacked cohort comes in the order of its private sizes, and machines share a cohort in many ways."""
    weights = {client: (client + 1) / 3 for client in range(12)}
    expected = aggregated([range(12)], weights, narrows=narrows)
    assert expected.total["update"].dtype == (torch.float32 if narrows else torch.float64)
    for parts in ([range(11, -1, -1)], [range(0, 12, 2), range(1, 12, 2)], [[7], range(7), range(8, 12)]):
        found = aggregated(parts, weights, narrows=narrows)
        assert {name: value.tolist() for name, value in found.total.items()} == {
            name: value.tolist() for name, value in expected.total.items()
        }
        assert (found.members, found.weights, found.weight) == (expected.members, expected.weights, expected.weight)


def test_an_upload_that_cannot_be_added_up_is_reported_and_adds_nothing():
    aggregator = PlainAggregator((Field("count", shape=()), Field("update")))
    whole = {"count": torch.tensor(1.0), "update": torch.tensor([1.0, 2.0])}
    huge = {**whole, "update": torch.tensor([1.0, 1e300], dtype=torch.float64)}
    assert aggregator.add(0, whole, 1.0) == ""
    assert aggregator.add(1, huge, 1.0) == "sent a 'update' too large to be added up"
    assert aggregator.add(2, whole, 1e300) == "sent a 'count' too large to be added up"
    sums = CohortSums()
    aggregator.close(sums)
    assert sums.members == [0]
    assert (float(sums.total["count"]), sums.total["update"].tolist()) == (1.0, [1.0, 2.0])


def test_weights_apply_to_what_is_weighted_from_the_first_upload_on():
    aggregator = PlainAggregator((Field("update"), Field("count", shape=(), weighted=False)))
    for client, factor in ((4, 3.0), (2, 5.0)):
        aggregator.add(client, {"update": torch.tensor([1.0, -2.0]), "count": torch.tensor(7.0)}, factor)
    sums = CohortSums()
    aggregator.close(sums)
    assert sums.total["update"].tolist() == [8.0, -16.0]
    assert float(sums.total["count"]) == 14.0
    assert (sums.members, sums.weights, sums.weight) == ([2, 4], [5.0, 3.0], 8.0)
