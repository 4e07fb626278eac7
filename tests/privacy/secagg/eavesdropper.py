"""An adversary that keeps whatever the server and its accomplices see, and combines every share it can lay hands on."""

import itertools
from contextlib import suppress

from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import Dealing, parse_answer
from privfl.privacy.secagg.errors import BadCiphertext, BadShare
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK, open_seeds
from privfl.privacy.secagg.masking import commitment
from privfl.privacy.secagg.messages import Phase, body_of


class Eavesdropper:
    """Knows all messages, and everything of its accomplices, which it copies as long as they still have it.

    To be set on a stage before its clients mask.
    """

    def __init__(self, stage, accomplices=()):
        self.session = stage.session
        self.stage = stage
        self.accomplices = accomplices
        self.shares = {}
        self.own_seeds = set()
        for member in accomplices:
            client = stage.clients[member]
            self.own_seeds |= {client._self_seed, *client._pair_seeds.values()}

    def copy_shares(self):
        """What the accomplices hold between masking and unmasking."""
        for member in self.accomplices:
            for owner, pair in self.stage.clients[member]._shares.items():
                self._keep(owner, MASK_KEY, member, pair.mask_key)
                self._keep(owner, SELF_MASK, member, pair.self_mask)

    def _keep(self, owner, secret, holder, share):
        self.shares.setdefault((owner, secret), {})[self.session.points[holder]] = share

    def hear(self, holder, data):
        """A client's ANSWER message."""
        for owner, (secret, share) in parse_answer(body_of(data)).items():
            self._keep(owner, secret, holder, share)

    def candidates(self, owner, secret):
        """What any of the shares, few or many, would combine to."""
        given = self.shares.get((owner, secret), {})
        for size in range(1, len(given) + 1):
            for chosen in itertools.combinations(given.items(), size):
                try:
                    yield shamir.combine(dict(chosen), size)
                except BadShare:
                    continue

    def mask_keys(self):
        """The seeds of masks by owner whose mask key is found out; what is sealed under it tells a right guess."""
        found = {}
        for member in self.session.members:
            if data := self.stage.sent.get((Phase.SHARE, member)):
                dealing = Dealing.from_bytes(body_of(data), signed=self.stage.verifying is not None)
                for guess in self.candidates(member, MASK_KEY):
                    with suppress(BadCiphertext):
                        found[member] = open_seeds(self.session, member, guess, dealing.seeds, dealing.letters)
        return found

    def self_seeds(self):
        """The self-mask seeds found out, by owner; the commitment beside the masked vector tells a right guess."""
        found = {}
        for member in self.session.members:
            if data := self.stage.sent.get((Phase.MASK, member)):
                committed = bytes(body_of(data)[:32])
                for guess in self.candidates(member, SELF_MASK):
                    if commitment(self.session, member, guess) == committed:
                        found[member] = guess
        return found

    def seeds(self):
        """All seeds of masks that it knows."""
        pairs = {seed for seeds in self.mask_keys().values() for seed in seeds.values()}
        return self.own_seeds | pairs | set(self.self_seeds().values())

    def exposed(self):
        """Clients whose single vectors it can unmask: it knows both their mask key and their self-mask seed."""
        return self.mask_keys().keys() & self.self_seeds().keys()
