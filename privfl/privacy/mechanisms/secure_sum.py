"""Secure aggregation as a link of an upload's chain: who is trusted with what, and which sums it can hold."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.mechanism import Kind, Mechanism
from privfl.privacy.secagg.ideal import IdealSecureSum
from privfl.privacy.secagg.parameters import ThreatModel
from privfl.privacy.secagg.rehearsal import Rehearsal
from privfl.privacy.secagg.rules import LEAST_HONEST, least_threshold
from privfl.privacy.secagg.session import IDENTITY_BYTES, UNSTATED, Session

WORDS = (32, 64)


@dataclass(frozen=True)
class SecureSum(Mechanism):
    """Let the server see the sum of a round's uploads, and nothing else of them.

    By itself no protection: the sum of a cohort may tell everything about one of its clients, so the statement stays at
    ∞ until noise is added. It decides *who* must add that noise: noise that clients add before the sum covers the
    server too, noise that the server adds after it covers the public alone.

    Guarantee (proved in ``docs/secure-aggregation-proof.md``): a server that works with at most ``corrupt`` of the
    cohort that it asked, whoever drops out later, and does whatever it likes, learns one sum at most, of all honest
    survivors' uploads, and who they are. These are 3 or more. It rests on signing keys that the server did not hand
    out; in a simulation they come with the process. In a federation whose server draws the cohorts ``corrupt`` is a
    fraction of all clients.

    Args:
        threshold: fraction of the cohort that must survive, in (½, 1]; more where that would not be safe. ``None``
            takes graph and threshold that hold for ``corrupt`` and ``dropout``.
        corrupt: fraction of the cohort that may work with the server, in [0, 1).
        dropout: fraction that may fall silent during a round, in [0, 1); with more the round is given up. Of no use
            beside a ``threshold``, which says the same.
        mode: ``"protocol"`` runs the protocol, every byte of it; ``"ideal"`` lets a trusted party add up the same
            integers, for fast simulation, and the statement says so. The two give identical sums.
        adversary: what the server may do: ``"active"`` lies as it likes; ``"semi-honest"`` follows the protocol and
            looks. The latter saves signatures and a round trip, and one lie about who survived shows the server every
            upload bare.
        bits: 32 or 64, of the ring in which is added; default 32 where noise is calibrated to a :class:`Clip` and the
            cohort has at most 4,096 clients, else 64.
        largest: largest magnitude of any other number of an upload, times its weight; a client that sends more is
            dropped, or where noise covers its gradients, the number is clipped.

    ===============================  ==================================================================
    edge case                        what happens
    ===============================  ==================================================================
    fewer survivors than needed      the round is given up: the model stays, the run goes on
    a cohort of fewer than 3         the round is given up: a sum of one or two hides nobody
    fewer than 3 honest survivors    the quorum is raised until there are 3; a cohort too small for it is given up
    a field combined ``each``        refused before training: the server needs what the sum hides
    an upload is NaN or too large    its client is dropped (counted as zeros where noise is added)
    ===============================  ==================================================================
    """

    kind: ClassVar[Kind] = "sum"

    threshold: float | None = None
    corrupt: float = 0.1
    dropout: float = 0.3
    mode: Literal["protocol", "ideal"] = "protocol"
    adversary: Literal["semi-honest", "active"] = "active"
    bits: int | None = None
    largest: float = 2.0**20

    def __post_init__(self) -> None:
        for name, value in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0 <= value < 1:
                raise ConfigError(f"SecureSum's {name} is {value!r}; give a fraction in [0, 1)")
        if self.threshold is not None and not 0.5 < self.threshold <= 1:
            raise ConfigError(
                f"SecureSum's threshold is {self.threshold!r}; give a fraction in (0.5, 1], or leave it out"
            )
        if self.bits is not None and self.bits not in WORDS:
            raise ConfigError(f"SecureSum's bits is {self.bits!r}; choose 32 or 64, or leave it out")
        if not 0 < self.largest < math.inf:
            raise ConfigError(f"SecureSum's largest is {self.largest!r}; give a positive number")

    def session(
        self,
        members: Sequence[int],
        *,
        length: int,
        bits: int,
        round: int,
        least_honest: int = LEAST_HONEST,
        encoding: bytes = UNSTATED,
        cohort: int = 0,
    ) -> Session:
        """A fresh session for vectors of ``length`` numbers in Z_{2^bits}, in training round ``round``.

        ``encoding``: the digest of how numbers become words, which all parties must agree on.
        ``least_honest``: fewest honest clients that every sum must hold; more than the default where noise in shares
        counts on them.
        ``cohort``: how many were asked in the round, if the members are what is left of them: who works with the server
        is not among those that drop out.

        Raises:
            ConfigError: no such session is safe, for instance because there are too few members.
        """
        n = len(members)
        if n < LEAST_HONEST:
            raise ConfigError(f"a secure sum of {n} clients hides nobody; ask at least {LEAST_HONEST}")
        accomplices = self.accomplices(max(n, cohort))
        if n < LEAST_HONEST + accomplices:
            raise ConfigError(
                f"a secure sum of {n} clients, of whom {accomplices} may work with the server, hides nobody; ask at "
                f"least {LEAST_HONEST + accomplices}, or lower corrupt"
            )
        if self.threshold is None:
            usual = accomplices == ThreatModel(self.corrupt, 0.0).corrupt_of(n)
            threat = ThreatModel(self.corrupt if usual else accomplices / n, self.dropout, self.adversary)
            return Session.between(
                members,
                threat,
                length=length,
                bits=bits,
                round=round,
                least_honest=least_honest,
                encoding=encoding,
            )
        safe = least_threshold(n, n - 1, accomplices, self.adversary)
        return Session(
            identity=secrets.token_bytes(IDENTITY_BYTES),
            round=round,
            members=tuple(members),
            degree=n - 1,
            threshold=max(math.ceil(self.threshold * n), safe),
            length=length,
            bits=bits,
            adversary=self.adversary,
            accomplices=accomplices,
            least_honest=least_honest,
            encoding=encoding,
        )

    def open(self, session: Session, workers: int) -> IdealSecureSum | Rehearsal:
        """Begin to add up: keys and shares are exchanged, vectors may be submitted."""
        if self.mode == "ideal":
            return IdealSecureSum(session)
        rehearsal = Rehearsal(session, workers=workers)
        rehearsal.open()
        return rehearsal

    @property
    def whose(self) -> str:
        """Of whom ``corrupt`` is a fraction, in words."""
        return "a cohort"

    def accomplices(self, cohort: int) -> int:
        """How many of a ``cohort`` of so many clients may work with the server."""
        return ThreatModel(self.corrupt, 0.0).corrupt_of(cohort)

    def honest(self, clients: int) -> int:
        """The fewest honest clients whose vectors are in a sum of ``clients`` that is ever opened.

        Raises:
            ConfigError: no session of so many clients is safe.
        """
        session = self.session(range(clients), length=1, bits=32, round=0)
        return session.quorum - session.accomplices
