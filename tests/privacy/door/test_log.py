"""The log of the door, which the plan of a run writes to as well: every count, and every reason for ∞."""

from collections import Counter

import pytest
from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.privacy.door.log import BARE_TOTAL, NO_NOISE, NO_NOISE_ON_TOTAL, DoorLog
from privfl.privacy.door.noisy_total import NoisyTotal

NOISY = pf.DPSGD(noise_multiplier=1.5)


@pytest.mark.parametrize(
    ("dpsgd", "expected"),
    [
        (NOISY, DoorLog(noisy=Counter({NOISY.event(1.5, 0.25): 3}))),
        (pf.DPSGD(noise_multiplier=1.5, noise_at="server"), DoorLog(clipped=Counter({0.25: 3}))),
        (pf.DPSGD(noise_multiplier=0.0, noise_at="server"), DoorLog(clipped=Counter({0.25: 3}))),
        (pf.DPSGD(noise_multiplier=0.0), DoorLog(bare={NO_NOISE: None})),
        (pf.DPSGD(noise_multiplier=(0.0, 1.5)), DoorLog(noisy=Counter({NOISY.event(1.5, 0.25): 3}))),
    ],
)
def test_gradients_noted_together_are_gradients_noted_one_by_one(dpsgd, expected):
    together, single = DoorLog(), DoorLog()
    together.note_private(dpsgd, 1, 0.25, 3)
    for _ in range(3):
        single.note_private(dpsgd, 1, 0.25)
    assert together == single == expected


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (NoisyTotal("loss", 1.0, 2.0), DoorLog(noisy=Counter({GaussianDpEvent(2.0): 1}))),
        (NoisyTotal("loss", 1.0, 0.0), DoorLog(bare={NO_NOISE_ON_TOTAL: None})),
        (None, DoorLog(bare={BARE_TOTAL: None})),
    ],
)
def test_a_total_is_noted_as_its_mechanism_says(mechanism, expected):
    log = DoorLog()
    log.note_total(mechanism)
    assert log == expected
