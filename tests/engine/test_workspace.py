"""How an upload leaves a client: broken ones where noise must hide them, and what is trained blind."""

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
    assert (found.dropped, found.client_state) == ("", {})


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
