"""What a client shares with its peers is right on both sides, and gone once it is told to forget."""

import numpy as np

from privfl.privacy.secagg import shamir
from privfl.privacy.secagg.bodies import PublicKeys
from privfl.privacy.secagg.dealer import Dealer
from privfl.privacy.secagg.letters import open_seeds
from privfl.privacy.secagg.masks import add_many
from privfl.privacy.secagg.primitives import AgreementKey
from tests.privacy.secagg.staging import a_session, entropy_of

SESSION = a_session(3, 2)
SERVER = AgreementKey(entropy_of("server")(32)).public


def dealers():
    """Every member, having agreed with all others."""
    members = {member: Dealer(SESSION, member, entropy=entropy_of("dealer", member)) for member in SESSION.members}
    keys = {member: dealer._draw_keys() for member, dealer in members.items()}
    for member, dealer in members.items():
        dealer._agree(SERVER, {peer: one for peer, one in keys.items() if peer != member})
    return members


def test_letters_hold_shares_of_the_mask_key_and_of_the_self_mask_and_the_seeds_open_with_the_former():
    members = dealers()
    mask_key, self_seed = members[0]._mask_key, members[0]._self_seed
    dealing = members[0]._deal([1, 2, 0])
    for peer in (1, 2):
        assert members[peer]._read({0: dealing.letters[peer]}) == {}
    shares = {SESSION.points[member]: members[member]._shares[0] for member in SESSION.members}
    for secret, part in ((mask_key, "mask_key"), (self_seed, "self_mask")):
        assert shamir.combine({point: getattr(pair, part) for point, pair in shares.items()}, 2) == secret
    seeds = open_seeds(SESSION, 0, mask_key, dealing.seeds, dealing.letters)
    assert seeds == {peer: members[peer]._pair_seeds[0] for peer in (1, 2)}
    assert all(dealing.keys[peer][64:] == members[peer]._deal([0, 3 - peer, peer]).keys[0][64:] for peer in (1, 2))


def test_the_masks_of_all_who_hold_each_others_letters_add_up_to_their_self_masks():
    members = dealers()
    dealings = {member: dealer._deal([*SESSION.members]) for member, dealer in members.items()}
    total, self_masks = np.zeros(5, np.uint32), np.zeros(5, np.uint32)
    for member, dealer in members.items():
        dealer._read({peer: one.letters[member] for peer, one in dealings.items() if peer != member})
        add_many(total, dealer._masks())
        add_many(self_masks, [(dealer._self_seed, 1)])
    assert total.tolist() == self_masks.tolist()


def test_a_dealer_that_forgets_knows_no_secret():
    dealer = dealers()[1]
    dealer._deal([0, 2, 1])
    dealer._forget()
    assert not any((dealer._channel, dealer._mask_key, dealer._self_seed, dealer._seal_key))
    assert not any((dealer._keys, dealer._pair_seeds, dealer._shares))
    assert isinstance(dealer._draw_keys(), PublicKeys)
