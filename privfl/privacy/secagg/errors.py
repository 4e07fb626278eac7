"""What the secure-aggregation protocol refuses, by name.

Every error ends something cleanly: raised by a client it ends that client's part in the session, raised by
``Server.receive`` it discards that message, raised by ``Server.close_phase`` it aborts the session.
"""

from __future__ import annotations

from privfl.errors import PrivflError


class SecAggError(PrivflError, ValueError):
    """Base of everything that the secure-aggregation protocol refuses."""


class MalformedMessage(SecAggError):
    """The bytes are no message of this protocol: wrong start, wrong length, cut off, or something left over."""


class UnsupportedVersion(MalformedMessage):
    """The message is of another version of the protocol."""


class AlteredMessage(MalformedMessage):
    """The message's digest is wrong: it was altered on the way, or the two sides' sessions differ."""


class ForeignMessage(SecAggError):
    """The message belongs to another session or round, is meant for another receiver, or is from the wrong side."""


class OutOfOrder(SecAggError):
    """The protocol is not at the step that this message or call belongs to."""


class LateMessage(OutOfOrder):
    """The message belongs to a phase that is closed."""


class EarlyMessage(OutOfOrder):
    """The message belongs to a phase that has not begun."""


class RepeatedMessage(OutOfOrder):
    """The sender has already answered in this phase."""


class DroppedClient(OutOfOrder):
    """The sender missed an earlier phase, so it is out of this session."""


class SpentClient(OutOfOrder):
    """The client has served its one session or met an error in it; it answers nothing more."""


class AbortedSession(OutOfOrder):
    """The session was aborted before; nothing more is to be had from it."""


class BadPeerList(SecAggError):
    """A list of peers cannot be right."""


class UnknownPeer(BadPeerList):
    """A number is listed that is no neighbour of this client, or no member of the session."""


class RepeatedPeer(BadPeerList):
    """A peer is listed twice."""


class OwnNameListed(BadPeerList):
    """The client finds itself where only others belong: among its peers or among the dead."""


class MissingPeer(BadPeerList):
    """Somebody who must be listed is not."""


class RevivedPeer(BadPeerList):
    """A peer that had dropped out before is listed again."""


class AliveAndDead(BadPeerList):
    """A peer is listed as a survivor and as dropped: to answer would reveal its input."""


class InconsistentSurvivors(BadPeerList):
    """The survivors named differ from those that this client has confirmed."""


class BadKey(SecAggError):
    """A public key is unusable: wrong length or form, a point of low order, or the same key for two purposes."""


class BadSignature(SecAggError):
    """A signature does not verify."""


class BadCiphertext(SecAggError):
    """A sealed message does not open: it was altered, or sealed for another purpose."""


class BadShare(SecAggError):
    """A secret share is unusable, or shares do not combine to the secret that was committed to."""


class BadAccusation(SecAggError):
    """An accusation is not borne out: the opened key is not the one committed to, or the letter is good."""


class PolicyRefused(SecAggError):
    """A session, or a sum of one, is not what this client's policy allows."""


class BadVector(SecAggError):
    """A vector does not have the session's length, type or range."""


class TooFewClients(SecAggError):
    """Fewer clients are left than the session needs; it is aborted and nothing is revealed."""
