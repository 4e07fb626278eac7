"""Where the server listens: FLARE's TCP driver, made patient with strangers and strict with sizes.

FLARE's own wraps the listening socket in TLS, so one connection that never begins its handshake keeps everybody else
out; and it makes room for two gigabytes whenever a frame says that it is so long.
"""

from __future__ import annotations

from importlib import import_module
from socketserver import ThreadingTCPServer
from threading import Event
from typing import Any

SCHEME = "privfl"
"""FLARE finds a driver by the scheme of a URL: its own keep theirs, and clients use FLARE's ``stcp``."""
HANDSHAKE = 10.0
"""Seconds in which a connection has to show its certificate."""
HEADERS = 1 << 20
"""Bytes that FLARE's own headers may take."""


class Limit:
    """How long a frame may be, in bytes; it moves once the model is known."""

    def __init__(self, largest: int) -> None:
        self.largest = largest


def register(limit: Limit) -> None:
    """Let FLARE's next listener under :data:`SCHEME` hold frames to ``limit``.

    Raises:
        ImportError: FLARE is not installed, or has no such driver any more.
    """
    drivers = import_module("nvflare.fuel.f3.drivers.driver_params").DriverParams
    contexts = import_module("nvflare.fuel.f3.drivers.net_utils")
    sockets = import_module("nvflare.fuel.f3.drivers.socket_conn")
    errors = import_module("nvflare.fuel.f3.comm_error").CommError
    driver: Any = import_module("nvflare.fuel.f3.drivers.tcp_driver").TcpDriver
    communicator = import_module("nvflare.fuel.f3.communicator")

    class Connection(sockets.SocketConnection):  # type: ignore[misc, name-defined]
        def read_into(self, buffer: Any, offset: int, length: int) -> None:
            """Read on, unless it is more than a frame may hold."""
            if length > limit.largest + HEADERS:
                raise errors(errors.BAD_DATA, f"a frame of {length} bytes, and {limit.largest} are the most")
            super().read_into(buffer, offset, length)

    class Handler(sockets.ConnectionHandler):  # type: ignore[misc, name-defined]
        request: Any

        def setup(self) -> None:
            """Shake hands on the connection's own thread, where nobody else waits for it."""
            accepted: Any = self.request
            accepted.settimeout(HANDSHAKE)
            secured = self.server.context.wrap_socket(accepted, server_side=True)
            secured.settimeout(None)
            self.request = secured

        def handle(self) -> None:
            """Pass on what comes until the connection ends."""
            connection = Connection(self.request, self.server.connector, True)
            self.server.driver.add_connection(connection)
            try:
                connection.read_loop()
            finally:
                self.server.driver.close_connection(connection)

        def finish(self) -> None:
            """Close the connection, which TLS has taken over from the socket that was accepted."""
            self.request.close()

    class Server(ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        block_on_close = False

        def __init__(self, its: Any, connector: Any) -> None:
            self.driver, self.connector, params = its, connector, connector.params
            self.context = contexts.get_ssl_context(params, ssl_server=True)
            super().__init__((params.get(drivers.HOST.value), int(params.get(drivers.PORT.value))), Handler)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of strangers that showed no certificate: anybody can be one."""

    class Listener(driver):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stopped = Event()

        @staticmethod
        def supported_transports() -> list[str]:
            return [SCHEME]

        def listen(self, connector: Any) -> None:
            """Accept connections until :meth:`shutdown`, also where that came first."""
            self.connector = connector
            with Server(self, connector) as self.server:
                self.server.timeout = 0.1
                while not self.stopped.is_set():
                    self.server.handle_request()

        def shutdown(self) -> None:
            """Close all connections, and stop listening."""
            self.stopped.set()
            self.close_all()

    communicator.driver_mgr.drivers.pop(SCHEME, None)  # of a server of this process before, with a limit of its own
    communicator.driver_mgr.register(Listener)
