"""Who broke the protocol of a secure sum, kept beside the run: one liar could end every sum that it takes part in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfl.errors import DataError, brief
from privfl.files import read_json, write_json

CONVICTED = "convicted.json"
"""In the run directory."""
LEFT_OUT = "broke the protocol of an earlier secure sum"
"""Why a client is not asked."""


class Convictions:
    """The clients that take part in no secure sum any more, of the run in ``folder``.

    A conviction counts from the next round on, and is on disk before that begins: a server that is killed and repeats a
    round asks the same clients again, who would not answer a cohort that came out otherwise.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CONVICTED
        self._since: dict[int, tuple[int, str]] = {}
        told: dict[str, Any] = read_json(self._path) if self._path.exists() else {"clients": {}}
        try:
            for client, (round, reason) in told["clients"].items():
                self._since[int(client)] = int(round), str(reason)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self._path} is damaged; restore it, or start anew with another --out") from error

    def before(self, round: int) -> Mapping[int, str]:
        """Why clients are left out of the secure sums of ``round``, by client."""
        return {client: LEFT_OUT for client, (since, _) in self._since.items() if since < round}

    def add(self, blamed: Mapping[int, str], round: int) -> list[str]:
        """Convict those who are ``blamed`` for the secure sum of ``round``, with the reason; a sentence of each."""
        new = {client: (round, brief(reason, 200)) for client, reason in blamed.items() if client not in self._since}
        if new:
            self._since |= new
            told = {str(client): list(why) for client, why in sorted(self._since.items())}
            write_json(self._path, {"clients": told})
        return [self._note(client) for client in sorted(new)]

    @property
    def notes(self) -> list[str]:
        """A sentence of each."""
        return [self._note(client) for client in sorted(self._since)]

    def _note(self, client: int) -> str:
        round, reason = self._since[client]
        return (
            f"client {client} broke the protocol of round {round}'s secure sum and took part in no later one: {reason}"
        )
