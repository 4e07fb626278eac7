"""What one leg of a federation costs: bytes to every client and back over FLARE, each client a process of its own.

python benchmarks/federation_legs.py --clients 3 10 --bytes 400000 --out benchmarks/results/federation-legs.json

Prints, and writes, the milliseconds of every round trip. Needs pip install 'privfl[federation]'.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

from privfl.deploy.flare import FlareServer, serve_client
from privfl.deploy.kits import KIT, provision

PATIENCE = 120.0


def echo(number: int, url: str, kit: Path) -> None:
    """Answer every request with itself until killed."""
    own, federation = SimpleNamespace(number=number), SimpleNamespace(url=url)
    client: Any = SimpleNamespace(own=own, federation=federation, answer=lambda request: request, ended=False)
    serve_client(client, kit, Event())


def measure(clients: int, size: int, times: int) -> dict[str, Any]:
    """Milliseconds of each of ``times`` round trips of ``size`` bytes to all ``clients``."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"stcp://127.0.0.1:{one.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as room:
        folders = {name: Path(room) / name for name in ("server", *(f"client-{one}" for one in range(clients)))}
        for folder in folders.values():
            folder.mkdir()
        began = time.perf_counter()
        provision(folders)
        provisioned = time.perf_counter() - began
        server = FlareServer(url, folders["server"] / KIT)
        command = [sys.executable, __file__, "--echo"]
        processes = [
            subprocess.Popen([*command, str(number), url, str(folders[f"client-{number}"] / KIT)])
            for number in range(clients)
        ]
        try:
            request, spent = os.urandom(size), []
            assert len(server.ask(dict.fromkeys(range(clients), b"hello"), PATIENCE)) == clients
            for _ in range(times):
                began = time.perf_counter()
                replies = server.ask(dict.fromkeys(range(clients), request), PATIENCE)
                spent.append(round(1000 * (time.perf_counter() - began), 2))
                assert all(replies[client] == request for client in range(clients))
        finally:
            for process in processes:
                process.kill()
                process.wait()
            server.close()
    return {
        "clients": clients,
        "bytes": size,
        "milliseconds": spent,
        "seconds to provision": round(provisioned, 2),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What one leg of a federation costs.")
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--bytes", type=int, default=400_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--echo", nargs=3, metavar=("NUMBER", "URL", "KIT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.echo:
        echo(int(given.echo[0]), given.echo[1], Path(given.echo[2]))
        return
    found = [measure(clients, given.bytes, given.times) for clients in given.clients]
    for one in found:
        print(json.dumps(one))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
