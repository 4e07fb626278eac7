"""What the parties of one secure aggregation agree on before it starts."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, get_args

import numpy as np

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import MalformedMessage, UnsupportedVersion
from privfl.privacy.secagg.graph import Circle, Everybody
from privfl.privacy.secagg.parameters import ThreatModel, find

VERSION = 2
IDENTITY_BYTES = 32
ENCODING_BYTES = 32
UNSTATED = bytes(ENCODING_BYTES)
"""The encoding of a session whose parties agree on one elsewhere, or add plain integers."""
MOST_MEMBERS = 1 << 20
SERVER = (1 << 32) - 1
"""The server's number in messages; members have smaller ones."""
LEAST_HONEST = 3
"""Fewest honest summands that hide each other unless a session says otherwise: of two, each knows the other's."""

Adversary = Literal["semi-honest", "active"]

_START = b"privfl secure aggregation"
_FIELDS = struct.Struct(f"<{len(_START)}sB{IDENTITY_BYTES}sIBBIIIIIQ{ENCODING_BYTES}sI")


@dataclass(frozen=True)
class Session:
    """One secure aggregation: who takes part, over which graph and ring, and what the threshold has to withstand.

    All parties must hold equal sessions; a digest of it enters every key, every sealed share and every message, so that
    parties with different ones cannot talk. Under an active adversary a client must not take it from the server.

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
        quorum: fewest survivors whose sum is revealed; unless given, the threshold, or more where ``least_honest`` asks
            for more. The server enforces it, and on the complete graph every client does; on other graphs a client
            sees its neighbours only.
        least_honest: fewest honest clients, at least 2, whose vectors are in a sum that is ever revealed. Accomplices
            know their own summands, so it is the quorum without them that hides a client. Noise in shares counts on it.
        encoding: 32 bytes that differ for encodings of numbers whose vectors must not be added
            (:attr:`~privfl.privacy.secagg.encoding.Encoding.digest`).

    Raises:
        ConfigError: a value is out of range; the threshold does not exceed the accomplices; it does not exceed half of
            the members of a complete graph (a server that tells two halves different survivors would get both secrets
            of a client); the quorum leaves fewer honest survivors than ``least_honest``; with an active adversary, the
            threshold does not exceed (members + accomplices)/2 (Bonawitz et al. 2017, section 6), or the graph, which
            the server could have chosen, is not complete.
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
                f"a session's encoding must be told in {ENCODING_BYTES} bytes; take an Encoding's digest."
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
            object.__setattr__(self, "quorum", max(self.threshold, self.accomplices + self.least_honest))
        self._check_numbers()
        self._check_honest()
        self._check_threshold()

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

    def _check_honest(self) -> None:
        n = len(self.members)
        if self.least_honest < 2:
            raise ConfigError(
                f"a session's least_honest is {self.least_honest}; a sum of one hides nobody: give 2 or more."
            )
        if self.accomplices + self.least_honest > n:
            raise ConfigError(
                f"a session of {n} members, {self.accomplices} of them accomplices, never opens on "
                f"{self.least_honest} honest ones: add members, or lower accomplices or least_honest."
            )
        if not self.threshold <= self.quorum <= n:
            raise ConfigError(f"a session's quorum is {self.quorum}, but must lie in {self.threshold} to {n}.")
        if self.quorum < self.accomplices + self.least_honest:
            raise ConfigError(
                f"quorum is {self.quorum}, of whom {self.accomplices} may be accomplices, but a sum must hold the "
                f"vectors of {self.least_honest} honest clients: raise it to {self.accomplices + self.least_honest}."
            )

    def _check_threshold(self) -> None:
        n = len(self.members)
        if self.adversary == "active":
            if not self.complete:
                raise ConfigError(
                    f"degree is {self.degree}, but against an active adversary every client needs all {n - 1} others "
                    "as neighbours: a server could choose a smaller graph in its favour."
                )
            if 2 * self.threshold <= n + self.accomplices:
                raise ConfigError(
                    f"threshold is {self.threshold}, but against an active adversary it must exceed "
                    f"(members + accomplices)/2 = {(n + self.accomplices) / 2:g}: raise it."
                )
        elif self.complete and 2 * self.threshold <= n:
            raise ConfigError(f"threshold is {self.threshold}, but must exceed half of the {n} members: raise it.")
        if self.complete and self.threshold <= self.accomplices:
            raise ConfigError(
                f"threshold is {self.threshold}, but {self.accomplices} accomplices hold that many shares: raise it."
            )

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

        Against an active adversary the graph is complete whatever :func:`parameters.find` would save, and on a complete
        graph the threshold is as many as stay at least. That is also the quorum unless another one is given, or
        ``least_honest`` asks for more.

        Raises:
            ConfigError: nothing withstands the threat model, or fewer stay than a complete graph's threshold needs.
        """
        n = len(members)
        degree, threshold = find(n, threat)
        accomplices, staying = threat.corrupt_of(n), threat.staying_of(n)
        if threat.adversary == "active" or degree == n - 1:
            degree, threshold = n - 1, staying
            least = (n + accomplices) // 2 + 1 if threat.adversary == "active" else n // 2 + 1
            if staying < least:
                raise ConfigError(
                    f"{staying} of {n} members stay, but the threshold of a complete graph must be {least} or more "
                    f"({threat.adversary}, {accomplices} corrupt): lower the drop-out or the share of corrupt members."
                )
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
            quorum or max(threshold, staying, accomplices + least_honest),
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
