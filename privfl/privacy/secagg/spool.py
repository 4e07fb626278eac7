"""Vectors that a server may have to take out of its sum again, kept in a file so that memory stays that of one."""

from __future__ import annotations

from tempfile import TemporaryFile

import numpy as np

from privfl.privacy.secagg.bodies import Words


class Spool:
    """Masked vectors by client, all of one length and type, in a nameless file that goes with its owner."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 (closed with its owner)
        self._places: dict[int, int] = {}

    def keep(self, member: int, words: Words) -> None:
        """Keep ``member``'s vector.

        Raises:
            OSError: the disk is full.
        """
        place = self._file.seek(len(self._places) * words.nbytes)
        self._file.write(words.view(np.uint8).data)
        self._places[member] = place

    def take(self, member: int, like: Words) -> Words:
        """``member``'s vector, of the length and type of ``like``."""
        self._file.seek(self._places[member])
        words = np.empty_like(like)
        self._file.readinto(words.view(np.uint8).data)
        return words

    def __contains__(self, member: int) -> bool:
        return member in self._places

    def close(self) -> None:
        """Delete everything."""
        self._file.close()
        self._places.clear()
