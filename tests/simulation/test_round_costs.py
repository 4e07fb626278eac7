"""Target ε into noise, for the client who needs most; what uploads cost is known before a round runs."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.calibration import noise_multiplier_for
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog
from privfl.simulation.round_costs import (
    ADD_OR_REMOVE_ONE,
    RoundCosts,
    calibrate,
    hardest,
    planned_gradients,
    planned_totals,
)

DPSGD = pf.DPSGD(target_epsilon=2.0)


@dataclass(frozen=True)
class Twice(pf.FedSampling):
    """FedSampling that adds two gradients up in one upload."""

    name: ClassVar[str] = "twice"

    def plan(self, usual, received):
        return replace(super().plan(usual, received), steps=2)


def spent(multiplier, gradients):
    history = {(DPSGD.event(multiplier, rate), ADD_OR_REMOVE_ONE): count for rate, count in gradients.items()}
    return epsilon(history, 1e-5, interval=False).epsilon


def test_one_rate_gives_the_noise_of_the_calibration():
    found = calibrate(DPSGD, [{0.1: 50}] * 3, None, 1e-5).noise_multiplier
    assert found == noise_multiplier_for(2.0, 1e-5, {0.1: 50})


def test_one_target_serves_the_client_who_needs_most():
    gradients = [{0.1: 50}, {0.3: 20}, {0.05: 200}, {0.1: 10, 0.2: 10}]
    found = calibrate(DPSGD, gradients, None, 1e-5).noise_multiplier
    worst = max(spent(found, counts) for counts in gradients)
    assert 0.98 * 2.0 < worst <= 2.0


def test_a_list_of_targets_gives_each_client_its_own_noise():
    dpsgd = pf.DPSGD(target_epsilon=(1.0, 4.0))
    found = calibrate(dpsgd, [{0.1: 50}, {0.1: 50}], None, 1e-5).noise_multiplier
    for target, multiplier in zip((1.0, 4.0), found, strict=True):
        assert 0.98 * target < spent(multiplier, {0.1: 50}) <= target


def test_a_given_noise_multiplier_is_left_alone():
    dpsgd = pf.DPSGD(noise_multiplier=1.0)
    assert calibrate(dpsgd, [{0.1: 50}], None, 1e-5) is dpsgd


def test_the_size_answer_is_part_of_the_target():
    size = pf.RandomizedResponse(epsilon=1.0, bound=100)
    with_size = calibrate(DPSGD, [{0.1: 50}], size.costs(), 1e-5).noise_multiplier
    without = calibrate(DPSGD, [{0.1: 50}], None, 1e-5).noise_multiplier
    assert with_size > 1.2 * without
    exact = pf.RandomizedResponse(epsilon=float("inf"), bound=100)
    with pytest.raises(ConfigError, match="sizes are sent exactly"):
        calibrate(DPSGD, [{0.1: 50}], exact.costs(), 1e-5)


def test_only_clients_that_no_other_dominates_are_priced():
    assert hardest([{0.1: 5}, {0.2: 5}, {0.2: 7}, {0.05: 9}, {0.01: 8}]) == [{0.2: 7}, {0.05: 9}]
    assert hardest([{0.1: 5, 0.2: 1}, {0.1: 2, 0.2: 4}]) == [{0.1: 5, 0.2: 4}]


def test_a_client_that_never_trains_needs_nothing():
    assert calibrate(DPSGD, [{0.1: 0}], None, 1e-5).noise_multiplier == 1.0


def test_noise_on_the_sum_covers_one_gradient_of_each_client():
    dpsgd = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
    received = {"rate": torch.tensor(0.25)}
    once = planned_gradients(pf.FedSampling(samples_per_round=100), pf.LocalTraining(), dpsgd, 0, received)
    assert once == (0.25, 1)
    with pytest.raises(ConfigError, match="twice adds 2 gradients up in one upload, but noise on the sum covers one"):
        planned_gradients(Twice(samples_per_round=100), pf.LocalTraining(), dpsgd, 0, received)


def phase_of(algorithm, dpsgd):
    (phase,) = phases_of(algorithm, RoundChannel.bare(algorithm.fields(), dpsgd))
    return phase


def test_a_doors_own_log_is_held_to_the_plan():
    """One gradient more, another rate, a value in clear: each of them alone is refused."""
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.25)
    received = {"parameters": torch.zeros(3)}
    costs = RoundCosts(phase_of(pf.FedAvg("uniform"), dpsgd), pf.LocalTraining(steps=2), received)
    planned = costs.log(0)
    costs.check(0, planned)
    more = DoorLog(planned.noisy + Counter(planned.noisy), Counter(), {})
    other = DoorLog(Counter({dpsgd.event(1.0, 0.5): 2}), Counter(), {})
    for log in (
        more,
        other,
        DoorLog(),
        DoorLog(planned.noisy, Counter({0.25: 1}), {}),
        DoorLog(planned.noisy, bare={"": None}),
    ):
        with pytest.raises(PrivacyError, match="took other values through the door of client 0 than it declared"):
            costs.check(0, log)


def test_a_target_covers_the_randomised_reports_of_all_rounds():
    algorithm = pf.FedAvg("uniform")
    channel = RoundChannel.bare([Field("share", shape=(), epsilon=0.5)], DPSGD)
    (phase,) = phases_of(algorithm, channel)
    events = planned_totals([phase], 7)
    assert list(events.values()) == [7]
