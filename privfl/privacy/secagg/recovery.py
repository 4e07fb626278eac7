"""What the masks of a sum hang on, put together at the server from what clients reveal."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping

from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.blame import Ledger
from privfl.privacy.secagg.bodies import PAIR_SEED
from privfl.privacy.secagg.errors import BadCiphertext, BadShare, TooFewClients
from privfl.privacy.secagg.letters import open_seeds
from privfl.privacy.secagg.masking import Seeds, commitment, sign_of
from privfl.privacy.secagg.session import Session


class Recovery:
    """Collects the shares that clients reveal, and turns them into the seeds of the masks to take off.

    ``commitments`` are what clients have committed their self-mask seeds by. Shares come here checked against their
    dealer's commitments, so a secret that does not fit is its dealer's lie: the ledger notes it.
    """

    def __init__(self, session: Session, ledger: Ledger) -> None:
        self._session, self._ledger = session, ledger
        self.commitments: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}
        self._seeds: dict[int, dict[int, bytes]] = {}

    def take(self, sender: int, revealed: Mapping[int, tuple[int, bytes]]) -> None:
        """Keep what ``sender`` reveals: by peer, what it is and the share or seed."""
        point = self._session.points[sender]
        for peer, (what, one) in revealed.items():
            if what == PAIR_SEED:
                self._seeds.setdefault(peer, {})[sender] = one
            else:
                self._shares.setdefault(peer, {})[point] = one

    def masks(
        self,
        survivors: Collection[int],
        dropped: Collection[int],
        by_seed: Collection[int],
        masked_with: Callable[[int], Collection[int]],
    ) -> Seeds:
        """The seeds of all masks in the sum, with the signs that take them off.

        Args:
            survivors: whose self-masks are in it.
            dropped: whose vectors are not, though others have masks with them.
            by_seed: those of the dropped whose masks are known from their peers alone.
            masked_with: the survivors that have a mask with a member.

        Raises:
            TooFewClients: fewer shares than the threshold, or a seed is missing.
            BadShare: a secret is not what its owner has committed to.
        """
        removed: list[tuple[bytes, int]] = []
        lies: list[BadShare] = []  # all of them, so that every liar is named
        for member in sorted(survivors):
            try:
                removed.append((self._self_seed(member), -1))
            except BadShare as lie:
                lies.append(lie)
        for member in sorted(dropped):
            peers = sorted(masked_with(member))
            if member in by_seed:
                found = {peer: self._pair_seed(member, peer) for peer in peers}
            else:
                try:
                    found = self._deposited(member, peers)
                except BadShare as lie:
                    lies.append(lie)
                    continue
            removed += [(seed, -sign_of(peer, member)) for peer, seed in found.items()]
        if lies:
            raise lies[0]
        return removed

    def forget(self) -> None:
        """Go back to knowing nothing."""
        for kept in (self.commitments, self._shares, self._seeds):
            kept.clear()

    def _self_seed(self, member: int) -> bytes:
        seed = self._combine(member)
        if not hmac.compare_digest(commitment(self._session, member, seed), self.commitments[member]):
            raise self._false_dealer(member)
        return seed

    def _deposited(self, member: int, peers: Collection[int]) -> dict[int, bytes]:
        """The seeds of ``member``'s masks with ``peers``, from what it has deposited itself."""
        dealing, key = self._ledger.dealings[member], self._combine(member)
        try:
            seeds = open_seeds(self._session, member, key, dealing.seeds, dealing.letters)
        except BadCiphertext:
            raise self._false_dealer(member) from None
        found = {peer: seeds[peer] for peer in peers}
        if not all(self._ledger.is_seed(member, peer, seed) for peer, seed in found.items()):
            raise self._false_dealer(member)
        return found

    def _pair_seed(self, member: int, peer: int) -> bytes:
        if (seed := self._seeds.get(member, {}).get(peer)) is None:
            raise TooFewClients(f"client {peer} dropped out, who alone can tell the mask it had with client {member}.")
        return seed

    def _combine(self, member: int) -> bytes:
        """The secret of which shares were revealed; the holders first in order, so that weights can be reused."""
        threshold = self._session.threshold
        shares = sorted(self._shares.get(member, {}).items())[:threshold]
        if len(shares) < threshold:
            raise TooFewClients(f"{len(shares)} shares of client {member}'s secret came; {threshold} are needed.")
        try:
            return shamir.combine(dict(shares), threshold)
        except BadShare:
            raise self._false_dealer(member) from None

    def _false_dealer(self, member: int) -> BadShare:
        self._ledger.blamed[member] = "the shares that it dealt do not give the secret that it committed to"
        return BadShare(f"the shares that client {member} dealt give another secret than it committed to.")
