"""What an upload costs where nothing but randomised reports leaves, and the client remembers or does not."""

from collections import Counter

from dp_accounting import GaussianDpEvent

from privfl.privacy.channel.costs import Charges
from privfl.privacy.door.log import DoorLog


def priced(log, **settings):
    charges = Charges((), False, None, None, (), False)
    found = charges.releases(log, server_holds_data=False, **settings)
    return [release.cost("sample", "server").event for release, _ in found if release.cost("sample", "server")]


def test_what_passed_the_door_counts_as_soon_as_the_client_remembers_it():
    log = DoorLog(noisy=Counter({GaussianDpEvent(2.0): 1}))
    assert priced(log, remembered=False) == []
    assert priced(log, remembered=True) == [GaussianDpEvent(2.0)]
