"""What the parties of one secure aggregation agree on before it starts."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from typing import Any, get_args

import numpy as np

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import MalformedMessage, UnsupportedVersion
from privfl.privacy.secagg.graph import Circle, Everybody
from privfl.privacy.secagg.parameters import ThreatModel, find
from privfl.privacy.secagg.rules import (
    LEAST_HONEST,
    Adversary,
    check_quorum,
    check_threshold,
    least_quorum,
    least_threshold,
)

VERSION = 3
IDENTITY_BYTES = 32
ENCODING_BYTES = 32
UNSTATED = bytes(ENCODING_BYTES)
"""The encoding of a session whose parties agree on one elsewhere, or add plain integers."""
MOST_MEMBERS = 1 << 20
SERVER = (1 << 32) - 1
"""The server's number in messages; members have smaller ones."""
SPARSE_SAVES = 2
"""How many times fewer neighbours make a sparse graph worth its price: masks, key agreements and shares get fewer as
they do, while what is certain on the complete graph becomes as likely as a security parameter says."""

_START = b"privfl secure aggregation"
_FIELDS = struct.Struct(f"<{len(_START)}sB{IDENTITY_BYTES}sIBBIIIIIQ{ENCODING_BYTES}sI")


@dataclass(frozen=True)
class Session:
    """One secure aggregation: who takes part, over which graph and ring, and what the threshold has to withstand.

    All parties must hold equal sessions; a digest of it enters every key, every sealed share and every message, so that
    parties with different ones cannot talk. Under an active adversary a client must not take it from the server, or
    check it against a :class:`~privfl.privacy.secagg.policy.Policy` of its own.

    Args:
        identity: 32 bytes that no other session has; :meth:`between` draws them.
        round: number of the training round, in [0, 2³²).
        members: different numbers in [0, 2³² − 1), at least two.
        degree: neighbours of every client; ``len(members) - 1`` is the complete graph (Bonawitz et al. 2017), less is
            the random k-regular graph of SecAgg+ (Bell et al. 2020), drawn from the identity.
        threshold: shares that reveal a secret, counted among the holders (a client's neighbours and itself).
        length: numbers in a vector.
        bits: b, the sum is taken in Z_{2^b}, 1 ≤ b ≤ 64.
        adversary: ``"semi-honest"``: the server follows the protocol, and whoever shares what it sees with the server
            does too. ``"active"``: the server may also deviate, and so may its accomplices; needs signatures.
        accomplices: number of members that may share everything they know with the server.
        quorum: fewest survivors whose sum is revealed; unless given, as few as the threshold, ``least_honest`` and, if
            the adversary is active, ``confirmations`` allow. The server enforces it. So does every client with an
            active adversary, and on the complete graph with any; elsewhere a client sees its neighbours only.
        least_honest: fewest honest clients, at least 2, whose vectors are in a sum that is ever revealed. Accomplices
            know their own summands, so it is the quorum without them that hides a client. Noise in shares counts on it.
        encoding: 32 bytes that differ for encodings of numbers whose vectors must not be added
            (:attr:`~privfl.privacy.secagg.encoding.Encoding.digest`).

    Raises:
        ConfigError: a value is out of range, or the threshold or the quorum is below the least that
            :mod:`~privfl.privacy.secagg.rules` allows for the adversary, the graph and the accomplices.
    """

    identity: bytes
    round: int
    members: tuple[int, ...]
    degree: int
    threshold: int
    length: int
    bits: int = 32
    adversary: Adversary = "semi-honest"
    accomplices: int = 0
    quorum: int = 0
    least_honest: int = LEAST_HONEST
    encoding: bytes = UNSTATED

    def __post_init__(self) -> None:
        if not isinstance(self.identity, bytes) or len(self.identity) != IDENTITY_BYTES:
            raise ConfigError(f"a session's identity must be {IDENTITY_BYTES} bytes; take secrets.token_bytes(32).")
        if not isinstance(self.encoding, bytes) or len(self.encoding) != ENCODING_BYTES:
            raise ConfigError(
                f"a session's encoding must be given in {ENCODING_BYTES} bytes; take an Encoding's digest."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"a session's {field.name} is {value!r}; give an integer.")
        if not isinstance(self.members, tuple) or not 2 <= len(self.members) <= MOST_MEMBERS:
            raise ConfigError(f"a session needs a tuple of 2 to {MOST_MEMBERS} members, not {self.members!r:.60}.")
        for member in self.members:
            if not isinstance(member, int) or isinstance(member, bool) or not 0 <= member < SERVER:
                raise ConfigError(f"a member is numbered {member!r}; give integers from 0 to {SERVER - 1}.")
        if len(set(self.members)) < len(self.members):
            raise ConfigError("a session lists a member twice; list each one once.")
        if self.quorum == 0:
            least = least_quorum(len(self.members), self.threshold, self.accomplices, self.least_honest, self.adversary)
            object.__setattr__(self, "quorum", least)
        self._check_numbers()
        n = len(self.members)
        check_threshold(n, self.degree, self.threshold, self.accomplices, self.adversary)
        check_quorum(n, self.threshold, self.quorum, self.accomplices, self.least_honest, self.adversary)

    def _check_numbers(self) -> None:
        n = len(self.members)
        ranges = {
            "round": (0, (1 << 32) - 1),
            "degree": (1, n - 1),
            "length": (1, 1 << 40),
            "bits": (1, 64),
            "accomplices": (0, n - 2),
            "threshold": (2, self.degree + 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"a session's {name} is {value}, but must lie in {low} to {high}.")
        if self.degree % 2 and not self.complete:
            raise ConfigError(f"degree is {self.degree}; give {n - 1} for the complete graph, or an even number.")
        if self.adversary not in get_args(Adversary):
            raise ConfigError(f"adversary is {self.adversary!r}; give one of {', '.join(get_args(Adversary))}.")

    @classmethod
    def between(
        cls,
        members: Sequence[int],
        threat: ThreatModel,
        *,
        length: int,
        bits: int = 32,
        round: int = 0,
        quorum: int = 0,
        least_honest: int = LEAST_HONEST,
        encoding: bytes = UNSTATED,
    ) -> Session:
        """A session with a fresh identity, whose degree and threshold withstand ``threat``.

        Against an active adversary the graph is complete. Against another one it is sparse where that leaves every
        client with at most a half of its neighbours, or where too few stay for a complete one. On a complete graph the
        threshold is as many as stay at least, which is also the quorum on either graph unless another one is given, or
        ``least_honest`` asks for more.

        Raises:
            ConfigError: nothing withstands the threat model.
        """
        n = len(members)
        accomplices, staying = threat.corrupt_of(n), threat.staying_of(n)
        degree, threshold = (n - 1, staying) if threat.adversary == "active" else find(n, threat)
        if SPARSE_SAVES * degree > n - 1:
            least = least_threshold(n, n - 1, accomplices, threat.adversary)
            if staying >= least:
                degree, threshold = n - 1, staying
            elif degree == n - 1:
                raise ConfigError(
                    f"{staying} of {n} members stay, but the threshold of a complete graph must be {least} or more "
                    f"({threat.adversary}, {accomplices} corrupt): lower the drop-out or the share of corrupt members."
                )
        least = least_quorum(n, threshold, accomplices, least_honest, threat.adversary)
        return cls(
            secrets.token_bytes(IDENTITY_BYTES),
            round,
            tuple(members),
            degree,
            threshold,
            length,
            bits,
            threat.adversary,
            accomplices,
            quorum or max(staying, least),
            least_honest,
            encoding,
        )

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.degree == len(self.members) - 1

    @property
    def word(self) -> np.dtype[Any]:
        """The little-endian type of a vector's numbers: 4 bytes for rings up to 2³², else 8."""
        return np.dtype("<u4") if self.bits <= 32 else np.dtype("<u8")

    @property
    def largest(self) -> int:
        """2^b − 1, the largest number of the ring."""
        return (1 << self.bits) - 1

    @cached_property
    def holders(self) -> Mapping[int, frozenset[int]]:
        """Who holds shares of each member's secrets: itself and its neighbours, that is everybody on the complete
        graph, else those in the random graph that the identity determines. Worked out for a member when it is asked
        for."""
        if self.complete:
            return Everybody(self.members)
        return Circle(self.members, self.degree, sha256(b"graph" + self.fingerprint).digest())

    @cached_property
    def points(self) -> dict[int, int]:
        """Where each member's shares are evaluated: 1 + its place among the members."""
        return {member: place for place, member in enumerate(self.members, 1)}

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that differ for sessions that differ in anything."""
        return sha256(self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """The session as bytes of a fixed layout."""
        n = len(self.members)
        head = _FIELDS.pack(
            _START,
            VERSION,
            self.identity,
            self.round,
            get_args(Adversary).index(self.adversary),
            self.bits,
            self.degree,
            self.threshold,
            self.quorum,
            self.accomplices,
            self.least_honest,
            self.length,
            self.encoding,
            n,
        )
        return head + struct.pack(f"<{n}I", *self.members)

    @classmethod
    def from_bytes(cls, data: bytes) -> Session:
        """The session that :meth:`to_bytes` wrote.

        Raises:
            MalformedMessage: the bytes are no session, or one with impossible values.
            UnsupportedVersion: it is of another version of the protocol.
        """
        if not isinstance(data, bytes) or len(data) < _FIELDS.size or not data.startswith(_START):
            raise MalformedMessage("these bytes are no session; they are too short or start otherwise.")
        (
            _,
            version,
            identity,
            round,
            adversary,
            bits,
            degree,
            threshold,
            quorum,
            accomplices,
            least_honest,
            length,
            encoding,
            n,
        ) = _FIELDS.unpack_from(data)
        if version != VERSION:
            raise UnsupportedVersion(f"the session is of version {version}, and this is version {VERSION}.")
        if n > MOST_MEMBERS or len(data) != _FIELDS.size + 4 * n:
            raise MalformedMessage(f"a session of {n} members cannot have {len(data)} bytes.")
        members = struct.unpack_from(f"<{n}I", data, _FIELDS.size)
        if adversary >= len(get_args(Adversary)):
            raise MalformedMessage(f"a session names adversary {adversary}, which does not exist.")
        try:
            return cls(
                identity,
                round,
                members,
                degree,
                threshold,
                length,
                bits,
                get_args(Adversary)[adversary],
                accomplices,
                quorum,
                least_honest,
                encoding,
            )
        except ConfigError as error:
            raise MalformedMessage(f"a session cannot be as received: {error}") from error
