"""Which masks a vector gets: what client and server must compute alike."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from privfl.privacy.secagg.bodies import Words
from privfl.privacy.secagg.masks import add_many
from privfl.privacy.secagg.primitives import derive
from privfl.privacy.secagg.session import Session

Seeds = Sequence[tuple[bytes, int]]
"""Seeds of 32 bytes, each with the sign (+1 or −1) of its mask."""

MaskAdder = Callable[[Words, Seeds], None]
"""Adds the masks that the seeds expand to, with their signs, to a vector in place, modulo its word."""


def on_threads(threads: int) -> MaskAdder:
    """The masks of :mod:`privfl.privacy.secagg.masks`, expanded on so many threads."""

    def add(target: Words, seeds: Seeds) -> None:
        add_many(target, seeds, threads)

    return add


def sign_of(client: int, peer: int) -> int:
    """+1 if ``client`` adds the mask it shares with ``peer``, −1 if it subtracts it (Bonawitz et al. 2017)."""
    return 1 if client < peer else -1


def commitment(session: Session, client: int, self_seed: bytes) -> bytes:
    """32 bytes that fix ``client``'s self-mask seed without showing it.

    The papers have no such commitment. With it the server notices shares of a self-mask that combine to another seed,
    which would otherwise turn the sum into noise; other seeds of masks show by what both ends have committed to.
    """
    return derive(self_seed, session.fingerprint, b"self-mask commitment" + struct.pack("<I", client))
