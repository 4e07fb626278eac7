"""The network: NVIDIA FLARE's messaging, under certificates of FLARE's provisioning, on both sides.

Both sides are long-lived processes with one connection each, opened by the client; TLS with certificates on both sides
(mutual), and a connection counts as the client that its certificate names. What FLARE does beyond carrying messages,
such as its jobs and controllers, is not used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from privfl.deploy.client import FederationClient
from privfl.deploy.transport import Patience
from privfl.errors import ConfigError, brief

SERVER = "server"
CHANNEL, TOPIC = "privfl", "request"
FIRST_WAIT, LONGEST_WAIT = 5.0, 10.0
"""Seconds after which a request goes out again to a client that is connected and silent: at first, and later.

A connection that broke off may seem to be there for a while, and what was sent along it is lost.
"""
POLL = 0.1
SCHEME = "stcp"


def name_of(client: int) -> str:
    """What FLARE, and the certificate, call a client."""
    return f"client-{client}"


def credentials(kit: Path, side: str) -> dict[str, str]:
    """The certificates in the folder ``startup`` of a participant's kit, of the ``side`` server or client.

    Raises:
        ConfigError: a file is missing.
    """
    files = {"ca_cert": "rootCA.pem", f"{side}_cert": f"{side}.crt", f"{side}_key": f"{side}.key"}
    for file in files.values():
        if not (kit / file).is_file():
            raise ConfigError(f"there is no {kit / file}; put the startup folder of the {side}'s FLARE kit there")
    return {name: str(kit / file) for name, file in files.items()}


def _cell(name: str, url: str, kit: Path, side: str) -> tuple[Any, Any]:
    """A cell of FLARE's network, not started yet, and the module it is from.

    Raises:
        ConfigError: FLARE is not installed, or the URL or a certificate is none.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or not parts.hostname or not parts.port:
        raise ConfigError(f"url is '{brief(url)}'; give {SCHEME}://host:port")
    given = credentials(kit, side)
    try:
        module = import_module("nvflare.fuel.f3.cellnet.core_cell")
    except ImportError as error:
        raise ConfigError(
            "a federation needs NVIDIA FLARE, which is not installed; pip install 'privfl[federation]'"
        ) from error
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # it logs every client that is away, once a try
    try:
        return module.CoreCell(name, url, True, given), module
    except Exception as error:  # what it says of a certificate may be anything
        raise ConfigError(
            f"FLARE cannot use the certificates in {kit} ({brief(str(error), 200)}); provision anew"
        ) from error


class FlareServer:
    """The server's end: :class:`~privfl.deploy.transport.Transport` over FLARE.

    Args:
        url: where to listen.
        kit: the folder ``startup`` of the server's kit.

    Raises:
        ConfigError: FLARE, the certificates or the port cannot be had.
    """

    def __init__(self, url: str, kit: Path) -> None:
        self._cell, self._module = _cell(SERVER, url, kit, "server")
        self._cell.start()

    def ask(self, requests: Mapping[int, bytes], seconds: float) -> dict[int, bytes]:
        """See :meth:`Transport.ask`."""
        replies: dict[int, bytes] = {}
        patience, wait = Patience(seconds), FIRST_WAIT
        while patience.left > 0 and len(replies) < len(requests):
            began = time.monotonic()
            there = [
                client for client in requests if client not in replies and self._cell.is_cell_connected(name_of(client))
            ]
            if not there:
                time.sleep(most := min(POLL, patience.left))
                patience.spend(began, most)
                continue
            most = min(wait, patience.left)
            replies |= self._send({client: requests[client] for client in there}, most)
            patience.spend(began, most)
            wait = LONGEST_WAIT
        return replies

    def _send(self, requests: Mapping[int, bytes], seconds: float) -> dict[int, bytes]:
        make, message = self._module.TargetMessage, self._module.Message
        targets = {
            name_of(client): make(name_of(client), CHANNEL, TOPIC, message(payload=request))
            for client, request in requests.items()
        }
        came = self._cell.broadcast_multi_requests(targets, timeout=seconds, optional=True)
        replies = {client: came.get(name_of(client)) for client in requests}
        return {
            client: bytes(reply.payload)
            for client, reply in replies.items()
            if reply is not None and isinstance(reply.payload, bytes | bytearray | memoryview)
        }

    def close(self) -> None:
        """Close the port."""
        self._cell.stop()
        self._module.CoreCell.ALL_CELLS.pop(SERVER, None)  # else this process could never be a server again


def serve_client(client: FederationClient, kit: Path, stop: Event) -> None:
    """Answer the server's requests until the run has ended, or ``stop`` is set.

    Raises:
        ConfigError: FLARE or the certificates cannot be had.
    """
    cell, module = _cell(name_of(client.own.number), client.federation.url, kit, "client")

    def answered(request: Any) -> Any:
        return module.Message(payload=client.answer(bytes(request.payload)))

    cell.register_request_cb(CHANNEL, TOPIC, answered)
    cell.start()
    try:
        while not (client.ended or stop.wait(POLL)):
            continue
        stop.wait(2 * POLL)  # the last answer is still on its way
    finally:
        cell.stop()
