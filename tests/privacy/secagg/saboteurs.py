"""Clients that lie, each in one way; everything else they do, they do right, and all they send is sealed as theirs."""

import dataclasses

from privfl.privacy.secagg.bodies import (
    Dealing,
    PublicKeys,
    answer,
    before_words,
    confirmation,
    parse_answer,
    parse_masked,
)
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.letters import Letter, Shares, letter_tree, seal_seeds, sign_letters, write_letter
from privfl.privacy.secagg.messages import Kind, Phase, body_of
from privfl.privacy.secagg.shamir import SHARE_BYTES


class Saboteur(Client):
    """``phase`` is where the lie is told, ``to`` how many peers it is told to (None: all), where that counts."""

    phase = Phase.SHARE
    to = None

    def _victims(self, peers):
        return sorted(peers)[: self.to]


class ReflectedKey(Saboteur):
    """Advertises a point of low order."""

    phase = Phase.ADVERTISE

    def _draw_keys(self):
        super()._draw_keys()
        return PublicKeys(bytes(32))


class FalseKeyCommitments(Saboteur):
    """Commits to keys that are not those of its letters."""

    def _deal(self, holders):
        dealing = super()._deal(holders)
        false = dict.fromkeys(self._victims(dealing.keys), b"\7" * 96)
        return dataclasses.replace(dealing, keys=dealing.keys | false)


class FalseKeyCommitmentToOne(FalseKeyCommitments):
    to = 1


class ChangedLetters(Saboteur):
    """Sends other letters than it should, and signs them; ``changed`` of the kinds below says which."""

    def _deal(self, holders):
        dealing = super()._deal(holders)
        letters = dict(dealing.letters)
        for peer in self._victims(letters):
            letters[peer] = self.changed(peer, letters[peer])
        signature = b""
        if self._signing_key is not None:
            root = letter_tree(self.session, letters).root
            signature = sign_letters(self.session, self.number, root, self._signing_key)
        return dataclasses.replace(dealing, letters=letters, signature=signature)


class GarbledLetters(ChangedLetters):
    """Letters that do not open."""

    def changed(self, peer, letter):
        return Letter(letter.commitments, bytes(len(letter.sealed)))


class GarbledLetterToOne(GarbledLetters):
    to = 1


class GarbledLettersToHalf(GarbledLetters):
    """So many that neither its secrets can be rebuilt from the good ones, nor everybody has left it out."""

    @property
    def to(self):
        return len(self.session.members) // 2


class FalseShares(ChangedLetters):
    """Letters that open, with other shares than it committed to."""

    def changed(self, peer, letter):
        pair = Shares(b"\1" * SHARE_BYTES, b"\2" * SHARE_BYTES)
        false = write_letter(self.session, self.number, peer, self._keys[peer].outgoing, pair, self._entropy)
        return dataclasses.replace(false, commitments=letter.commitments)


class UnfittingShares(ChangedLetters):
    """Letters and commitments as they should be, of shares that lie on no polynomial: shows at the end only."""

    def changed(self, peer, letter):
        pair = Shares(b"\1" * SHARE_BYTES, self._entropy(SHARE_BYTES - 1).rjust(SHARE_BYTES, b"\0"))
        return write_letter(self.session, self.number, peer, self._keys[peer].outgoing, pair, self._entropy)


class UnsignedLetters(Saboteur):
    """A signature of its letters that is none; without signatures, one letter too few."""

    def _deal(self, holders):
        dealing = super()._deal(holders)
        if dealing.signature:
            return dataclasses.replace(dealing, signature=bytes(64))
        last = max(dealing.letters)
        keep = {peer: one for peer, one in dealing.letters.items() if peer != last}
        seeds = seal_seeds(self.session, self.number, self._mask_key, {peer: self._pair_seeds[peer] for peer in keep})
        return Dealing(dealing.own, {peer: dealing.keys[peer] for peer in keep}, seeds, keep)


class FalseAccusation(Saboteur):
    """Accuses a peer whose letter is good, and opens the right key."""

    phase = Phase.MASK

    def _mask_vector(self, data, vector):
        key = self._keys[min(self._keys)].incoming
        victim = min(self._keys)
        committed, _, words = parse_masked(body_of(super()._mask_vector(data, vector)), self.session)
        return self._message(Kind.MASKED, before_words(committed, {victim: key}) + words.tobytes())


class ForgedAccusation(FalseAccusation):
    """Accuses a peer and opens a key of its own making."""

    def _mask_vector(self, data, vector):
        victim = min(self._keys)
        committed, _, words = parse_masked(body_of(Client._mask_vector(self, data, vector)), self.session)
        return self._message(Kind.MASKED, before_words(committed, {victim: b"\7" * 32}) + words.tobytes())


class ShortVector(Saboteur):
    """Sends one number too few."""

    phase = Phase.MASK

    def _mask_vector(self, data, vector):
        return self._message(Kind.MASKED, bytes(body_of(super()._mask_vector(data, vector)))[:-4])


class FalseDeposit(Saboteur):
    """Deposits other seeds of its masks than it has committed to, then falls silent: shows at the end only."""

    def _deal(self, holders):
        false = {peer: bytes(32) for peer in self._pair_seeds}
        return dataclasses.replace(
            super()._deal(holders), seeds=seal_seeds(self.session, self.number, self._mask_key, false)
        )


class FalseSeed(Saboteur):
    """Commits to another self-mask than it has shared: shows at the end only."""

    phase = Phase.MASK

    def _mask_vector(self, data, vector):
        _, accusations, words = parse_masked(body_of(super()._mask_vector(data, vector)), self.session)
        return self._message(Kind.MASKED, before_words(b"\7" * 32, accusations) + words.tobytes())


class FalseConfirmation(Saboteur):
    """Confirms the survivors to nobody: its tags are wrong."""

    phase = Phase.CONFIRM

    def _confirm(self, data):
        super()._confirm(data)
        tags = dict.fromkeys(sorted((self._confirmed & self._shares.keys()) - {self.number}), bytes(16))
        return self._message(Kind.CONFIRMATION, confirmation(self._confirmed, tags))


class OtherSurvivors(Saboteur):
    """Confirms a list without one of the survivors."""

    phase = Phase.CONFIRM

    def _confirm(self, data):
        super()._confirm(data)
        tags = dict.fromkeys(sorted((self._confirmed & self._shares.keys()) - {self.number}), bytes(16))
        return self._message(Kind.CONFIRMATION, confirmation(self._confirmed - {min(self._confirmed)}, tags))


class FalseAnswer(Saboteur):
    """Reveals a false share of one peer's secret."""

    phase = Phase.UNMASK

    def _unmask(self, data):
        revealed = parse_answer(body_of(super()._unmask(data)))
        victim = min(revealed)
        revealed[victim] = (revealed[victim][0], b"\1" * len(revealed[victim][1]))
        return self._message(Kind.ANSWER, answer(revealed))


class PartialAnswer(Saboteur):
    """Leaves a share out."""

    phase = Phase.UNMASK

    def _unmask(self, data):
        revealed = parse_answer(body_of(super()._unmask(data)))
        del revealed[max(revealed)]
        return self._message(Kind.ANSWER, answer(revealed))


LEFT_OUT = (
    ReflectedKey,
    FalseKeyCommitments,
    GarbledLetters,
    GarbledLetterToOne,
    GarbledLettersToHalf,
    FalseShares,
    UnsignedLetters,
    FalseAccusation,
    ForgedAccusation,
    ShortVector,
)
"""Whoever lies like this is named, and its vector is not in the sum."""

IN_THE_SUM = (FalseKeyCommitmentToOne, FalseConfirmation, OtherSurvivors, FalseAnswer, PartialAnswer)
"""Their vectors are in the sum (what they spoil comes after it, or parts a pair only)."""

UNNAMED = (FalseKeyCommitmentToOne, FalseConfirmation)
"""Two that contradict each other, and tags that only their receivers can check: nobody can say who lies."""

ENDING = (UnfittingShares, FalseSeed)
"""What shows at the end only: the session is aborted, and they are named."""
