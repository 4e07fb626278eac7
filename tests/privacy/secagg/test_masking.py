"""Peers derive the same seeds; what is bound to something differs wherever that differs."""

import dataclasses
import itertools

import numpy as np
import pytest

from privfl.privacy.secagg import masking
from privfl.privacy.secagg.errors import BadKey
from privfl.privacy.secagg.primitives import AgreementKey
from tests.privacy.secagg.staging import a_session, entropy_of

SESSION = a_session()
OTHERS = [
    dataclasses.replace(SESSION, **change)
    for change in ({"identity": bytes(32)}, {"round": 8}, {"threshold": 4, "quorum": 4}, {"members": (0, 1, 2, 3, 5)})
]
DRAW = entropy_of("masking")
KEYS = {member: AgreementKey(DRAW(32)) for member in range(4)}


def test_two_peers_derive_the_same_seed_and_no_other_two_do():
    seed_of = masking.pair_seed
    seeds = set()
    for one, other in itertools.combinations(KEYS, 2):
        first = seed_of(SESSION, KEYS[one], one, other, KEYS[other].public)
        assert first == seed_of(SESSION, KEYS[other], other, one, KEYS[one].public)
        assert len(first) == 32
        seeds.add(first)
    assert len(seeds) == 6
    with pytest.raises(BadKey):
        seed_of(SESSION, KEYS[0], 0, 1, bytes(32))


def test_every_seed_is_bound_to_the_session_the_pair_and_its_use():
    """With one and the same pair of keys: other sessions, other names, other uses give other seeds."""
    mine, theirs = KEYS[0], KEYS[1].public
    seeds = [
        masking.pair_seed(session, mine, one, other, theirs)
        for session in (SESSION, *OTHERS)
        for one, other in ((0, 1), (0, 2), (1, 2))
    ]
    seeds += [masking.commitment(session, one, mine.agree(theirs)) for session in (SESSION, *OTHERS) for one in (0, 1)]
    assert len(set(seeds)) == len(seeds) == 5 * 3 + 5 * 2


def test_the_masks_of_two_peers_cancel():
    for one, other in itertools.permutations(range(3), 2):
        assert masking.sign_of(one, other) == -masking.sign_of(other, one)
        sum_of_both = np.full(5, 7, np.uint32)
        seed = DRAW(32)
        masking.on_threads(1)(sum_of_both, [(seed, masking.sign_of(one, other)), (seed, masking.sign_of(other, one))])
        assert sum_of_both.tolist() == [7] * 5
