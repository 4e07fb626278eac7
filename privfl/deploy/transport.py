"""The seam to whatever carries bytes: what a server needs of it, and one that carries them within a process.

A transport knows who a client is only as far as routing goes. Identity is a matter of signatures, one floor up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Protocol

SLICE = 0.1
"""Seconds that are waited at a time, and so the most that a pause of this process takes from anybody's patience."""

Answer = Callable[[bytes], bytes]
"""What a client does: bytes in, bytes out. The same bytes may come again and are answered alike."""
SMALL = 1 << 24
"""Bytes of a reply that any run may need, whatever its model."""
Genuine = Callable[[int, bytes], bool]
"""Whether a reply is the client's own, by its number. Several threads may ask at once, of several clients."""


def anything(client: int, reply: bytes) -> bool:
    """Takes every reply for genuine: for whoever does not look at them."""
    return True


class Transport(Protocol):
    """Carries requests to clients and replies back."""

    def ask(self, requests: Mapping[int, bytes], seconds: float, genuine: Genuine = anything) -> dict[int, bytes]:
        """The replies, by client, that came within ``seconds``; whoever is silent is missing.

        A request may reach its client more than once. One that cannot be reached is tried again until time is up. A
        reply that is not ``genuine`` is none: anybody may have sent it, and the client's own is still waited for.
        """

    def expect(self, largest: int) -> None:
        """Take no reply of more than ``largest`` bytes from now on; until then that is :data:`SMALL`."""

    def close(self) -> None:
        """Let go of everything."""


class Patience:
    """What is left of so many seconds of waiting.

    Only time in which this process could have heard an answer counts. A process that was stopped, or that a busy
    machine kept waiting, would otherwise find on its return that everybody had been silent for too long.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, began: float, asked: float) -> None:
        """Count a wait that ``began`` then (monotonic), for ``asked`` seconds at most, however long ago that is."""
        self.left -= min(monotonic() - began, asked)


class Loopback:
    """Clients in this process, each asked on a thread of its own."""

    def __init__(self, clients: Mapping[int, Answer]) -> None:
        self.clients = dict(clients)
        self.largest = SMALL

    def ask(self, requests: Mapping[int, bytes], seconds: float, genuine: Genuine = anything) -> dict[int, bytes]:
        """See :meth:`Transport.ask`; a client that fails is silent, and answers once."""
        came: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()

        def one(client: int, request: bytes) -> None:
            try:
                came.put((client, self.clients[client](request)))
            except Exception:  # whatever a client dies of, the server hears nothing
                came.put((client, None))

        asked = [client for client in requests if client in self.clients]
        for client in asked:
            Thread(target=one, args=(client, requests[client]), daemon=True).start()
        replies: dict[int, bytes] = {}
        patience, waiting = Patience(seconds), len(asked)
        while waiting and patience.left > 0:
            began, most = monotonic(), min(SLICE, patience.left)
            try:
                client, reply = came.get(timeout=most)
            except Empty:
                patience.spend(began, most)
                continue
            patience.spend(began, most)
            waiting -= 1
            if reply is not None and len(reply) <= self.largest and genuine(client, reply):
                replies[client] = reply
        return replies

    def expect(self, largest: int) -> None:
        """See :meth:`Transport.expect`."""
        self.largest = largest

    def close(self) -> None:
        """Nothing is held."""
