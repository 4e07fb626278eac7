"""The network: NVIDIA FLARE's messaging, under certificates of FLARE's provisioning, on both sides.

Both sides are long-lived processes with one connection each, opened by the client; TLS with certificates on both sides
(mutual), and a connection counts as the client that its certificate names. What FLARE does beyond carrying messages,
such as its jobs and controllers, is not used. Where a sender's header says so, FLARE decodes what it carries into an
object before anybody here sees it: in 2.9, the only version that privfl admits, of classes that it lists or that were
registered with it.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from privfl.deploy.client import FederationClient
from privfl.deploy.listener import SCHEME as LISTENER
from privfl.deploy.listener import Limit, register
from privfl.deploy.transport import SMALL, Genuine, Patience, anything
from privfl.errors import ConfigError, brief

SERVER = "server"
CHANNEL, TOPIC = "privfl", "request"
FIRST_WAIT, LONGEST_WAIT = 5.0, 10.0
"""Seconds after which a request goes out again to a client that is connected and silent: at first, and later.

A connection that broke off may seem to be there for a while, and what was sent along it is lost.
"""
POLL = 0.1
PAUSE = 1.0
"""Seconds before a client is asked again that answered at once, with nothing that can be used."""
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


def check_certificate(given: Mapping[str, str], side: str, name: str) -> None:
    """See that the certificate among the ``given`` files serves the party called ``name``: with another one FLARE never
    connects, and does not say why.

    Raises:
        ConfigError: it is damaged, another party's, of another network, or not that of its key.
    """
    path, key = given[f"{side}_cert"], given[f"{side}_key"]
    mend = f"put the startup folder of the kit of '{name}' there, as one"
    try:
        certificate, root = (x509.load_pem_x509_certificate(Path(one).read_bytes()) for one in (path, given["ca_cert"]))
        names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} or {given['ca_cert']} is no certificate; {mend}") from error
    if names != [name]:
        raise ConfigError(f"{path} is the certificate of '{brief(', '.join(names))}', and this is '{name}'; {mend}")
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(f"{path} was not issued by {given['ca_cert']}; {mend}") from error
    try:
        ssl.create_default_context().load_cert_chain(path, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{key} is not the key of {path}; {mend}") from error


def address_of(url: str) -> tuple[str, int]:
    """Host and port of ``url``.

    Raises:
        ConfigError: it is no address of a federation.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # a port beyond 65535, or brackets around no address
        scheme, host, port = "", None, None
    if scheme != SCHEME or not host or not port:
        raise ConfigError(f"url is '{brief(url)}'; give {SCHEME}://host:port")
    return host, port


def _cell(name: str, url: str, kit: Path, side: str, limit: Limit | None = None) -> tuple[Any, Any]:
    """A cell of FLARE's network, not started yet, and the module it is from; a server's listens within ``limit``.

    Raises:
        ConfigError: FLARE is not installed, or the URL or a certificate is none.
    """
    host, port = address_of(url)
    given = credentials(kit, side)
    check_certificate(given, side, name)
    try:
        module = import_module("nvflare.fuel.f3.cellnet.core_cell")
        if limit is not None:
            register(limit)
            url = f"{LISTENER}://{host}:{port}"
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


def check_port(url: str) -> None:
    """See that the server can listen at ``url``: FLARE tries for ever where it cannot, and says nothing.

    Raises:
        ConfigError: it cannot.
    """
    host, port = address_of(url)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as FLARE does, for a server that starts anew
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"the server cannot listen on port {port} of {host} ({error.strerror}); end what uses "
                "that port, or give an address of this machine and a free port with --listen"
            ) from error


def content_of(message: Any) -> bytes | None:
    """The bytes that a ``message`` of FLARE's carries; ``None`` where it carries anything else.

    A header that the sender writes lets FLARE decode what it carried into an object: of a number, ``bytes`` would make
    as many zeros.
    """
    payload = message.payload
    return bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else None


class FlareServer:
    """The server's end: :class:`~privfl.deploy.transport.Transport` over FLARE.

    Args:
        url: where to listen.
        kit: the folder ``startup`` of the server's kit.

    Raises:
        ConfigError: FLARE, the certificates or the port cannot be had.
    """

    def __init__(self, url: str, kit: Path) -> None:
        self._closed, self._limit = Event(), Limit(SMALL)
        check_port(url)
        self._cell, self._module = _cell(SERVER, url, kit, "server", self._limit)
        self._cell.start()

    def ask(self, requests: Mapping[int, bytes], seconds: float, genuine: Genuine = anything) -> dict[int, bytes]:
        """See :meth:`Transport.ask`.

        Each client is asked by a thread, and so by a request of FLARE's, of its own: FLARE takes whom a reply is from
        from a header that its sender writes, so under one request for all a client could answer it for the others.
        """
        replies: dict[int, bytes] = {}
        failed: list[Exception] = []

        def one(client: int, request: bytes) -> None:
            try:
                reply = self._converse(client, request, seconds, genuine)
            except Exception as error:  # not the client's doing, which is no reply at most
                failed.append(error)
                return
            if reply is not None:
                replies[client] = reply

        threads = [Thread(target=one, args=asked, daemon=True) for asked in requests.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return {client: replies[client] for client in requests if client in replies}

    def _converse(self, client: int, request: bytes, seconds: float, genuine: Genuine) -> bytes | None:
        """Ask one client until it has answered by itself, or time is up."""
        patience, wait = Patience(seconds), FIRST_WAIT
        while patience.left > 0 and not self._closed.is_set():
            began = time.monotonic()
            if not self._cell.is_cell_connected(name_of(client)):
                time.sleep(most := min(POLL, patience.left))
                patience.spend(began, most)
                continue
            most = min(wait, patience.left)
            reply = self._send(client, request, most)
            patience.spend(began, most)
            if reply is not None and genuine(client, reply):
                return reply
            began, most = time.monotonic(), min(PAUSE, patience.left)
            self._closed.wait(most)
            patience.spend(began, most)
            wait = LONGEST_WAIT
        return None

    def _send(self, client: int, request: bytes, seconds: float) -> bytes | None:
        message = self._module.Message(payload=request)
        reply = self._cell.send_request(CHANNEL, TOPIC, name_of(client), message, timeout=seconds, optional=True)
        return None if reply is None else content_of(reply)

    def expect(self, largest: int) -> None:
        """See :meth:`Transport.expect`; a longer frame costs its sender the connection."""
        self._limit.largest = largest

    def close(self) -> None:
        """Close the port."""
        self._closed.set()
        self._cell.stop()
        self._module.CoreCell.ALL_CELLS.pop(SERVER, None)  # else this process could never be a server again


def serve_client(client: FederationClient, kit: Path, stop: Event, ready: Callable[[], None] = lambda: None) -> None:
    """Answer the server's requests until the run has ended, or ``stop`` is set; ``ready`` is called before the first.

    Raises:
        ConfigError: FLARE or the certificates cannot be had.
    """
    cell, module = _cell(name_of(client.own.number), client.federation.url, kit, "client")

    def answered(request: Any) -> Any:
        content = content_of(request)
        return module.Message(payload=b"" if content is None else client.answer(content))

    cell.register_request_cb(CHANNEL, TOPIC, answered)
    cell.start()
    ready()
    try:
        while not (client.ended or stop.wait(POLL)):
            continue
        stop.wait(2 * POLL)  # the last answer is still on its way
    finally:
        cell.stop()
