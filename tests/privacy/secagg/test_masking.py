"""The masks of two peers cancel; what is bound to something differs wherever that differs."""

import dataclasses
import itertools

import numpy as np

from privfl.privacy.secagg import masking
from tests.privacy.secagg.staging import a_session, entropy_of

SESSION = a_session()
OTHERS = [
    dataclasses.replace(SESSION, **change)
    for change in ({"identity": bytes(32)}, {"round": 8}, {"threshold": 4, "quorum": 4}, {"members": (0, 1, 2, 3, 5)})
]
DRAW = entropy_of("masking")


def test_a_self_mask_is_committed_to_for_its_session_and_its_client():
    seeds = [masking.commitment(session, one, DRAW(32)) for session in (SESSION, *OTHERS) for one in (0, 1)]
    one = DRAW(32)
    seeds += [masking.commitment(session, member, one) for session in (SESSION, *OTHERS) for member in (0, 1)]
    assert len(set(seeds)) == len(seeds) == 2 * 5 * 2


def test_the_masks_of_two_peers_cancel():
    for one, other in itertools.permutations(range(3), 2):
        assert masking.sign_of(one, other) == -masking.sign_of(other, one)
        sum_of_both = np.full(5, 7, np.uint32)
        seed = DRAW(32)
        masking.on_threads(1)(sum_of_both, [(seed, masking.sign_of(one, other)), (seed, masking.sign_of(other, one))])
        assert sum_of_both.tolist() == [7] * 5
