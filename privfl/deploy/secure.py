"""A secure sum over a network: the server's side of its legs, and one client's part in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.deploy.messages import as_bytes
from privfl.engine.aggregation import CohortSums
from privfl.engine.measures import NOTHING, Measured
from privfl.engine.secure_aggregation import GIVEN_UP, OUT_OF_RANGE, SecureAggregator
from privfl.engine.workspace import Phase
from privfl.errors import PrivflError, brief
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.bodies import Words
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import PolicyRefused, SecAggError, TooFewClients
from privfl.privacy.secagg.messages import Phase as Leg
from privfl.privacy.secagg.policy import Policy
from privfl.privacy.secagg.rules import LEAST_HONEST
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import IDENTITY_BYTES, Session
from privfl.privacy.secagg.store import Store

Exchange = Callable[[Session, Leg, Mapping[int, bytes]], Mapping[int, bytes]]
"""One leg: to each client its message, from those who answer what they answer."""


@dataclass(frozen=True)
class Early:
    """Keys that came before their round: asked for together with the opening of the sum before it.

    Args:
        session: that they are for.
        keys: by client, what it answered.
    """

    session: Session
    keys: Mapping[int, bytes]


MASKED = "masked"
"""The field under which a masked vector comes with its client's result."""


class Unencodable(PrivflError):
    """An upload holds a number that no secure sum could hold."""


def drawn(secret: bytes, phase: Phase) -> bytes:
    """What is random in the session of ``phase``: its identity, then the server's key of as many bytes."""
    info = f"privfl session {phase.channel.round.number} {phase.label}".encode()
    return HKDF(algorithm=SHA256(), length=2 * IDENTITY_BYTES, salt=None, info=info).derive(secret)


def session_of(phase: Phase, members: Sequence[int], identity: bytes) -> Session:
    """The session in which ``members`` add up the uploads of ``phase``.

    Raises:
        ConfigError: no secure sum over these members is safe.
    """
    secure, coding = phase.channel.secure, phase.channel.secure_encoding
    assert secure is not None
    assert coding is not None
    session = secure.session(
        members,
        length=coding.encoding.length,
        bits=coding.encoding.bits,
        round=phase.channel.round.number,
        least_honest=LEAST_HONEST if coding.terms is None else coding.terms.survivors,
        encoding=coding.digest,
        cohort=phase.channel.asked,
    )
    return replace(session, identity=identity)


class NetworkAggregator(SecureAggregator):
    """The server's part: keys and shares are exchanged at once, vectors arrive with the results, then all is opened.

    A session's identity and the server's own key follow from a secret and the round. So a server that is killed and
    starts the round again sends the same bytes, and clients, who answer no session twice, repeat what they answered.
    """

    def __init__(
        self,
        phase: Phase,
        members: list[int],
        weights: Sequence[float],
        like: Tensor,
        source: NoiseSource,
        *,
        secret: bytes,
        keys: Mapping[int, bytes],
        exchange: Exchange,
        tell: Callable[[Mapping[int, str]], None],
        absent: Mapping[int, str],
        without: Collection[int] = (),
        early: Early | None = None,
    ) -> None:
        """``secret``: of this server and this run; ``keys``: the clients' public ones; ``tell`` is told who lied, and
        ``absent`` tells by then, of whoever was not heard in an exchange, why; those ``without`` whom the sum is to be
        are members that are not asked.

        Raises:
            ConfigError: no secure sum over these members is safe.
        """
        channel = phase.channel
        assert channel.secure_encoding is not None
        self.phase, self.channel, self.like, self.source = phase, channel, like, source
        self.secure_encoding, self.number = channel.secure_encoding, channel.round.number
        self.weights = dict(zip(members, map(float, weights), strict=True))
        coins = drawn(secret, phase)
        self.session = session_of(phase, members, coins[:IDENTITY_BYTES])
        if early is not None and early.session != self.session:  # whoever served that one would not serve this one
            coins = drawn(coins, phase)
            self.session, early = replace(self.session, identity=coins[:IDENTITY_BYTES]), None
        active = self.session.adversary == "active"
        self._exchange, self._tell, self._absent = exchange, tell, absent
        self._server = Server(
            self.session,
            {member: keys[member] for member in members} if active else None,
            entropy=lambda count: coins[IDENTITY_BYTES : IDENTITY_BYTES + count],
        )
        self.letters: dict[int, bytes] = {}
        self.gave_up = ""
        opening: Any = _Opening(self._opened)  # in the place of a session within this process
        self.sum = opening
        try:
            came = {} if early is None else {one: key for one, key in early.keys.items() if one not in without}
            self._take(came)
            asked = [member for member in members if member not in came and member not in without]
            self._leg(Leg.ADVERTISE, dict.fromkeys(asked, self.session.to_bytes()))
            self._leg(Leg.SHARE, self._server.close_phase())
            self.letters = self._server.close_phase()
        except SecAggError as error:
            self.gave_up = str(error)

    def add(self, client: int, upload: Tensors, factor: float, known: Measured = NOTHING) -> str:
        """Take one client's masked vector; why it cannot be used, empty if it can."""
        try:
            self._server.receive(as_bytes(upload[MASKED]), client)
        except SecAggError:
            return GIVEN_UP if self.gave_up else "sent a masked vector that was refused"
        if not self.channel.hides_weights:
            self.weights[client] = factor
        return ""

    def close(self, sums: CohortSums) -> None:
        """Open the sum; with too few survivors there is none, and the round is given up."""
        if self.gave_up:
            if not sums.problems:  # nobody was asked for a vector
                sums.problems.update(self._absent.get(client, GIVEN_UP) for client in self.weights)
            sums.aborted = True
        else:
            super().close(sums)
        self._tell(self._server.blamed)

    def _opened(self) -> tuple[Words, tuple[int, ...]]:
        """The sum and its survivors.

        Raises:
            SecAggError: too few are left, or somebody lied too late.
        """
        following = self._server.close_phase()
        if self.session.adversary == "active":
            self._leg(Leg.CONFIRM, following)
            following = self._server.close_phase()
        self._leg(Leg.UNMASK, following)
        self._server.close_phase()
        return self._server.result(), tuple(sorted(self._server.survivors))

    def _leg(self, leg: Leg, given: Mapping[int, bytes]) -> None:
        """Send everybody ``given`` their message and take the answers."""
        if given:
            self._take(self._exchange(self.session, leg, given))

    def _take(self, came: Mapping[int, bytes]) -> None:
        """Take answers, in the order of the clients' numbers."""
        for client in sorted(came):
            try:
                self._server.receive(came[client], client)
            except SecAggError:
                continue  # it is out, and named in ``blamed``


@dataclass(frozen=True)
class _Opening:
    """What opens the sum when the aggregator closes."""

    opened: Callable[[], tuple[Words, tuple[int, ...]]]

    def close(self) -> tuple[Words, tuple[int, ...]]:
        """The sum and its survivors.

        Raises:
            TooFewClients: it cannot be opened, for whatever reason.
        """
        try:
            return self.opened()
        except SecAggError as error:
            raise TooFewClients(str(error)) from error


class OwnVector(SecureAggregator):
    """One client's encoding of its own upload, as the loop's :class:`SecureAggregator` does it for all."""

    def __init__(self, phase: Phase, like: Tensor, source: NoiseSource) -> None:
        assert phase.channel.secure_encoding is not None
        self.phase, self.channel, self.like, self.source = phase, phase.channel, like, source
        self.secure_encoding, self.number = phase.channel.secure_encoding, phase.channel.round.number
        self.weights: dict[int, float] = {}
        catching: Any = self
        self.sum = catching
        self.vector: Words | None = None

    def submit(self, client: int, vector: Words) -> None:
        """Catch the vector."""
        self.vector = vector

    def of(self, client: int, upload: Tensors, factor: float) -> Words:
        """The vector of ``upload`` times ``factor``.

        Raises:
            Unencodable: a number is beyond the range of the sum.
        """
        if self.add(client, upload, factor) or self.vector is None:
            raise Unencodable(OUT_OF_RANGE)
        return self.vector


def member(
    phase: Phase,
    session: Session,
    number: int,
    signing_key: bytes,
    keys: Mapping[int, bytes],
    store: Store,
) -> Client:
    """The part of client ``number`` in a ``session`` that the server proposed.

    Raises:
        PolicyRefused: it is not that of ``phase`` as this client knows it, in any field.
        SpentClient: it was served before.
    """
    channel = phase.channel
    assert channel.secure is not None
    assert channel.secure_encoding is not None
    expected = session_of(phase, session.members, session.identity)
    for item in fields(Session):  # a ring of fewer bits, say, would have clients refuse by what their vectors hold
        proposed, agreed = (getattr(one, item.name) for one in (session, expected))
        if proposed != agreed:
            told = f"{item.name} is {brief(repr(proposed), 40)}, and {brief(repr(agreed), 40)} was agreed"
            raise PolicyRefused(f"the server proposes a secure sum whose {told}")
    policy = Policy(
        channel.secure_encoding.encoding.length,
        channel.secure_encoding.digest,
        frozenset(session.members),  # who they are was looked at before
        channel.secure.adversary,
        channel.secure.accomplices(channel.asked),
        expected.least_honest,
    )
    active = session.adversary == "active"
    return Client(
        session,
        number,
        signing_key=signing_key if active else None,
        verify_keys={peer: keys[peer] for peer in session.members} if active else None,
        store=store,
        policy=policy,
    )
