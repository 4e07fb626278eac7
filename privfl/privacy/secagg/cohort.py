"""Who of a session's clients is still in it, as the server knows, and who of them holds whose shares."""

from __future__ import annotations

from privfl.privacy.secagg.blame import Ledger
from privfl.privacy.secagg.bodies import PAIR_SEED
from privfl.privacy.secagg.errors import TooFewClients
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK
from privfl.privacy.secagg.session import Session

Some = frozenset[int] | set[int]


class Cohort:
    """The clients of one session by how far they have come; sets of their numbers.

    ``living`` have missed nothing so far, ``sharers`` have shared their secrets, ``survivors`` sent a vector that is in
    the sum; of ``seeds_of``, who were convicted, too few hold good shares, so that their peers tell the seeds of masks.
    """

    def __init__(self, session: Session, ledger: Ledger) -> None:
        self._session, self._ledger = session, ledger
        self.living = frozenset(session.members)
        self.sharers: frozenset[int] = frozenset()
        self.survivors: frozenset[int] = frozenset()
        self.seeds_of: frozenset[int] = frozenset()

    def around(self, member: int, among: Some) -> set[int]:
        """The holders of ``member``'s shares, itself included, that belong to ``among``."""
        return set(self._session.holders[member] & among)

    def holders(self, member: int, among: Some) -> set[int]:
        """Those ``among`` that hold good shares of ``member``'s secrets, itself included."""
        return self.around(member, among) - self._ledger.without_share(member)

    def held_by(self, member: int) -> set[int]:
        """The sharers of whose secrets ``member`` holds good shares, itself included."""
        return self.around(member, self.sharers) - self._ledger.not_held(member)

    def peers(self, member: int) -> list[int]:
        """The living neighbours of ``member``, in rising order."""
        return sorted(self.around(member, self.living) - {member})

    def asked_of(self, member: int) -> int:
        """What everybody who holds shares of ``member``'s secrets is to reveal."""
        if member in self.survivors:
            return SELF_MASK
        return PAIR_SEED if member in self.seeds_of else MASK_KEY

    def leave_out_lonely(self) -> None:
        """Drop clients with fewer holders around than the threshold, until all that are left have enough.

        Raises:
            TooFewClients: fewer than the quorum are left.
        """
        living, threshold = set(self.living), self._session.threshold
        while lonely := {member for member in living if len(self.holders(member, living)) < threshold}:
            living -= lonely
        if len(living) < self._session.quorum:
            raise TooFewClients(
                f"{len(self.living)} clients are left, {len(living)} of them with {threshold} or more holders of "
                f"their shares; {self._session.quorum} are needed."
            )
        self.living = frozenset(living)

    def survive(self) -> None:
        """Those who live have sent a vector: they are the survivors.

        Raises:
            TooFewClients: they are fewer than the quorum.
        """
        self.survivors = self.living
        if len(self.survivors) < self._session.quorum:
            raise TooFewClients(
                f"{len(self.survivors)} clients have sent a vector; "
                f"the sum of fewer than {self._session.quorum} stays masked."
            )
        self.seeds_of = frozenset(
            member
            for member in self._ledger.convicted & self.sharers
            if len(self.holders(member, self.living)) < self._session.threshold
        )

    def check_recoverable(self) -> None:
        """Return if enough of the living hold shares of every secret that unmasking needs.

        Raises:
            TooFewClients: they do not.
        """
        for member in sorted(self.sharers - self.seeds_of):
            if (count := len(self.holders(member, self.living))) < self._session.threshold:
                raise TooFewClients(
                    f"{count} holders of shares of client {member}'s secrets are left; "
                    f"{self._session.threshold} are needed."
                )
