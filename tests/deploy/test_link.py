"""What counts as a client's answer: what it signed, to the very request; anything else may be anybody's."""

from __future__ import annotations

import pytest

from privfl.deploy.agreement import Policy
from privfl.deploy.link import ANOTHER, UNSIGNED, Link, Request
from privfl.deploy.messages import Message, digest, opened
from privfl.privacy.secagg.primitives import SigningKey
from tests.deploy.rehearsal import Rehearsal, experiment
from tests.deploy.test_client import server_key

QUESTION = Request({"kind": "size", "round": 0})


class Scripted:
    """Hands over the replies that it was given, in turn, until one is genuine, as a network with forgers would."""

    def __init__(self, *replies):
        self.replies = replies

    def ask(self, requests, seconds, genuine):
        came = {}
        for reply in self.replies:
            for client, request in requests.items():
                if client not in came and genuine(client, found := reply(request)):
                    came[client] = found
        return came

    def close(self):
        """Nothing is held."""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    return Rehearsal(tmp_path_factory.mktemp("link") / "federation", experiment(), seconds=2.0)


@pytest.fixture
def own(rehearsal):
    return rehearsal.client(1).key


def link_over(rehearsal, *replies):
    policy = Policy.of(bytes(32), rehearsal.experiment, rehearsal.federation)
    return Link(Scripted(*replies), rehearsal.federation, policy, server_key(rehearsal), agreed={1})


def signed(key, mark=None, **meta):
    told = {"kind": "size", "size": 7, "from": 1, **meta}
    return lambda request: Message({**told, "request": mark or digest(request)}).sealed(key)


@pytest.mark.parametrize("times", [1, 3])
def test_forged_replies_do_not_keep_the_clients_own_from_being_heard(times, rehearsal, own, caplog):
    forged = [lambda request: b"junk", signed(SigningKey(bytes(32))), signed(own, "0" * 64)][:times]
    link = link_over(rehearsal, *forged, signed(own))
    answer = link.ask({1: QUESTION})[1]
    assert isinstance(answer, Message)
    assert answer.meta["size"] == 7
    assert link.unused == {1: times}
    assert caplog.messages == [
        f"client 1, or somebody in its name, {UNSIGNED}; its own answer is waited for",
    ]


def test_at_the_end_it_is_said_how_many_replies_were_not_the_clients_own(rehearsal, own, caplog):
    link = link_over(rehearsal, lambda request: b"junk", lambda request: b"more junk", signed(own))
    link.ask({1: QUESTION})
    link.end()
    assert caplog.messages[-1] == "4 replies in the name of client 1 were not its own answers; none was used"


def test_who_is_forged_and_never_answers_is_dropped_with_what_came(rehearsal, own):
    assert link_over(rehearsal).ask({1: QUESTION}) == {1: "did not answer within 2 s"}
    assert link_over(rehearsal, lambda request: b"junk").ask({1: QUESTION}) == {1: UNSIGNED}
    assert link_over(rehearsal, signed(own, "0" * 64)).ask({1: QUESTION}) == {1: ANOTHER}
    assert link_over(rehearsal, signed(own, **{"from": 2})).ask({1: QUESTION}) == {1: ANOTHER}


def test_a_refusal_that_the_client_signed_is_its_answer(rehearsal, own):
    refused = signed(own, kind="refused", reason="its own budget is spent")
    assert link_over(rehearsal, refused).ask({1: QUESTION}) == {1: "its own budget is spent"}


@pytest.mark.parametrize(("said", "ahead"), [(True, {1}), (False, set()), (7, set()), ("yes", set()), (None, set())])
def test_who_says_that_it_answered_later_rounds_is_known_and_nothing_else_counts_as_that(said, ahead, rehearsal, own):
    link = link_over(rehearsal)
    asked = []

    def agrees(request):
        asked.append(opened(request, bytes.fromhex(rehearsal.federation.server)).meta)
        return signed(own, kind="agreed", policy=link.policy.digest, ahead=said)(request)

    link.agreed, link.transport = set(), Scripted(agrees)
    assert link.join([1], 3) == {}
    assert link.ahead == ahead
    assert [meta["round"] for meta in asked] == [3]
