"""The chain of an upload, and what each of the four cells may claim for it."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.channel.channel import ChannelSpec, RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog
from privfl.privacy.mechanisms.mechanism import Cover, Mechanism
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

BARE = DoorLog(bare={"gradients are computed without a mechanism (no DP-SGD)": None})
LOCAL = pf.DPSGD(noise_multiplier=2.0)
CENTRAL = pf.DPSGD(noise_multiplier=2.0, noise_at="server")
STEP = LOCAL.event(2.0, 0.1)
NOISY = DoorLog(noisy=Counter({STEP: 3}))
CLIPPED = DoorLog(clipped=Counter({0.1: 1}))
UPDATE = (Field("update", per_sample_scale=0.01),)
GAUSSIAN = GaussianDpEvent(1.5)
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
INFINITE = "∞"


def in_round(chain, fields=UPDATE, dpsgd=None, cohort_rate=1.0):
    """The channel of the first round of ten, in each of which the same ten clients take part."""
    spec = ChannelSpec.of(chain, fields, dpsgd, cohort_rate)
    return spec.for_run(1000, 10.0, ParticipationPattern(10, 1, 10), False).in_round(0, 10, {})


def cells(channel, log, *, pooled=False):
    """What each cell is charged: (event, relation, count), or ∞."""
    found = {}
    for release, count in channel.releases(log, server_holds_data=pooled):
        for (unit, observer), cost in release.costs:
            charge = INFINITE if cost.event is None else (cost.event, cost.relation, count)
            found.setdefault(f"{unit}/{observer}", []).append(charge)
    return found


def every(value):
    return {f"{unit}/{observer}": [value] for unit in UNITS for observer in OBSERVERS}


NOISED = (pf.Clip(1.0), pf.GaussianNoise(1.5))
AT_CLIENT = (pf.Clip(1.0), pf.GaussianNoise(1.5, at="client"))
CLIENT_LEVEL, SWING = (GAUSSIAN, ADD, 1), (GAUSSIAN, REPLACE, 1)
DP_SGD = (STEP, ADD, 3)
CASES = {
    "nothing": ((), None, BARE, every(INFINITE)),
    "clipping alone": ((pf.Clip(1.0),), None, BARE, every(INFINITE)),
    "DP-SGD at the client": (
        (),
        LOCAL,
        NOISY,
        every(INFINITE) | {"sample/server": [DP_SGD], "sample/public": [DP_SGD]},
    ),
    "DP-SGD on the sum": ((), CENTRAL, CLIPPED, every(INFINITE) | {"sample/public": [(STEP, ADD, 1)]}),
    "noise on the sum of clients": (
        NOISED,
        None,
        BARE,
        every(INFINITE) | {"sample/public": [SWING], "client/public": [CLIENT_LEVEL]},
    ),
    "noise at every client": (
        AT_CLIENT,
        None,
        BARE,
        {
            "sample/server": [SWING],
            "sample/public": [SWING],
            "client/server": [CLIENT_LEVEL],
            "client/public": [CLIENT_LEVEL],
        },
    ),
    "both": (
        NOISED,
        LOCAL,
        NOISY,
        {
            "sample/server": [DP_SGD],
            "sample/public": [DP_SGD],
            "client/server": [INFINITE],
            "client/public": [CLIENT_LEVEL],
        },
    ),
    "noise of size zero": ((pf.Clip(1.0), pf.GaussianNoise(0.0)), None, BARE, every(INFINITE)),
    "a size that left bare beside DP-SGD": (
        (),
        LOCAL,
        DoorLog(noisy=Counter({STEP: 3}), bare={"the exact number of the client's samples is sent": None}),
        every(INFINITE),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cell_is_charged_for_what_its_observer_sees(case):
    chain, dpsgd, log, expected = CASES[case]
    assert cells(in_round(chain, UPDATE, dpsgd), log) == expected


def test_whoever_trains_on_pooled_data_holds_it():
    found = cells(RoundChannel.bare(UPDATE, LOCAL), NOISY, pooled=True)
    assert found == every(INFINITE) | {"sample/public": [DP_SGD]}


def test_an_algorithm_that_sends_nothing_costs_nothing():
    assert RoundChannel.bare(()).releases(BARE) == []


def test_a_poisson_cohort_is_amplified_for_the_public_and_charged_to_everybody():
    channel = in_round(NOISED, cohort_rate=0.2)
    assert "client/public" not in cells(channel, BARE)
    (release,) = channel.poisson_cohort_releases()
    assert release.cost("client", "public").event == PoissonSampledDpEvent(0.2, GAUSSIAN)
    assert len(release.costs) == 1
    assert cells(channel, BARE)["sample/public"] == [SWING]


def test_noise_at_the_client_is_not_amplified_because_the_server_sees_who_takes_part():
    channel = in_round(AT_CLIENT, cohort_rate=0.2)
    assert channel.poisson_cohort_releases() == []
    assert cells(channel, BARE)["client/server"] == [CLIENT_LEVEL]


@pytest.mark.parametrize("at", ["client", "server"])
def test_noise_has_the_promised_spread(at):
    channel = in_round((pf.Clip(0.5), pf.GaussianNoise(3.0, at=at)))
    noise = NoiseSource.from_key(1)
    values = torch.zeros(100_000)
    upload = channel.at_client({"update": values.clone()}, noise.stream("c"), like=values, broken=False)
    total = channel.at_server({"update": upload["update"]}, noise)
    assert abs(float(total["update"].std()) / 1.5 - 1) < 5 / math.sqrt(2e5)


def test_noise_on_the_sum_of_gradients_is_scaled_like_the_upload():
    channel = in_round((), dpsgd=pf.DPSGD(noise_multiplier=3.0, max_grad_norm=2.0, noise_at="server"))
    total = channel.at_server({"update": torch.zeros(100_000)}, NoiseSource.from_key(1))
    assert abs(float(total["update"].std()) / (3.0 * 2.0 * 0.01) - 1) < 5 / math.sqrt(2e5)


def test_a_broken_upload_becomes_noise_where_its_absence_would_tell():
    channel = in_round(AT_CLIENT)
    assert channel.zero_fills_failures
    nan = torch.full((1000,), math.nan)
    upload = channel.at_client({"update": nan}, NoiseSource.from_key(1).stream("c"), like=nan, broken=True)
    assert bool(upload["update"].isfinite().all())
    assert float(upload["update"].std()) == pytest.approx(1.5, rel=0.2)


@pytest.mark.parametrize(
    ("chain", "fields", "dpsgd", "message"),
    [
        ((pf.GaussianNoise(1.0),), UPDATE, None, "without a Clip before it"),
        ((pf.GaussianNoise(1.0), pf.Clip(1.0)), UPDATE, None, "without a Clip before it"),
        ((pf.Clip(1.0), pf.Clip(2.0)), UPDATE, None, "a mechanism twice"),
        ((*NOISED, pf.GaussianNoise(2.0)), UPDATE, None, "a mechanism twice"),
        (NOISED, UPDATE, CENTRAL, "noise is added to the sum twice"),
        (NOISED, (Field("update"), Field("loss")), None, "uploads one field 'update'; this one sends update, loss"),
        (NOISED, (), None, "this one sends nothing"),
        ((), (Field("update"),), CENTRAL, "sums of per-sample gradients"),
    ],
)
def test_impossible_chains_are_refused_in_one_sentence(chain, fields, dpsgd, message):
    with pytest.raises(ConfigError, match=message):
        ChannelSpec.of(chain, fields, dpsgd)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_bounds_are_refused(value):
    with pytest.raises(ConfigError, match="Clip's max_norm"):
        pf.Clip(value)
    if value != 0:
        with pytest.raises(ConfigError, match="GaussianNoise's noise_multiplier"):
            pf.GaussianNoise(value)


@dataclass(frozen=True)
class Endless(pf.Clip):
    """States a bound that is none."""

    def norm_bound(self, server):
        return math.inf


@dataclass(frozen=True)
class Hopeful(pf.GaussianNoise):
    """Claims what a secret draw would amplify, and does not say that it rests on one."""

    amplified = False

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.noise_multiplier), 0.2)


def test_noise_is_sized_for_no_bound_without_end():
    with pytest.raises(ConfigError, match="states the bound inf, for which no noise can be sized"):
        in_round((Endless(1.0), pf.GaussianNoise(1.0)))


def test_what_does_not_say_that_it_is_amplified_is_not():
    tree = ChannelSpec.of((pf.Clip(1.0), pf.TreeNoise(1.0)), UPDATE, None, 0.2)
    assert not tree.amplified
    hopeful = in_round((pf.Clip(1.0), Hopeful(1.5)), cohort_rate=0.2)
    assert hopeful.poisson_cohort_releases() == []
    assert in_round(NOISED, cohort_rate=0.2).poisson_cohort_releases() != []


def test_a_round_has_the_bound_that_the_server_has_come_to():
    spec = ChannelSpec.of((pf.AdaptiveClip(2.0, count_noise=9.0), pf.GaussianNoise(1.0)), UPDATE)
    run = spec.for_run(1000, 10.0, ParticipationPattern(10, 1, 10), False)
    assert run.in_round(0, 10, {}).round.bound == 2.0
    assert run.in_round(1, 10, {"clip_norm": torch.tensor(0.5)}).round.bound == 0.5


@dataclass(frozen=True)
class Following(Mechanism):
    """A bound that follows the model."""

    kind: ClassVar = "bound"
    first: float = 0.5

    def norm_bound(self, server):
        return float(server["parameters"].norm()) if server else self.first


@dataclass(frozen=True)
class Planning(pf.GaussianNoise):
    """Noise of one's own that is planned before the run."""

    deviation: float = 0.0

    def for_run(self, run):
        return replace(self, deviation=self.noise_multiplier * run.bound)


@pytest.mark.parametrize(
    "noise", [pf.TreeNoise(1.0), pf.BandedNoise(1.0), Planning(1.0)], ids=lambda one: type(one).__name__
)
def test_no_round_has_a_larger_bound_than_noise_was_planned_for(noise):
    run = ChannelSpec.of((Following(), noise), UPDATE).for_run(4, 10.0, ParticipationPattern(10, 10, 1), False)
    bounds = [run.in_round(3, 10, {"parameters": torch.full((4,), size)}).round.bound for size in (0.01, 100.0)]
    assert bounds == [pytest.approx(0.02), 0.5]


def test_noise_that_each_round_sizes_follows_its_bound_and_clients_take_what_they_are_told():
    run = ChannelSpec.of((Following(), pf.GaussianNoise(1.0)), UPDATE).for_run(
        4, 10.0, ParticipationPattern(10, 1, 10), False
    )
    assert run.in_round(3, 10, {"parameters": torch.full((4,), 100.0)}).round.bound == pytest.approx(200.0)
    assert run.in_round(3, 10, {}, told=0.25).round.bound == 0.25
    with pytest.raises(ConfigError, match="the bound nan, for which no noise can be sized"):
        run.in_round(3, 10, {}, told=math.nan)
    shipped = ChannelSpec.of((pf.Clip(2.0), pf.GaussianNoise(1.0)), UPDATE)
    assert shipped.for_run(4, 10.0, run.pattern, False).in_round(3, 10, {}, told=50.0).round.bound == 2.0
