"""How an upload leaves a client: broken ones where noise must hide them, and what is trained blind."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine.workspace import Phase, Trained, send
from privfl.privacy.channel.channel import ChannelSpec, RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.adaptive_clip import UNCLIPPED
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

SIZE = 8
IDEAL = pf.SecureSum(mode="ideal")
UPDATE = (Field("update"),)
BROKEN = {"update": torch.full((SIZE,), float("nan"))}


def channel(*chain, fields=UPDATE):
    return ChannelSpec.of(chain, fields).for_run(SIZE, 10.0, ParticipationPattern(3, 1, 3), False).in_round(0, 10, {})


def sent(channel, upload):
    noise = NoiseSource.from_key(1).stream("channel", 0, 0)
    return send(channel, 0, Trained(upload, {"own": torch.ones(1)}, DoorLog()), noise, torch.zeros(SIZE))


def test_where_clients_add_noise_a_broken_upload_is_their_noise_alone():
    noisy = channel(pf.Clip(1.0), pf.GaussianNoise(2.0, at="client"))
    found = sent(noisy, BROKEN)
    assert torch.equal(found.upload["update"], sent(noisy, {"update": torch.zeros(SIZE)}).upload["update"])
    assert float(found.upload["update"].abs().min()) > 0
    assert (found.dropped, found.zeroed, found.client_state) == ("", "sent a non-finite 'update'", {})


def test_a_broken_upload_neither_adds_to_a_secure_sum_nor_votes_on_its_bound():
    found = sent(channel(pf.AdaptiveClip(1.0, count_noise=5.0), IDEAL, pf.GaussianNoise(1.0)), BROKEN)
    assert float(found.upload["update"].abs().max()) == 0
    assert float(found.upload[UNCLIPPED]) == 0
    whole = sent(
        channel(pf.AdaptiveClip(1.0, count_noise=5.0), IDEAL, pf.GaussianNoise(1.0)), {"update": torch.zeros(SIZE)}
    )
    assert float(whole.upload[UNCLIPPED]) == 0.5
    assert set(whole.client_state) == {"own"}


@pytest.mark.parametrize("chain", [(), (pf.Clip(1.0), pf.GaussianNoise(1.0))], ids=["bare", "noise of the server"])
def test_elsewhere_a_broken_upload_is_dropped_with_the_reason(chain):
    found = sent(channel(*chain), BROKEN)
    assert found.upload is None
    assert found.dropped == "sent a non-finite 'update'"


def test_a_report_that_is_not_finite_counts_as_the_low_end_and_nobody_is_dropped():
    report = Field("loss", shape=(), weighted=False, epsilon=2.0, value_range=(1.0, 3.0))
    reports = channel(fields=(report,))
    found, low = (sent(reports, {"loss": torch.tensor(value)}) for value in (float("inf"), 1.0))
    assert found.dropped == ""
    assert torch.equal(found.upload["loss"], low.upload["loss"])


UNUSABLE = {
    "none": (None, "sent no 'loss'"),
    "nothing": ({}, "sent no 'loss'"),
    "no tensor": ({"loss": 1.0}, "sent no 'loss'"),
    "another shape": ({"loss": torch.zeros(3)}, "sent 'loss' of shape (3,)"),
    "another type": ({"loss": torch.tensor(2)}, "sent 'loss' as torch.int64"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_report_that_cannot_be_used_counts_as_the_low_end_since_its_absence_would_tell(what):
    upload, why = UNUSABLE[what]
    reports = channel(fields=(Field("loss", shape=(), weighted=False, epsilon=2.0, value_range=(1.0, 3.0)),))
    found, low = sent(reports, upload), sent(reports, {"loss": torch.tensor(1.0)})
    assert (found.dropped, found.zeroed) == ("", why)
    assert torch.equal(found.upload["loss"], low.upload["loss"])
    assert not found.client_state
    assert low.client_state


def test_beside_a_broken_update_a_report_drops_its_client_as_the_update_does():
    both = channel(fields=(*UPDATE, Field("loss", shape=(), weighted=False, epsilon=2.0)))
    assert sent(both, BROKEN | {"loss": torch.tensor(0.5)}).dropped == "sent a non-finite 'update'"
    assert sent(both, None).dropped == "sent no 'update'"
    whole = sent(both, of_norm(1.0) | {"loss": torch.zeros(2)})
    assert (whole.dropped, whole.zeroed) == ("", "sent 'loss' of shape (2,)")


def test_whatever_claims_something_at_the_door_makes_an_outside_algorithm_train_blind():
    class Own(FedAvg):
        name: ClassVar[str] = "own"
        local_only: ClassVar[bool] = True

    fields = (Field("update"),)
    total, dpsgd = NoisyTotal("loss", 1.0, 1.0), pf.DPSGD(noise_multiplier=1.0)
    for own, mechanisms, blind in (
        (Own(), {"statistics": (total,)}, True),
        (Own(), {"dpsgd": dpsgd}, True),
        (Own(), {}, False),
        (FedAvg(), {"dpsgd": dpsgd}, False),
    ):
        assert Phase(own, RoundChannel.bare(fields, **mechanisms)).blind == blind


def limited(*chain, bound=5.0, fields=UPDATE, dpsgd=None):
    spec = ChannelSpec.of(chain, fields, dpsgd).for_run(SIZE, 10.0, ParticipationPattern(3, 1, 3), False)
    return replace(spec, max_upload_norm=bound).in_round(0, 10, {})


def of_norm(norm):
    return {"update": torch.full((SIZE,), norm / math.sqrt(SIZE), dtype=torch.float64).float()}


@pytest.mark.parametrize("norm", [5.01, 1e19, 1e20, 1e26, 3e38])
def test_a_finite_upload_that_is_too_long_is_dropped_with_the_bound(norm):
    assert sent(limited(), of_norm(norm)).dropped == "sent 'update' longer than max_upload_norm = 5"


@pytest.mark.parametrize(("bound", "norm"), [(5.0, 4.999), (5.0, 0.0), (1e30, 9.9e29), (math.inf, 3e38)])
def test_an_upload_within_the_bound_leaves_as_it_is(bound, norm):
    found = sent(limited(bound=bound), of_norm(norm))
    assert found.dropped == ""
    assert torch.equal(found.upload["update"], of_norm(norm)["update"])


def test_every_field_is_measured_for_itself_and_a_report_is_not():
    fields = (*UPDATE, Field("control"), Field("loss", shape=(), epsilon=1.0))
    upload = {**of_norm(4.0), "control": of_norm(4.0)["update"], "loss": torch.tensor(1e30)}
    assert sent(limited(fields=fields), upload).dropped == ""
    found = sent(limited(fields=fields), {**upload, "control": of_norm(6.0)["update"]})
    assert found.dropped == "sent 'control' longer than max_upload_norm = 5"


@pytest.mark.parametrize(
    "protected",
    [
        {"chain": (pf.Clip(8.0), pf.GaussianNoise(1.0))},
        {"chain": (pf.Clip(8.0), pf.GaussianNoise(1.0, at="client"))},
        {
            "fields": (Field("update", per_sample_scale=1.0),),
            "dpsgd": pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
        },
    ],
    ids=["noise of the server", "noise of clients", "noise on a sum of gradients"],
)
def test_where_noise_is_sized_for_an_upload_its_length_drops_nobody(protected):
    chain = protected.pop("chain", ())
    found = sent(limited(*chain, **protected), of_norm(7.0))
    assert (found.dropped, found.zeroed) == ("", "")
    assert float(found.upload["update"].norm()) > 5


def test_what_is_clipped_is_measured_as_it_leaves():
    assert sent(limited(pf.Clip(1.0)), of_norm(1e26)).dropped == ""
