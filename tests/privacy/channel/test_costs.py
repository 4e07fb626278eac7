"""What an upload costs where nothing but randomised reports leaves, and the client remembers or does not."""

from collections import Counter

from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.privacy.channel.costs import NO_NOISE_ON_GRADIENTS, Charges
from privfl.privacy.door.log import DoorLog


def priced(log, **settings):
    charges = Charges((), False, None, None, (), False)
    found = charges.releases(log, server_holds_data=False, **settings)
    return [release.cost("sample", "server").event for release, _ in found if release.cost("sample", "server")]


def test_what_passed_the_door_counts_as_soon_as_the_client_remembers_it():
    log = DoorLog(noisy=Counter({GaussianDpEvent(2.0): 1}))
    assert priced(log, remembered=False) == []
    assert priced(log, remembered=True) == [GaussianDpEvent(2.0)]


def test_clipped_gradients_on_whose_sum_there_is_no_noise_say_so():
    dpsgd = pf.DPSGD(noise_multiplier=0.0, noise_at="server")
    charges = Charges((), True, dpsgd, None, (), False)
    found = charges.releases(DoorLog(clipped=Counter({0.1: 1})), server_holds_data=False, remembered=False)
    for observer in ("server", "public"):
        costs = [cost for release, _ in found if (cost := release.cost("sample", observer))]
        assert [cost.reason for cost in costs] == [NO_NOISE_ON_GRADIENTS]
