"""Messages with valid seals and mutated bodies, for server and clients, and what must hold whatever comes of them."""

import pickle
import random
from collections import Counter

from privfl.privacy.secagg.errors import SecAggError
from privfl.privacy.secagg.messages import SENT_IN, SERVER, Kind, Phase, body_of, pack
from tests.privacy.secagg.staging import SERVER_SENDS, Stage, a_session, twin

KINDS = {phase: kind for kind, phase in SENT_IN.items()}
FROM_SERVER = [kind for kind in Kind if kind not in SENT_IN]
UNCHANGING = {"session", "_verify_keys", "_add_masks", "_key", "_operations", "_spool", "_refused"}
"""Of a server: settings, what cannot be compared, and the note that a client's message was refused."""


def mutated(dice, data, others):
    """``data`` with bits turned, numbers overwritten, pieces cut, doubled or taken from another message."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        place = dice.randrange(len(data) + 1)
        match dice.choice("bbbnnnncdirs"):
            case "b" if place < len(data):
                data[place] ^= 1 << dice.randrange(8)
            case "n" if place + 4 <= len(data):
                place = dice.choice((place, place // 4 * 4, 0))
                data[place : place + 4] = dice.choice((bytes(4), b"\xff" * 4, b"\x02\0\0\0", dice.randbytes(4)))
            case "c":
                del data[place:]
            case "d":
                del data[place : place + dice.randrange(1, 140)]
            case "i":
                data[place:place] = dice.randbytes(dice.randrange(1, 20))
            case "r":
                width = dice.choice((4, 20, 36, 38, 100, 162, 258, 290, dice.randrange(1, 140)))  # entries, or anything
                data[place // width * width :] = data[place // width * width - width :]
            case "s":
                other = dice.choice(others)
                start = dice.randrange(len(other) + 1)
                data[place : place + len(other) - start] = other[start:]
    return bytes(data)


def state_of(server):
    """Everything of a server that a message could change, as bytes."""
    return pickle.dumps({name: value for name, value in vars(server).items() if name not in UNCHANGING})


class Campaign:
    """Feeds mutated messages of one session to its parties; every case begins at an undisturbed session.

    ``counts`` tells what came of them: the errors by name and side, and what was taken or answered.

    Raises:
        AssertionError: what was refused has changed the server, or has left a client with a secret.
        Exception: anything but a :class:`SecAggError` that a party raised.
    """

    def __init__(self, adversary, seed):
        self.session = a_session(4, 3, bits=24, adversary=adversary)
        self.dice = random.Random(f"campaign {adversary} {seed}")
        self.phases = [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]
        self.stages = {phase: Stage(self.session, label="campaign").until(phase) for phase in self.phases}
        self.good = {}
        for phase, stage in self.stages.items():
            fork = stage.fork()
            for member in self.session.members:
                sent = fork.answer(phase, member)
                self.good[phase, member] = bytes(body_of(sent))
        self.given = {
            (phase, member): bytes(body_of(data))
            for phase, stage in self.stages.items()
            for member, data in stage.inbox.items()
            if data
        }
        self.bodies = [*self.good.values(), *self.given.values()]
        self.current = {phase: stage.fork() for phase, stage in self.stages.items()}
        self.states = {phase: state_of(stage.server) for phase, stage in self.current.items()}
        self.counts = Counter()

    def run(self, cases):
        """So many messages, alternately to the server and to a client, phase by phase."""
        for case in range(cases):
            phase = self.phases[case // 2 % len(self.phases)]
            member = self.dice.choice(self.session.members)
            (self.to_client if case % 2 and phase is not Phase.ADVERTISE else self.to_server)(phase, member)
        return self.counts

    def to_server(self, phase, member):
        dice, stage = self.dice, self.current[phase]
        body = mutated(dice, self.good[phase, member], self.bodies)
        kind = KINDS[phase] if dice.random() < 0.97 else dice.choice(list(SENT_IN))
        data = stage.from_client(member, kind, body)
        sender = member if dice.random() < 0.98 else dice.choice([*self.session.members, 9, SERVER])
        try:
            stage.server.receive(data, sender)
        except SecAggError as refused:
            error = refused
        else:
            self.counts["server", "taken"] += 1
            self.current[phase] = self.stages[phase].fork()
            return
        self.counts["server", type(error).__name__] += 1
        assert state_of(stage.server) == self.states[phase], f"{error} has changed the server"

    def to_client(self, phase, member):
        dice, stage = self.dice, self.stages[phase]
        body = mutated(dice, self.given[phase, member], self.bodies)
        kind = SERVER_SENDS[phase] if dice.random() < 0.97 else dice.choice(FROM_SERVER)
        client = twin(stage.clients[member])
        try:
            client.answer(pack(self.session, kind, SERVER, member, body), stage.vectors[member])
        except SecAggError as refused:
            error = refused
        else:
            self.counts["client", "answered"] += 1
            return
        self.counts["client", type(error).__name__] += 1
        assert client._due is None
        kept = (
            client._channel,
            client._mask_key,
            client._self_seed,
            client._seal_key,
            client._keys,
            client._confirming,
        )
        assert not any((*kept, client._pair_seeds, client._shares)), f"{error} has left a secret"
