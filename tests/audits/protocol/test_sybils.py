"""A server in all others' names gets every vector where keys are not signed, and nobody's where they are."""

import numpy as np

from audits.protocol.sybils import impersonate, recovered
from privfl.privacy.secagg.parameters import ThreatModel
from privfl.privacy.secagg.session import Session

LENGTH = 3


def session_of(n, adversary):
    return Session.between(range(n), ThreatModel(0.1, 0.3, adversary), length=LENGTH)


def test_a_server_that_plays_all_peers_gets_every_vector_unless_keys_are_signed():
    random = np.random.default_rng(0)
    vectors = {member: random.integers(0, 1 << 32, LENGTH, np.uint32) for member in range(10)}
    everybody = frozenset(vectors)
    assert recovered(session_of(10, "semi-honest"), vectors) == (everybody, frozenset())
    assert recovered(session_of(10, "active"), vectors) == (frozenset(), everybody)


def test_the_victim_refuses_at_the_roster_before_it_deals_anything():
    found, refusal = impersonate(session_of(6, "active"), 2, np.ones(LENGTH, np.uint32))
    assert found is None
    assert "signature" in refusal
