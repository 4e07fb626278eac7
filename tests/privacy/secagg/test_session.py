"""A session is what it says or is refused; it survives a trip through bytes, and differs from every other."""

import dataclasses

import pytest

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import MalformedMessage, UnsupportedVersion
from privfl.privacy.secagg.parameters import ThreatModel
from privfl.privacy.secagg.session import SERVER, Session
from tests.privacy.secagg.staging import a_session

SESSIONS = [
    a_session(),
    a_session(20, 5, degree=6, quorum=11, accomplices=3, length=2**39, bits=64, round=2**32 - 1),
    a_session(6, 5, adversary="active", accomplices=2, bits=1, members=(9, 4, 0, SERVER - 1, 2, 7)),
]


@pytest.mark.parametrize("session", SESSIONS)
def test_bytes_and_back_is_the_same_session(session):
    again = Session.from_bytes(session.to_bytes())
    assert again == session
    assert again.fingerprint == session.fingerprint
    assert dict(again.holders) == dict(session.holders)


def test_sessions_that_differ_in_anything_have_different_fingerprints():
    base = a_session(20, 15, degree=18, quorum=16, accomplices=1)
    others = [
        dataclasses.replace(base, **change)
        for change in (
            {"identity": bytes(32)},
            {"round": 8},
            {"members": tuple(range(1, 21))},
            {"members": tuple(range(20))[::-1]},
            {"degree": 16},
            {"degree": 19, "adversary": "active"},
            {"threshold": 14},
            {"length": 4},
            {"bits": 31},
            {"accomplices": 2},
            {"quorum": 17},
            {"encoding": b"e" * 32},
            {"least_honest": 4},
        )
    ]
    assert len({one.fingerprint for one in [base, *others]}) == 14


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"identity": b"short"}, "32 bytes"),
        ({"identity": "x" * 32}, "32 bytes"),
        ({"round": -1}, "round is -1"),
        ({"round": 2**32}, "round"),
        ({"round": True}, "integer"),
        ({"members": (1,)}, "2 to"),
        ({"members": [0, 1, 2, 3, 4]}, "tuple"),
        ({"members": (0, 1, 2, 3, 3)}, "twice"),
        ({"members": (0, 1, 2, 3, -1)}, "-1"),
        ({"members": (0, 1, 2, 3, SERVER)}, str(SERVER)),
        ({"members": (0, 1, 2, 3, 1.0)}, r"1\.0"),
        ({"degree": 5}, "degree is 5"),
        ({"degree": 0}, "degree is 0"),
        ({"degree": 3}, "even"),
        ({"threshold": 1}, "threshold is 1"),
        ({"threshold": 6}, "threshold is 6"),
        ({"threshold": 2}, "half"),
        ({"threshold": 3.0}, "integer"),
        ({"members": tuple(range(8)), "degree": 7, "threshold": 5, "accomplices": 5}, "accomplices hold"),
        ({"least_honest": 1}, "a sum of one hides nobody"),
        ({"threshold": 4, "accomplices": 3, "least_honest": 3}, "never opens on 3 honest ones"),
        ({"threshold": 4, "quorum": 4, "accomplices": 2, "least_honest": 3}, "raise it to 5"),
        ({"length": 0}, "length is 0"),
        ({"bits": 0}, "bits is 0"),
        ({"bits": 65}, "bits is 65"),
        ({"quorum": 2}, "quorum is 2"),
        ({"quorum": 6}, "quorum is 6"),
        ({"adversary": "malicious"}, "malicious"),
        ({"adversary": "active", "degree": 4, "accomplices": 1}, r"\(members \+ accomplices\)/2 = 3: raise"),
        ({"adversary": "active", "degree": 2}, "active adversary every client needs all 4 others"),
        ({"adversary": "active", "accomplices": 1, "quorum": 3, "threshold": 4}, "fewer than 4 can be opened"),
    ],
)
def test_an_impossible_session_is_refused_with_its_value(changes, says):
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace(a_session(), **({"quorum": 0} | changes))


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_thresholds_are_accepted_from_the_published_bounds_on(n, adversary):
    """Half of the members always; (members + accomplices)/2 if the adversary is active; more than the accomplices."""
    for accomplices in range(n - 1):  # at least 2 are honest
        for threshold in range(2, n + 1):
            secure = 2 * threshold > n + (accomplices if adversary == "active" else 0) and threshold > accomplices
            try:
                a_session(n, threshold, adversary=adversary, accomplices=accomplices)
            except ConfigError:
                assert not secure
            else:
                assert secure


def test_a_sum_never_holds_fewer_honest_vectors_than_stated():
    """The quorum rises with the accomplices and with what noise in shares counts on, or the session is refused."""
    assert a_session(3, 2, least_honest=3).quorum == 3
    assert a_session(9, 5, accomplices=3, least_honest=4).quorum == 7
    assert a_session(9, 5, accomplices=3, least_honest=2).quorum == 5
    few = Session.between(range(20), ThreatModel(0.1, 0.3), length=1)
    many = Session.between(range(20), ThreatModel(0.1, 0.3), length=1, least_honest=15)
    assert (few.quorum, few.least_honest, many.quorum) == (14, 3, 17)
    with pytest.raises(ConfigError, match="quorum is 14, of whom 2 may be accomplices"):
        Session.between(range(20), ThreatModel(0.1, 0.3), length=1, quorum=14, least_honest=13)


def test_a_session_for_a_threat_model_withstands_it():
    active = Session.between(range(100), ThreatModel(0.1, 0.2, "active"), length=5)
    assert (active.degree, active.threshold, active.accomplices, active.adversary) == (99, 80, 10, "active")
    assert Session.between(range(100), ThreatModel(0.1, 0.1), length=5).degree == 22, "a complete graph has 99"
    assert Session.between(range(20), ThreatModel(0.1, 0.3), length=5).degree == 19, "a sparse one saves too little"
    plain = Session.between(range(1000), ThreatModel(0.1, 0.1), length=5, round=3)
    assert plain.degree < 100 < plain.quorum == 900
    assert plain.threshold <= plain.degree
    assert plain.identity != Session.between(range(1000), ThreatModel(0.1, 0.1), length=5).identity
    with pytest.raises(ConfigError, match="lower"):
        Session.between(range(5), ThreatModel(0.2, 0.6), length=5)


def test_the_graph_depends_on_the_identity_and_is_symmetric():
    one, other = (dataclasses.replace(a_session(30, 3, degree=4), identity=bytes([place]) * 32) for place in (1, 2))
    assert one.holders != other.holders
    for member, holders in one.holders.items():
        assert member in holders
        assert len(holders) == 5
        assert all(member in one.holders[peer] for peer in holders)


def test_bytes_that_are_no_session_are_refused():
    data = SESSIONS[1].to_bytes()
    with pytest.raises(UnsupportedVersion, match="version 9"):
        Session.from_bytes(data.replace(b"aggregation\x03", b"aggregation\x09"))
    for wrong in (b"", b"x" * len(data), data[:-1], data + b"\0", data[:60], bytearray(data), None):
        with pytest.raises(MalformedMessage):
            Session.from_bytes(wrong)
    refused = 0
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        try:
            assert Session.from_bytes(changed) != SESSIONS[1]
        except MalformedMessage:
            refused += 1
    assert refused
