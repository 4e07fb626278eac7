"""No coalition below the threshold learns a secret, and no server gets both secrets of a client by two stories."""

import itertools

import pytest

from privfl.privacy.secagg import errors, shamir
from privfl.privacy.secagg.bodies import Request, numbers, parse_confirmation
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.letters import MASK_KEY, Shares
from privfl.privacy.secagg.messages import Kind, Phase, body_of
from privfl.privacy.secagg.session import Session
from tests.privacy.secagg.eavesdropper import Eavesdropper
from tests.privacy.secagg.staging import Stage, a_session, twin

PRIME = shamir.PRIME
VICTIM = 0


class OneShareTooFew(Client):
    """Shares its secrets under a threshold one below the session's."""

    def _split(self, holders):
        points = [self.session.points[holder] for holder in holders]
        secrets = (self._mask_key, self._self_seed)
        keys, seeds = (shamir.split(one, self.session.threshold - 1, points, self._entropy) for one in secrets)
        return {holder: Shares(keys[point], seeds[point]) for holder, point in zip(holders, points, strict=True)}


# --- coalitions ------------------------------------------------------------------------------------------------------


def share_matrix(session, make_client):
    """Shares as a matrix over the field: a row for every holder, a column for the secret, then one for each coin.

    Found by asking the client to share unit vectors: sharing is linear in the secret and the coins.
    """
    holders = sorted(session.holders[VICTIM])
    coins = session.threshold - 1

    def shares(column):
        numbers_drawn = iter([int(column == 1 + coin) for coin in range(coins)] + [0] * coins)
        client = Stage(session, make_client=make_client).clients[VICTIM]
        client._entropy = lambda n: b"".join(next(numbers_drawn).to_bytes(33, "big") for _ in range(n // 33))
        client._mask_key = int(column == 0).to_bytes(32, "big")
        client._self_seed = bytes(32)
        split = client._split(holders)
        return [int.from_bytes(split[holder].mask_key, "big") for holder in holders]

    columns = [shares(column) for column in range(coins + 1)]
    return holders, [list(row) for row in zip(*columns, strict=True)]


def determines_the_secret(rows):
    """Whether some combination of the rows is (1, 0, …, 0), by elimination over the field, coins first.

    If it is, those shares give the secret; if not, every secret is equally likely whatever the shares are.
    """
    rows = [row[1:] + row[:1] for row in rows]
    width = len(rows[0])
    for column in range(width - 1):
        pivot = next((row for row in rows if row[column] % PRIME), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        inverse = pow(pivot[column], -1, PRIME)
        rows = [[(x - row[column] * inverse * y) % PRIME for x, y in zip(row, pivot, strict=True)] for row in rows]
    return any(row[-1] % PRIME for row in rows)


SESSIONS = [
    a_session(5, 3),
    a_session(7, 4),
    a_session(7, 5, adversary="active", accomplices=2),
    a_session(16, 4, degree=6),
]


@pytest.mark.parametrize("session", SESSIONS)
def test_no_coalition_below_the_threshold_determines_a_secret_and_every_one_of_its_size_does(session):
    holders, matrix = share_matrix(session, Client)
    assert len(holders) == session.degree + 1
    for size in range(1, session.threshold + 1):
        for rows in itertools.combinations(matrix, size):
            assert determines_the_secret(list(rows)) is (size == session.threshold)


@pytest.mark.parametrize("session", SESSIONS[:2])
def test_a_planted_threshold_one_too_low_is_seen_by_the_same_test(session):
    _, matrix = share_matrix(session, OneShareTooFew)
    assert all(determines_the_secret(list(rows)) for rows in itertools.combinations(matrix, session.threshold - 1))


@pytest.mark.parametrize("session", SESSIONS)
def test_the_secret_is_what_the_shares_of_a_played_session_combine_to_from_the_threshold_on(session):
    stage = Stage(session).until(Phase.SHARE)
    secret = stage.clients[VICTIM]._mask_key
    stage.play().close()
    holders = sorted(session.holders[VICTIM])
    for size in range(1, len(holders) + 1):
        spy = Eavesdropper(stage.fork(), holders[-size:])
        spy.stage.play()
        spy.copy_shares()
        found = secret in set(spy.candidates(VICTIM, MASK_KEY))
        assert found is (size >= session.threshold)
        assert (VICTIM in spy.mask_keys()) is found


# --- a server that tells different stories ---------------------------------------------------------------------------


def ask(stage, member, survivors, dropped, confirmations=()):
    """What ``member`` answers to this request, or None if it refuses."""
    stage.inbox[member] = stage.from_server(
        member, Request(survivors, dropped, (), dict(confirmations)).to_bytes(), Kind.REQUEST
    )
    try:
        return stage.answer(Phase.UNMASK, member)
    except errors.SecAggError:
        return None


def others(session, *names):
    return [member for member in session.members if member not in names]


def test_of_all_requests_a_client_answers_the_consistent_ones_only():
    """Every way of listing five peers and a stranger as alive, dead, both or neither: 4⁶ requests."""
    session = a_session(6, 4, length=1)
    stage = Stage(session).until(Phase.UNMASK, {Phase.SHARE: (5,)})
    answered = 0
    for marks in itertools.product(("", "a", "d", "ad"), repeat=6):
        alive = [member for member, mark in enumerate(marks) if "a" in mark]
        dead = [member for member, mark in enumerate(marks) if "d" in mark]
        data = stage.from_server(VICTIM, Request(alive, dead).to_bytes())
        consistent = sorted(alive + dead) == [0, 1, 2, 3, 4] and VICTIM in alive and len(alive) >= 4
        try:
            twin(stage.clients[VICTIM]).answer(data)
        except errors.SecAggError:
            assert not consistent
        else:
            assert consistent
            answered += 1
    assert answered == 1 + 4, "nobody or one other of the five has dropped"


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_naming_the_same_client_alive_and_dead_recovers_no_update(adversary):
    """The request by which a server would take both secrets of one peer at once, tried on every client."""
    session = a_session(adversary=adversary)
    recovered = 0
    for victim in session.members:
        stage = Stage(session).until(Phase.MASK)
        spy = Eavesdropper(stage)
        stage.play().close().until(Phase.UNMASK)
        for member in session.members:
            confirmations = Request.from_bytes(body_of(stage.inbox[member])).confirmations
            answer = ask(stage, member, session.members, [victim], confirmations)
            assert answer is None
        recovered += len(spy.exposed())
    assert recovered == 0


@pytest.mark.parametrize(("n", "threshold"), [(4, 3), (5, 3), (6, 4)])
def test_telling_one_part_that_a_client_survived_and_the_other_that_it_dropped_recovers_no_update(n, threshold):
    """On the complete graph a threshold above half leaves no two parts that both have enough shares."""
    session = a_session(n, threshold)
    base = Stage(session).until(Phase.MASK)
    rest = others(session, VICTIM)
    for told_dead in itertools.chain.from_iterable(itertools.combinations(rest, k) for k in range(n)):
        stage = base.fork()
        spy = Eavesdropper(stage)
        stage.play().close()
        for member in session.members:
            answer = (
                ask(stage, member, rest, [VICTIM]) if member in told_dead else ask(stage, member, session.members, [])
            )
            if answer:
                spy.hear(member, answer)
        assert not spy.exposed()


def with_threshold(session, threshold):
    """The session with a threshold that its own check would refuse."""
    broken = Session.__new__(Session)
    broken.__dict__.update(session.__dict__)
    for cached in ("fingerprint", "holders", "points"):
        broken.__dict__.pop(cached, None)
    broken.__dict__.update(threshold=threshold, quorum=threshold)
    return broken


def exposed_by_splitting(session, accomplices):
    """In how many ways of telling honest clients two lists of survivors somebody is exposed.

    The accomplices confirm both lists and give all they have, the honest clients confirm the one they are told, and
    each is asked for shares under that list.
    """
    honest = others(session, *accomplices)
    lists = (list(session.members), others(session, VICTIM))
    base = Stage(session).until(Phase.MASK)
    exposed = 0
    for told_dead in itertools.chain.from_iterable(
        itertools.combinations(honest[1:], k) for k in range(len(honest))
    ):  # the victim itself would refuse the list without it
        stage = base.fork()
        spy = Eavesdropper(stage, accomplices)
        stage.play()
        spy.copy_shares()
        stage.close()
        story = {member: lists[member in told_dead] for member in honest}
        said = {}
        for member in accomplices:
            for which, names in enumerate(lists):
                liar = twin(stage.clients[member])
                data = liar.answer(stage.from_server(member, numbers(names), Kind.SURVIVORS))
                said[member, which] = parse_confirmation(body_of(data))[1]
        for member in honest:
            stage.inbox[member] = stage.from_server(member, numbers(story[member]), Kind.SURVIVORS)
            data = stage.answer(Phase.CONFIRM, member)
            confirmed = parse_confirmation(body_of(data))[1]
            said[member, member in told_dead] = confirmed
        for member in honest:
            dropped = others(session, *story[member])
            told = member in told_dead
            tags = {peer: one[member] for (peer, which), one in said.items() if which == told and member in one}
            answer = ask(stage, member, story[member], dropped, tags)
            if answer:
                spy.hear(member, answer)
        exposed += bool(spy.exposed())
    return exposed


def test_an_active_server_with_accomplices_recovers_no_update_by_splitting_its_story():
    session = a_session(7, 5, length=1, adversary="active", accomplices=2)
    assert exposed_by_splitting(session, (5, 6)) == 0


def test_the_same_attack_succeeds_as_soon_as_the_threshold_is_one_lower():
    """With 4 of 7 and 2 accomplices, 2 + 2 honest signatures and shares are enough for either story."""
    session = with_threshold(a_session(7, 5, length=1, adversary="active", accomplices=2), 4)
    assert exposed_by_splitting(session, (5, 6)) > 0
