"""Where a client stands towards its peers, and which lists of the server's it will accept from there."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NoReturn

from privfl.privacy.secagg.bodies import Request, numbers
from privfl.privacy.secagg.errors import (
    AliveAndDead,
    InconsistentSurvivors,
    MissingPeer,
    OwnNameListed,
    PolicyRefused,
    RevivedPeer,
    TooFewClients,
    UnknownPeer,
)
from privfl.privacy.secagg.primitives import authenticate
from privfl.privacy.secagg.session import Session


@dataclass(frozen=True)
class Standing:
    """What client ``number`` of ``session`` knows of its peers.

    Args:
        session: what was agreed.
        number: the client.
        held: whose shares it holds, itself included: those it has masks with.
        nameable: who may survive, as far as it was told.
    """

    session: Session
    number: int
    held: frozenset[int]
    nameable: frozenset[int]

    def check_enough(self, count: int, what: str) -> None:
        """Return if ``count`` holders, this client included, are enough to reveal a secret.

        Raises:
            TooFewClients: they are not.
        """
        if count < self.session.threshold:
            raise TooFewClients(
                f"only {count} holders around client {self.number} have {what}; "
                f"the threshold is {self.session.threshold}."
            )

    def refuse_stranger(self, peer: int) -> NoReturn:
        """``peer`` is listed where it cannot be.

        Raises:
            RevivedPeer: it is a neighbour.
            UnknownPeer: it is none.
        """
        if peer in self.session.holders[self.number]:
            raise RevivedPeer(f"{peer} is listed, but had dropped out before, as client {self.number} was told.")
        raise UnknownPeer(f"{peer} is listed, who is no neighbour of client {self.number}.")

    def check_survivors(self, survivors: frozenset[int]) -> None:
        """Return if these may be the survivors.

        One list for everybody may name peers whose letters did not reach this client: somebody's fault, but not
        theirs. They hide nobody from here, so they count neither towards the threshold nor towards the quorum.

        Raises:
            BadPeerList: they cannot be.
            TooFewClients: they are too few.
        """
        if strangers := survivors - self.nameable:
            self.refuse_stranger(min(strangers))
        if self.number not in survivors:
            raise MissingPeer(f"client {self.number} is not among the survivors it is asked about.")
        held = len(survivors & self.held)
        self.check_enough(held, "survived")
        # A server that keeps letters back could open the sum of those who got each other's, under a longer list.
        if self.session.complete and held < self.session.quorum:
            raise TooFewClients(f"{held} clients survived; the sum of fewer than {self.session.quorum} stays masked.")

    def check_all_held(self, survivors: frozenset[int]) -> None:
        """Return if this client knows that the sum is over all ``survivors``: it holds shares of every one.

        Raises:
            PolicyRefused: it does not.
        """
        if missing := survivors - self.held:
            raise PolicyRefused(
                f"client {self.number} holds no letter of survivor {min(missing)}, so the sum may leave it out; "
                "this client compares cohorts, and must know them."
            )

    def check_request(self, request: Request) -> None:
        """Return if shares may be revealed as asked; confirmations are another matter.

        Raises:
            BadPeerList: the lists contradict each other, or what this client knows.
            TooFewClients: too few survive.
        """
        survivors, dropped = frozenset(request.survivors), frozenset(request.dropped)
        if both := survivors & dropped:
            raise AliveAndDead(f"the request names {min(both)} as survivor and as dropped; it can be one only.")
        if self.number in dropped:
            raise OwnNameListed(f"the request names client {self.number} itself as dropped.")
        self.check_survivors(survivors)
        if strangers := dropped - self.held:
            self.refuse_stranger(min(strangers))
        if missing := self.held - survivors - dropped:
            raise MissingPeer(f"the request does not say whether {min(missing)} survived.")
        if odd := set(request.culprits) - dropped:
            raise UnknownPeer(f"the request names {min(odd)} as culprit, but not as dropped.")

    def tags(self, survivors: frozenset[int], keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """This client's confirmations of the survivors: a tag for each that it has a key with, in rising order."""
        said = self._said(self.number, self._digest(survivors))
        return {peer: authenticate(keys[peer], said) for peer in self._peers(survivors)}

    def check_confirmations(
        self,
        survivors: frozenset[int],
        confirmed: frozenset[int],
        tags: Mapping[int, bytes],
        keys: Mapping[int, bytes],
    ) -> None:
        """Return if enough have confirmed to this client the survivors that it has ``confirmed`` itself.

        A wrong tag is one that its sender has not given, and costs nobody else anything.

        Raises:
            InconsistentSurvivors: it has confirmed others.
            TooFewClients: too few have.
        """
        if survivors != confirmed:
            raise InconsistentSurvivors(
                f"client {self.number} has confirmed other survivors than those it is asked about."
            )
        digest = self._digest(survivors)
        good = sum(
            hmac.compare_digest(authenticate(keys[peer], self._said(peer, digest)), tags[peer])
            for peer in self._peers(survivors)
            if peer in tags
        )
        self.check_enough(1 + good, "confirmed the survivors")

    def _peers(self, among: frozenset[int]) -> list[int]:
        """Those ``among`` whose shares this client holds, without itself."""
        return sorted((among & self.held) - {self.number})

    def _digest(self, survivors: frozenset[int]) -> bytes:
        return self.session.fingerprint + sha256(numbers(survivors)).digest()

    def _said(self, peer: int, digest: bytes) -> bytes:
        """What ``peer`` authenticates to confirm the survivors of this ``digest``."""
        return b"confirmation" + struct.pack("<I", peer) + digest
