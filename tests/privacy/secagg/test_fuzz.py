"""Whatever bytes come in whatever order: only named errors, never a wrong sum, never a secret.

The cases are drawn from a fixed seed and bounded in number, so every run tries the same ones.
"""

import random
from collections import Counter

import pytest

from privfl.privacy.secagg import errors
from privfl.privacy.secagg.bodies import PAIR_SEED, parse_answer, parse_masked
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK
from privfl.privacy.secagg.messages import SENT_IN, SERVER, Kind, Phase, body_of, pack
from tests.privacy.secagg.fuzzing import Campaign, mutated
from tests.privacy.secagg.staging import SERVER_SENDS, Stage, a_session, sum_of, twin

HEADER = 60
CASES = 4000
SESSIONS = {
    "semi-honest": a_session(4, 3, bits=24),
    "active": a_session(4, 3, bits=24, adversary="active"),
}
FOREIGN = {
    "semi-honest": [a_session(4, 3, bits=24, round=8), a_session(4, 4, bits=24), SESSIONS["active"]],
    "active": [a_session(4, 3, bits=24, round=8, adversary="active"), SESSIONS["semi-honest"]],
}


def corpus(session):
    """Every message of a session that nobody disturbs: (receiver, data)."""
    stage = Stage(session)
    messages = []
    while stage.server.phase is not None:
        stage.play()
        messages += [(SERVER, data) for (phase, _), data in stage.sent.items() if phase == stage.server.phase]
        messages += list(stage.close().inbox.items())
    return messages


def resealed(stage, member, body):
    """A mutated body in an envelope that is right: what a server can do."""
    return pack(stage.session, SERVER_SENDS.get(stage.server.phase, Kind.ROSTER), SERVER, member, body)


def secrets_of(client):
    """Everything of a client's that must never be sent as it is."""
    keys = [client._channel.secret] if client._channel else []
    seeds = [one for one in (client._mask_key, client._self_seed, client._seal_key) if one]
    letters = [
        key for pair in client._keys.values() for key in (pair.outgoing, pair.incoming, pair.confirming, pair.seed)
    ]
    return [*keys, *letters, *client._confirming.values(), *client._pair_seeds.values(), *seeds]


def shows(data, secrets):
    """Whether any of the secrets occurs in ``data``, as bytes or in hexadecimal."""
    return any(secret in data or secret.hex().encode() in data for secret in secrets)


class Witness:
    """Looks at everything that a client sends."""

    def __init__(self, stage):
        self.stage = stage
        self.counts = Counter()

    def feed_client(self, member, phase, data):
        client = twin(self.stage.clients[member])
        secrets = secrets_of(client)
        before = dict(client._shares)
        try:
            sent = client.answer(data, self.stage.vectors[member])
        except errors.SecAggError as error:
            self.counts[type(error).__name__] += 1
            told = str(error).encode()
            assert client._due is None
            assert not any(secrets_of(client))
            assert not client._shares
            assert not shows(told, secrets)
            with pytest.raises(errors.SpentClient):
                client.answer(self.stage.inbox[member], self.stage.vectors[member])
            return
        self.counts["answered"] += 1
        body = body_of(sent)
        opened = set()
        if phase is Phase.MASK:
            opened = set(parse_masked(body, self.stage.session)[1].values())
            # Against an active adversary nothing that a server alters makes a client open a key.
            assert not (opened and self.stage.verifying)
        elif phase is Phase.UNMASK:
            opened = {one for what, one in parse_answer(body).values() if what == PAIR_SEED}
        assert not shows(sent, {*secrets, *secrets_of(client)} - opened)
        shares = [share for pair in client._shares.values() for share in (pair.mask_key, pair.self_mask)]
        assert not shows(sent, shares)
        if phase is Phase.UNMASK:
            revealed = parse_answer(body)
            for peer, (secret, share) in revealed.items():
                pair = before[peer]
                if secret == PAIR_SEED:
                    assert pair.self_mask not in sent
                    continue
                assert share == (pair.mask_key if secret == MASK_KEY else pair.self_mask)
                hidden = pair.self_mask if secret == MASK_KEY else pair.mask_key
                assert hidden not in sent
            assert revealed[member][0] == SELF_MASK
            assert sum(secret == SELF_MASK for secret, _ in revealed.values()) >= self.stage.session.threshold


@pytest.mark.parametrize("adversary", SESSIONS)
def test_mutated_messages_raise_named_errors_and_reveal_nothing(adversary):
    session = SESSIONS[adversary]
    dice = random.Random(f"mutations {adversary}")
    phases = [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]
    stages = {phase: Stage(session).until(phase) for phase in phases}
    messages = [data for _, data in corpus(session)]
    foreign = [data for other in FOREIGN[adversary] for _, data in corpus(other)]
    counts = Counter()
    for case in range(CASES):
        phase = phases[case % len(phases)]
        stage = stages[phase]
        member = dice.choice(session.members)
        witness = Witness(stage)
        right = stage.inbox[member] if phase is not Phase.ADVERTISE else dice.choice(messages)
        base = right if dice.random() < 0.6 else dice.choice(messages + foreign)
        if dice.random() < 0.7:
            data = resealed(stage, member, mutated(dice, base[HEADER:-16], messages))
        else:
            data = mutated(dice, base, messages + foreign)
        witness.feed_client(member, phase, data)
        counts += witness.counts
    assert sum(counts.values()) > CASES / 2
    assert counts["answered"] < CASES / 5
    assert len(counts) > 10, f"the mutations reach many different refusals: {counts}"


@pytest.mark.parametrize("adversary", SESSIONS)
def test_what_members_and_server_seal_themselves_is_refused_by_name_and_changes_nothing(adversary):
    """A small share of the campaign of a million messages in ``benchmarks/secagg_fuzz.py``."""
    counts = Campaign(adversary, "suite").run(CASES // 4)
    assert sum(counts.values()) == CASES // 4
    for side in ("server", "client"):
        assert sum(number for (where, _), number in counts.items() if where == side) > CASES / 12
        assert len([name for where, name in counts if where == side]) > 5, counts


@pytest.mark.parametrize("adversary", SESSIONS)
def test_a_server_to_which_mutated_messages_come_goes_on_undisturbed(adversary):
    """Messages whose envelope a stranger altered are refused in every phase, and the sum is exact all the same."""
    session = SESSIONS[adversary]
    dice = random.Random(f"server {adversary}")
    messages = [data for _, data in corpus(session)] + [data for s in FOREIGN[adversary] for _, data in corpus(s)]
    stage = Stage(session)
    counts = Counter()
    while stage.server.phase is not None:
        good = {member: stage.answer(stage.server.phase, member) for member in session.members}
        for _ in range(CASES // 16):
            data = dice.choice([*good.values(), *messages])
            data = mutated(dice, data, messages) if dice.random() < 0.8 else data
            if data in good.values():
                continue
            with pytest.raises(errors.SecAggError) as caught:
                stage.receive(data)
            counts[type(caught.value)] += 1
        for member, data in good.items():
            stage.server.receive(data, member)
        stage.close()
    assert stage.server.result().tolist() == sum_of(session, stage.vectors, session.members)
    assert len(counts) >= 6, counts


@pytest.mark.parametrize("adversary", SESSIONS)
def test_clients_that_send_anything_they_like_bring_no_crash_and_no_false_unmasking(adversary):
    """Well-sealed nonsense from one member: the session ends by a named error or with the exact sum.

    Only a member that lies about its mask key or its masked vector can spoil the sum, as it could by its vector alone.
    """
    session = SESSIONS[adversary]
    dice = random.Random(f"members {adversary}")
    liar = session.members[-1]
    ends = Counter()
    stages = {phase: Stage(session).until(phase) for phase in Phase if phase in SENT_PHASES[adversary]}
    for case in range(CASES // 20):
        phase = SENT_PHASES[adversary][case % len(SENT_PHASES[adversary])]
        stage = stages[phase].fork()
        others = [stage.answer(phase, member) for member in session.members if member != liar]
        good = stage.answer(phase, liar)
        body = mutated(dice, body_of(good), others)
        kind = next(kind for kind, sent_in in SENT_IN.items() if sent_in == phase)
        try:
            for data in [*others, stage.from_client(liar, kind, body)]:
                stage.receive(data)
        except errors.SecAggError as error:
            ends[type(error).__name__] += 1
        try:
            stage.close()
            while stage.server.phase is not None:
                for member in list(stage.inbox):
                    try:
                        stage.receive(stage.answer(stage.server.phase, member))
                    except errors.SecAggError as error:
                        ends[type(error).__name__] += 1
                stage.close()
        except errors.SecAggError as error:
            ends[type(error).__name__] += 1
            with pytest.raises(errors.AbortedSession):
                stage.server.result()
            continue
        ends["sum"] += 1
        survivors = stage.server.survivors
        if phase not in (Phase.ADVERTISE, Phase.MASK) or liar not in survivors:
            assert stage.server.result().tolist() == sum_of(session, stage.vectors, survivors)
    assert ends["sum"]
    assert ends["MalformedMessage"]
    assert ends["BadShare"]


SENT_PHASES = {
    "semi-honest": (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK),
    "active": tuple(Phase),
}


@pytest.mark.parametrize("adversary", SESSIONS)
def test_messages_lost_doubled_delayed_and_misdelivered_give_the_exact_sum_or_a_clean_abort(adversary):
    """A post that delivers what it has to anybody in any order, 40 sessions; the server closes a phase at any time."""
    session = SESSIONS[adversary]
    dice = random.Random(f"post {adversary}")
    ends = Counter()
    for walk in range(40):
        stage = Stage(session, label=f"walk {walk}")
        post = []
        due = list(session.members)
        while True:
            act = dice.random()
            try:
                if stage.server.phase is None:
                    break
                if act < 0.4 and due:
                    member = due.pop(dice.randrange(len(due)))
                    if dice.random() < 0.95:
                        post.append((SERVER, stage.answer(stage.server.phase, member)))
                elif act < 0.8 and post:
                    stage.receive(dice.choice(post)[1])
                elif act < 0.83 and post:
                    member = dice.choice(session.members)
                    if member not in due:  # a client that has answered gets something strange
                        twin(stage.clients[member]).answer(dice.choice(post)[1])
                elif not due and dice.random() < 0.15:
                    for _, data in post[-len(session.members) :]:
                        if dice.random() < 0.9:
                            try_to(stage.receive, data)
                    stage.close()
                    due = list(stage.inbox)
            except errors.TooFewClients:
                with pytest.raises(errors.AbortedSession):
                    stage.server.result()
                ends["abort"] += 1
                break
            except errors.SecAggError:
                continue
        if stage.server.phase is None and not stage.server._aborted:
            assert stage.server.result().tolist() == sum_of(session, stage.vectors, stage.server.survivors)
            ends["sum"] += 1
    assert sum(ends.values()) == 40
    assert min(ends["sum"], ends["abort"]) > 5


def try_to(call, data):
    try:
        call(data)
    except errors.SecAggError:
        return
