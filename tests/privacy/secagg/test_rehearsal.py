"""A session in one process: vectors one by one or all at once, by one worker or several, the same sum."""

import threading
from collections import Counter

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.privacy.secagg import errors, rehearsal
from privfl.privacy.secagg.ideal import IdealSecureSum
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.primitives import AgreementKey, SigningKey, verification_key
from privfl.privacy.secagg.rehearsal import Rehearsal, aggregate
from privfl.privacy.secagg.session import Session
from tests.privacy.secagg.staging import a_session, sum_of, vectors_for


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "session",
    [a_session(8, 5), a_session(8, 6, adversary="active", accomplices=2), a_session(16, 4, degree=8, length=40_000)],
    ids=["complete", "active", "sparse"],
)
def test_the_sum_is_that_of_the_survivors_for_any_number_of_workers(session, workers):
    vectors = vectors_for(session)
    lost = {1: Phase.MASK, 4: Phase.UNMASK}
    outcome = aggregate(session, vectors, lost=lost, workers=workers)
    assert outcome.survivors == tuple(member for member in session.members if member != 1)
    assert outcome.total.tolist() == sum_of(session, vectors, outcome.survivors)


def test_vectors_may_be_made_when_they_are_due_and_members_without_one_have_dropped_out():
    session = a_session(6, 4)
    vectors = vectors_for(session)
    made = []

    def make(member):
        made.append(member)
        return vectors[member]

    outcome = aggregate(session, make, lost={2: Phase.SHARE})
    assert made == [0, 1, 3, 4, 5]
    assert outcome.total.tolist() == sum_of(session, vectors, made)
    given = {member: vectors[member] for member in (5, 0, 3, 2)}
    outcome = aggregate(a_session(6, 4, round=8), given)
    assert outcome.survivors == (0, 2, 3, 5)
    assert outcome.total.tolist() == sum_of(session, vectors, given)


def test_clients_submit_in_any_order_and_from_any_thread():
    session = a_session(7, 4)
    vectors = vectors_for(session)
    rehearsal = Rehearsal(session)
    assert rehearsal.open() == session.members
    threads = [threading.Thread(target=rehearsal.submit, args=(m, vectors[m])) for m in (6, 0, 3, 5, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total, survivors = rehearsal.close()
    assert survivors == (0, 2, 3, 5, 6)
    assert total.tolist() == sum_of(session, vectors, survivors)


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_too_few_survivors_abort_at_the_phase_in_which_they_are_noticed(adversary):
    session = a_session(5, 4, adversary=adversary)
    vectors = vectors_for(session)
    phases = [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]
    for phase in phases:
        with pytest.raises(errors.TooFewClients):
            aggregate(session, vectors, lost={0: phase, 3: phase})
        assert aggregate(session, vectors, lost={3: phase}).total.tolist() == sum_of(
            session, vectors, [m for m in session.members if m != 3 or phase > Phase.MASK]
        )


def test_what_is_submitted_out_of_turn_is_refused():
    session = a_session()
    vectors = vectors_for(session)
    rehearsal = Rehearsal(session, lost={4: Phase.ADVERTISE, 3: Phase.MASK})
    with pytest.raises(errors.OutOfOrder, match="open it first"):
        rehearsal.submit(0, vectors[0])
    assert rehearsal.open() == (0, 1, 2)
    with pytest.raises(errors.OutOfOrder, match="open already"):
        rehearsal.open()
    rehearsal.submit(0, vectors[0])
    for error, member in ((errors.RepeatedMessage, 0), (errors.DroppedClient, 3), (errors.DroppedClient, 4)):
        with pytest.raises(error):
            rehearsal.submit(member, vectors[member])
    with pytest.raises(errors.UnknownPeer):
        rehearsal.submit(9, vectors[0])
    rehearsal.submit(1, vectors[1])
    rehearsal.submit(2, vectors[2])
    total, _ = rehearsal.close()
    assert total.tolist() == sum_of(session, vectors, (0, 1, 2))


def test_a_client_whose_vector_is_refused_has_dropped_out():
    session = a_session()
    vectors = vectors_for(session)
    rehearsal = Rehearsal(session)
    for member in rehearsal.open():
        if member == 2:
            with pytest.raises(errors.BadVector):
                rehearsal.submit(member, vectors[member].astype(np.float32))
        else:
            rehearsal.submit(member, vectors[member])
    total, survivors = rehearsal.close()
    assert survivors == (0, 1, 3, 4)
    assert total.tolist() == sum_of(session, vectors, survivors)


def test_a_rehearsal_with_strangers_or_without_workers_is_refused():
    for given in ({"lost": {9: Phase.MASK}}, {"workers": 0}):
        with pytest.raises(ConfigError):
            Rehearsal(a_session(), **given)


def test_bytes_and_seconds_are_told_by_phase_and_side():
    """The bytes of every message by the layout that the modules document: 60 of header, 16 of digest."""
    n, length = 6, 1000
    outcome = aggregate(a_session(n, 4, length=length), vectors_for(a_session(n, 4, length=length)))
    envelope, sealed = 60 + 16, 12 + 2 * 33 + 16
    assert outcome.sent == {
        (Phase.ADVERTISE, "clients"): n * (envelope + 32),
        (Phase.ADVERTISE, "server"): n * (envelope + 32 + (n - 1) * (4 + 32)),
        (Phase.SHARE, "clients"): n * (envelope + 64 + 16 + (n - 1) * (4 + 32 + 96 + 64 + sealed)),
        (Phase.SHARE, "server"): n * (envelope + (n - 1) * (4 + 64 + sealed)),
        (Phase.MASK, "clients"): n * (envelope + 32 + 4 + 4 * length),
        (Phase.MASK, "server"): n * (envelope + 12 + 4 * n),
        (Phase.UNMASK, "clients"): n * (envelope + n * (4 + 1 + 33)),
        (Phase.UNMASK, "server"): 0,
    }
    assert outcome.seconds.keys() == outcome.sent.keys()
    assert min(outcome.seconds.values()) > 0


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_what_is_computed_once_for_all_changes_no_sum_and_saves_half_of_the_agreements(adversary, monkeypatch):
    session = a_session(6, 4, adversary=adversary)
    vectors, counts = vectors_for(session), Counter()
    agree, check = AgreementKey.agree, rehearsal.verify
    monkeypatch.setattr(AgreementKey, "agree", lambda *given: counts.update(["agreed"]) or agree(*given))
    monkeypatch.setattr(rehearsal, "verify", lambda *given: counts.update(["verified"]) or check(*given))
    lost = {2: Phase.MASK}
    total = aggregate(session, vectors, lost=lost).total
    assert counts == {"agreed": 6 * 5 // 2 + 6} | ({"verified": 6} if adversary == "active" else {})
    assert total.tolist() == aggregate(session, vectors, lost=lost, alone=True).total.tolist()


def test_parties_that_share_a_process_refuse_what_others_would():
    together = rehearsal._Together()
    key, other = AgreementKey(bytes(range(32))), AgreementKey(bytes(range(1, 33)))
    assert together.agree(key, other.public) == together.agree(other, key.public) == key.agree(other.public)
    assert not together._agreed, "both have asked"
    signature = SigningKey(bytes(32)).sign(b"content")
    for wrong in ((bytes(64), b"content"), (signature, b"other")):
        together.verify(verification_key(bytes(32)), signature, b"content")
        with pytest.raises(errors.BadSignature):
            together.verify(verification_key(bytes(32)), *wrong)
    with pytest.raises(errors.BadKey):
        together.agree(key, bytes(32))


def test_a_session_survives_the_trip_to_another_process_and_gives_the_same_sum():
    session = Session.from_bytes(a_session(9, 4, degree=6, bits=48).to_bytes())
    vectors = vectors_for(session)
    assert aggregate(session, vectors).total.tolist() == sum_of(session, vectors, session.members)


def test_a_trusted_party_adds_a_vector_once():
    session = a_session(6, 4)
    vectors, party = vectors_for(session), IdealSecureSum(session)
    for member in session.members:
        party.submit(member, vectors[member])
    with pytest.raises(errors.RepeatedMessage, match="client 2 has submitted its vector before"):
        party.submit(2, vectors[2])
    assert party.close()[0].tolist() == sum_of(session, vectors, session.members)
