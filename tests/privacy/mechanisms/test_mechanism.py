"""What a mechanism does unless its class says otherwise, and what covers cost."""

from dataclasses import dataclass

import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

import privfl as pf
from privfl.privacy.mechanisms.mechanism import ChannelRound, Cover, Mechanism, ServerNoise
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

EVENT = GaussianDpEvent(1.5)


def round_with(clip=None, **more):
    settings = {"length": 4, "expected": 100.0, "pattern": ParticipationPattern(3, 1, 3), "bound": 2.0}
    return ChannelRound(**settings, lengthening=1.5, clip=clip, number=1, noised=True, **more)


@dataclass(frozen=True)
class Idle(Mechanism):
    """Says its kind and nothing else."""

    kind = "transform"


def test_a_mechanism_that_overrides_nothing_changes_nothing_and_claims_nothing():
    source, update, total = NoiseSource.from_key(1), torch.arange(4.0), {"update": torch.ones(4)}
    idle, round = Idle(), round_with()
    assert idle.at_client(update, source.stream("client"), round) is update
    idle.at_server(total, ServerNoise(source.stream("server"), source), round)
    assert total["update"].tolist() == [1.0] * 4
    assert idle.for_run(round) is idle
    assert idle.cover(round) is None
    assert (idle.adds_at, idle.amplified, idle.nonexpansive) == ("nowhere", False, False)
    assert (idle.broadcast(round), idle.side_report(update, round), idle.noisy_magnitude(1.0)) == ({}, {}, None)
    assert idle.norm_bound({}) == float("inf")


def test_a_gaussian_cover_charges_an_example_for_twice_the_bound():
    cover = Cover.gaussian(EVENT)
    assert cover.client.event == cover.sample.event == EVENT
    assert cover.client.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert cover.sample.relation is NeighboringRelation.REPLACE_ONE
    assert cover.amplified is None
    assert Cover.gaussian(EVENT, 0.2).amplified == PoissonSampledDpEvent(0.2, EVENT)


def test_no_cover_says_why():
    cover = Cover.nothing("a reason")
    assert (cover.client.event, cover.sample.event) == (None, None)
    assert cover.client.reason == cover.sample.reason == "a reason"


def test_noise_is_split_with_what_the_bound_itself_learns():
    clip = pf.AdaptiveClip(1.0)
    assert round_with().update_multiplier(1.0) == round_with(pf.Clip(1.0)).update_multiplier(1.0) == 1.0
    assert round_with(clip).update_multiplier(1.0) == clip.update_multiplier(1.0, 100.0) > 1.0


def test_noise_at_the_server_covers_what_rounding_lengthens():
    source, total = NoiseSource.from_key(1), {"update": torch.zeros(200_000)}
    noise = ServerNoise(source.stream("server"), source)
    pf.GaussianNoise(3.0).at_server(total, noise, round_with())
    assert abs(float(total["update"].std()) / (3.0 * 2.0 * 1.5) - 1) < 5 / (4e5) ** 0.5


def test_noise_at_the_server_leaves_a_part_to_what_the_bound_itself_sends():
    source, total = NoiseSource.from_key(1), {"update": torch.zeros(200_000)}
    clip = pf.AdaptiveClip(1.0, count_noise=0.6)
    pf.GaussianNoise(1.0).at_server(total, ServerNoise(source.stream("server"), source), round_with(clip))
    left = clip.update_multiplier(1.0, 100.0)
    assert left > 1.8
    assert abs(float(total["update"].std()) / (left * 2.0 * 1.5) - 1) < 6 / (4e5) ** 0.5


def test_only_noise_on_the_sum_is_amplified_by_a_secret_draw():
    round = round_with(secret_rate=0.2)
    assert pf.GaussianNoise(1.5).cover(round).amplified == PoissonSampledDpEvent(0.2, EVENT)
    own = pf.GaussianNoise(1.5, at="client")
    assert not own.amplified
    assert own.cover(round) == Cover.gaussian(EVENT)
