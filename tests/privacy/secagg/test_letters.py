"""A letter opens for its holder alone, and shows its dealer's lies; keys and commitments are bound to their place."""

import dataclasses
import itertools

import pytest

from privfl.privacy.secagg import letters, merkle
from privfl.privacy.secagg.errors import BadCiphertext, BadShare, BadSignature
from privfl.privacy.secagg.letters import MASK_KEY, SELF_MASK, Shares
from privfl.privacy.secagg.primitives import AgreementKey, SigningKey, verification_key
from privfl.privacy.secagg.shamir import PRIME, SHARE_BYTES
from tests.privacy.secagg.staging import a_session, entropy_of

SESSION = a_session()
OTHERS = [
    dataclasses.replace(SESSION, **change)
    for change in ({"identity": bytes(32)}, {"round": 8}, {"threshold": 4, "quorum": 4}, {"members": (0, 1, 2, 3, 5)})
]
DRAW = entropy_of("letters")
KEYS = {member: AgreementKey(DRAW(32)) for member in range(4)}
PAIR = Shares(b"\1" * SHARE_BYTES, b"\2" * SHARE_BYTES)
KEY = DRAW(32)


def a_letter(session=SESSION, dealer=0, holder=1, key=KEY, shares=PAIR):
    return letters.write_letter(session, dealer, holder, key, shares, DRAW)


def between(one, other, session=SESSION):
    """What two clients share, whatever they are called, if they have the keys 0 and 1."""
    return letters.pair_keys(session, one, other, KEYS[0].agree(KEYS[1].public))


def test_two_peers_have_one_key_for_each_direction_one_to_confirm_and_a_seed_and_no_other_two_have_these():
    seen = set()
    for one, other in itertools.combinations(KEYS, 2):
        mine = letters.pair_keys(SESSION, one, other, KEYS[one].agree(KEYS[other].public))
        theirs = letters.pair_keys(SESSION, other, one, KEYS[other].agree(KEYS[one].public))
        assert (mine.outgoing, mine.incoming) == (theirs.incoming, theirs.outgoing)
        assert (mine.confirming, mine.seed) == (theirs.confirming, theirs.seed)
        assert "outgoing" not in repr(mine)
        seen |= {mine.outgoing, mine.incoming, mine.confirming, mine.seed}
    assert len(seen) == 4 * 6


def test_the_seeds_of_masks_open_under_the_mask_key_for_their_owner_only():
    seeds = {3: DRAW(32), 1: DRAW(32)}
    sealed = letters.seal_seeds(SESSION, 0, KEY, seeds)
    assert letters.open_seeds(SESSION, 0, KEY, sealed, [1, 3]) == seeds
    for place in ((SESSION, 2, KEY), (SESSION, 0, DRAW(32)), (OTHERS[0], 0, KEY)):
        with pytest.raises(BadCiphertext):
            letters.open_seeds(*place, sealed, [1, 3])


def test_keys_and_commitments_are_bound_to_session_dealer_holder_and_use():
    places = [(session, *pair) for session in (SESSION, *OTHERS) for pair in itertools.permutations(range(3), 2)]
    keys = [between(one, other, s).outgoing for s, one, other in places]
    keys += [between(one, other, s).seed for s, one, other in places if one < other]
    commitments = [letters.key_commitment(*place, KEY) for place in places]
    commitments += [letters.seed_commitment(*place, KEY) for place in places if place[1] < place[2]]
    assert letters.seed_commitment(SESSION, 2, 1, KEY) == letters.seed_commitment(SESSION, 1, 2, KEY)
    for secret in (MASK_KEY, SELF_MASK):
        commitments += [letters.share_commitment(*place, secret, PAIR.mask_key) for place in places]
    for values in (keys, commitments):
        assert len(set(values)) == len(values)
    assert letters.key_commitment(*places[0], DRAW(32)) not in commitments


def test_a_letter_opens_under_its_key_and_at_its_place_only():
    letter = a_letter()
    assert letters.open_letter(SESSION, 0, 1, KEY, letter) == PAIR
    for place in [(SESSION, 1, 0, KEY), (SESSION, 0, 2, KEY), (SESSION, 0, 1, DRAW(32)), (OTHERS[0], 0, 1, KEY)]:
        with pytest.raises(BadCiphertext):
            letters.open_letter(*place, letter)


@pytest.mark.parametrize(
    "false",
    [
        Shares(PAIR.self_mask, PAIR.mask_key),
        Shares(PAIR.mask_key, b"\3" * SHARE_BYTES),
        Shares(PRIME.to_bytes(SHARE_BYTES, "big"), PAIR.self_mask),
        Shares(PAIR.mask_key, b"\2" * (SHARE_BYTES - 1)),
    ],
)
def test_other_shares_than_those_committed_to_are_noticed_whatever_they_are(false):
    letter = dataclasses.replace(a_letter(shares=false), commitments=a_letter().commitments)
    with pytest.raises(BadShare):
        letters.open_letter(SESSION, 0, 1, KEY, letter)


@pytest.mark.parametrize("holders", [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]])
def test_one_signature_covers_every_letter_and_no_altered_one(holders):
    signing = DRAW(32)
    public = verification_key(signing)
    written = {holder: a_letter(holder=holder) for holder in holders}
    tree = letters.letter_tree(SESSION, written)
    signature = letters.sign_letters(SESSION, 0, tree.root, SigningKey(signing))
    letters.check_letters(SESSION, 0, tree.root, signature, public)
    for place, holder in enumerate(holders):
        letter = dataclasses.replace(written[holder], signature=signature, path=tree.paths()[place])
        letters.check_letter(SESSION, 0, holder, letter, public)
        assert len(letter.path) == merkle.HASH_BYTES * 2
        refused = [
            (SESSION, 0, (holder + 1) % 5, letter, public),
            (SESSION, 1, holder, letter, public),
            (OTHERS[0], 0, holder, letter, public),
            (SESSION, 0, holder, letter, verification_key(DRAW(32))),
            *(
                (SESSION, 0, holder, dataclasses.replace(letter, **{name: bytes(len(getattr(letter, name)))}), public)
                for name in ("commitments", "sealed", "signature", "path")
                if any(getattr(letter, name))
            ),
        ]
        for given in refused:
            with pytest.raises(BadSignature):
                letters.check_letter(*given)


def test_shares_are_two_elements_of_the_field():
    assert Shares.from_bytes(PAIR.to_bytes()) == PAIR
    assert "1" not in repr(PAIR)
    for wrong in (bytes(2 * SHARE_BYTES - 1), b"\xff" * 2 * SHARE_BYTES):
        with pytest.raises(BadShare):
            Shares.from_bytes(wrong)
