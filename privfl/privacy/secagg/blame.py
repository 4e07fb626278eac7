"""Who lied: what the server keeps of the dealings, and what it concludes where two clients contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from privfl.privacy.secagg.bodies import COMMITMENT_BYTES, PAIR_SEED, Dealing
from privfl.privacy.secagg.errors import BadAccusation, BadCiphertext, BadShare, MissingPeer, UnknownPeer
from privfl.privacy.secagg.letters import (
    Letter,
    check_letters,
    key_commitment,
    letter_tree,
    open_letter,
    seed_commitment,
    share_commitment,
    with_proofs,
)
from privfl.privacy.secagg.merkle import Tree
from privfl.privacy.secagg.session import Session

_THREE = (0, COMMITMENT_BYTES, 2 * COMMITMENT_BYTES)


class Ledger:
    """The dealings of one session, the pairs that lost their edge, and the clients convicted of a lie.

    ``blamed`` tells by client what it is left out for, in a sentence. Against honest clients nothing is ever proven; a
    pair that contradicts itself loses its edge, because nobody can say which of the two lies.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.dealings: dict[int, Dealing] = {}
        self.blamed: dict[int, str] = {}
        self._trees: dict[int, Tree] = {}
        self._apart: dict[int, set[int]] = {}
        self._accusers: dict[int, set[int]] = {}
        self._accused: dict[int, set[int]] = {}

    @property
    def convicted(self) -> set[int]:
        """The dealers of letters that are proven to be bad."""
        return set(self._accusers)

    def apart(self, member: int) -> set[int]:
        """Those with whom ``member`` shares nothing, although they are neighbours."""
        return self._apart.get(member, set())

    def without_share(self, dealer: int) -> set[int]:
        """Neighbours of ``dealer`` that hold no good shares of its secrets, and no mask with it."""
        return self.apart(dealer) | self._accusers.get(dealer, set())

    def not_held(self, holder: int) -> set[int]:
        """Neighbours of whose secrets ``holder`` has no good shares."""
        return self.apart(holder) | self._accused.get(holder, set())

    def take(self, dealer: int, dealing: Dealing, due: set[int], verify_key: bytes | None) -> None:
        """Keep what ``dealer`` deals to the peers ``due``; ``verify_key`` is its own under an active adversary.

        Raises:
            BadPeerList: it deals to others, or not to all.
            BadSignature: the letters are not signed.
        """
        check_same(dealing.letters.keys(), due, f"client {dealer} shares its secrets with")
        if verify_key is not None:
            tree = letter_tree(self._session, dealing.letters)
            check_letters(self._session, dealer, tree.root, dealing.signature, verify_key)
            self._trees[dealer] = tree
        self.dealings[dealer] = dealing

    def letters_of(self, dealer: int) -> Mapping[int, Letter]:
        """``dealer``'s letters by holder; under an active adversary with the proofs that it has signed them."""
        dealing, tree = self.dealings[dealer], self._trees.pop(dealer, None)
        return dealing.letters if tree is None else with_proofs(dealing.letters, tree, dealing.signature)

    def compare_keys(self, living: frozenset[int]) -> set[int]:
        """Part every pair whose two ends commit to different keys; whom too many contradict.

        An honest client is contradicted by liars only. So whoever is contradicted by more than there can be (and by
        more than one) is left out, the most contradicted first: the pairs that it has spoilt count for nobody else.
        """
        contradicted: dict[int, set[int]] = {}
        for member in living:
            mine = self.dealings[member].keys
            for peer, keys in mine.items():
                if member < peer and peer in living:
                    theirs = self.dealings[peer].keys[member]
                    outgoing, incoming, seed = (theirs[place : place + COMMITMENT_BYTES] for place in _THREE)
                    if keys != incoming + outgoing + seed:
                        contradicted.setdefault(member, set()).add(peer)
                        contradicted.setdefault(peer, set()).add(member)
        self._apart = {member: set(peers) for member, peers in contradicted.items()}
        most = max(self._session.accomplices, 1)
        left_out = set()
        while contradicted:
            worst = max(sorted(contradicted), key=lambda member: len(contradicted[member]))
            peers = contradicted.pop(worst)
            if len(peers) <= most:
                break
            left_out.add(worst)
            self.blamed[worst] = f"{len(peers)} peers contradict its commitments to keys"
            for peer in peers:
                contradicted[peer].discard(worst)
        return left_out

    def try_accusations(self, accuser: int, accusations: Mapping[int, bytes], due: set[int]) -> None:
        """Convict those of whom it is proven that their letter to ``accuser`` is bad.

        Args:
            accuser: a member.
            accusations: by dealer, the key of its letter.
            due: the dealers whose letters it was handed.

        Raises:
            BadAccusation: one is not proven, so the accuser lies; nobody is convicted then.
        """
        for dealer, key in accusations.items():
            if dealer not in due:
                raise BadAccusation(f"client {accuser} accuses {dealer}, of whom it has no letter.")
            dealing = self.dealings[dealer]
            if key_commitment(self._session, dealer, accuser, key) != dealing.keys[accuser][:COMMITMENT_BYTES]:
                raise BadAccusation(f"client {accuser} opens another key than it and client {dealer} committed to.")
            try:
                open_letter(self._session, dealer, accuser, key, dealing.letters[accuser])
            except (BadCiphertext, BadShare):
                continue
            raise BadAccusation(f"client {accuser} accuses client {dealer} of a letter that is good.")
        for dealer in accusations:
            self._accusers.setdefault(dealer, set()).add(accuser)
            self._accused.setdefault(accuser, set()).add(dealer)
            self.blamed[dealer] = f"its letter to client {accuser} does not hold the shares that it committed to"

    def check_revealed(
        self, holder: int, revealed: Mapping[int, tuple[int, bytes]], asked_of: Callable[[int], int]
    ) -> None:
        """Return if ``holder`` reveals of every peer what was asked, and what it was dealt.

        Raises:
            BadShare: it reveals something else.
        """
        for peer, (what, one) in revealed.items():
            if what != asked_of(peer):
                raise BadShare(f"client {holder} reveals a share of the wrong secret of client {peer}.")
            if what == PAIR_SEED:
                self.check_seed(peer, holder, one)
            else:
                self.check_share(peer, holder, what, one)

    def check_share(self, dealer: int, holder: int, secret: int, share: bytes) -> None:
        """Return if ``share`` of one of ``dealer``'s secrets is the one that ``holder`` was dealt.

        Raises:
            BadShare: it is not.
        """
        dealing = self.dealings[dealer]
        both = dealing.own if dealer == holder else dealing.letters[holder].commitments
        due = both[secret * COMMITMENT_BYTES : (secret + 1) * COMMITMENT_BYTES]
        if share_commitment(self._session, dealer, holder, secret, share) != due:
            raise BadShare(f"client {holder} reveals a false share of a secret of client {dealer}.")

    def is_seed(self, member: int, peer: int, seed: bytes) -> bool:
        """Whether ``seed`` is that of the mask to which ``member``, and unless they are apart ``peer``, committed."""
        due = self.dealings[member].keys[peer][2 * COMMITMENT_BYTES :]
        return seed_commitment(self._session, member, peer, seed) == due

    def check_seed(self, peer: int, holder: int, seed: bytes) -> None:
        """Return if ``seed`` is that of the mask which ``holder`` has with ``peer``.

        Raises:
            BadShare: it is not.
        """
        if not self.is_seed(holder, peer, seed):
            raise BadShare(f"client {holder} reveals a false seed of its mask with client {peer}.")

    def forget(self) -> None:
        """Drop the dealings; who is to blame stays known."""
        self.dealings.clear()
        self._trees.clear()


def check_same(given: Collection[int], due: set[int], what: str) -> None:
    """Return if exactly the peers due are given, each of which is given once."""
    if strangers := set(given) - due:
        raise UnknownPeer(f"{what} {min(strangers)}, who is not among those due.")
    if missing := due - set(given):
        raise MissingPeer(f"{what} all but {min(missing)}, who is due too.")
