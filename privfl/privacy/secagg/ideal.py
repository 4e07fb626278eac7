"""The secure sum that a trusted party would compute: the same integers, none of the cryptography."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfl.privacy.secagg.errors import BadVector, RepeatedMessage, TooFewClients, UnknownPeer
from privfl.privacy.secagg.session import Session

Words = NDArray[np.uint32] | NDArray[np.uint64]


class IdealSecureSum:
    """Adds up the vectors of one session in clear; whoever uses it must say so, because nobody is protected by it.

    It opens the sums that :class:`~privfl.privacy.secagg.rehearsal.Rehearsal` opens and gives up below the same quorum,
    so that a fast simulation sees the same models. On a sparse graph the protocol may also give up because the
    neighbours of one client were lost; its parameters make that as rare as its threat model says.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._total: Words = np.zeros(session.length, session.word)
        self._arrived: set[int] = set()

    def submit(self, number: int, vector: Words) -> None:
        """Add the vector [length] of member ``number``; it is left as it is.

        Raises:
            SecAggError: a stranger, somebody who has submitted before, or a vector of another kind.
        """
        if number not in self.session.points:
            raise UnknownPeer(f"client {number} is no member of the session")
        if number in self._arrived:
            raise RepeatedMessage(f"client {number} has submitted its vector before")
        if vector.shape != (self.session.length,) or vector.dtype != self.session.word:
            raise BadVector(
                f"client {number} submits {vector.dtype} {vector.shape}; the session adds {self.session.word} "
                f"({self.session.length},)"
            )
        self._total += vector
        self._arrived.add(number)

    def close(self) -> tuple[Words, tuple[int, ...]]:
        """The sum modulo 2^bits, and whose vectors are in it.

        Raises:
            TooFewClients: fewer than the session's quorum have submitted.
        """
        if len(self._arrived) < self.session.quorum:
            raise TooFewClients(f"{len(self._arrived)} clients are left, {self.session.quorum} are needed")
        self._total &= self._total.dtype.type(self.session.largest)
        return self._total, tuple(sorted(self._arrived))
