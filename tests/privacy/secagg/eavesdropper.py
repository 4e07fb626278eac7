"""An adversary that keeps whatever the server and its accomplices see, and combines every share it can lay hands on."""

import itertools

from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import parse_answer, parse_keys
from privfl.privacy.secagg.errors import BadShare
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK
from privfl.privacy.secagg.masking import commitment, pair_seed
from privfl.privacy.secagg.messages import SERVER, Phase, unpack
from privfl.privacy.secagg.primitives import AgreementKey


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
        for owner, (secret, share) in parse_answer(self._body(data)).items():
            self._keep(owner, secret, holder, share)

    def _body(self, data):
        return unpack(self.session, data, SERVER, self.stage.verifying).body

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
        """The secret mask keys found out, by owner; the public halves tell a right guess."""
        found = {}
        for member in self.session.members:
            data = self.stage.sent[Phase.ADVERTISE, member]
            public = parse_keys(self._body(data), b"").mask
            for guess in self.candidates(member, MASK_KEY):
                if AgreementKey(guess).public == public:
                    found[member] = AgreementKey(guess)
        return found

    def self_seeds(self):
        """The self-mask seeds found out, by owner; the commitment beside the masked vector tells a right guess."""
        found = {}
        for member in self.session.members:
            if data := self.stage.sent.get((Phase.MASK, member)):
                committed = bytes(self._body(data)[:32])
                for guess in self.candidates(member, SELF_MASK):
                    if commitment(self.session, member, guess) == committed:
                        found[member] = guess
        return found

    def seeds(self):
        """All seeds of masks that it knows."""
        pairs = set()
        for member, key in self.mask_keys().items():
            for peer in self.session.holders[member] - {member}:
                public = parse_keys(self._body(self.stage.sent[Phase.ADVERTISE, peer]), b"").mask
                pairs.add(pair_seed(self.session, key, member, peer, public))
        return self.own_seeds | pairs | set(self.self_seeds().values())

    def exposed(self):
        """Clients whose single vectors it can unmask: it knows both their mask key and their self-mask seed."""
        return self.mask_keys().keys() & self.self_seeds().keys()
