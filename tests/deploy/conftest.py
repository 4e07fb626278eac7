"""A server's end of the network, of which FLARE lets a process have one, and certificates for it."""

from __future__ import annotations

import pytest

from privfl.deploy.flare import FlareServer
from privfl.deploy.kits import KIT, SERVER, provision
from privfl.deploy.transport import SMALL
from tests.deploy.parties import Parties, free_port


@pytest.fixture(scope="session")
def kits(tmp_path_factory):
    pytest.importorskip("nvflare", reason="pip install 'privfl[federation]'")
    root = tmp_path_factory.mktemp("kits")
    folders = {name: root / name for name in (SERVER, "client-0", "client-1")}
    provision(folders)
    return {name: folder / KIT for name, folder in folders.items()}


@pytest.fixture(scope="session")
def only_server(kits):
    url = f"stcp://127.0.0.1:{free_port()}"
    server = FlareServer(url, kits[SERVER])
    yield server, url
    server.close()


@pytest.fixture
def listening(only_server):
    """A server's end and its url."""
    only_server[0].expect(SMALL)
    return only_server


@pytest.fixture
def peers(tmp_path):
    parties = Parties(tmp_path)
    yield parties
    parties.end()
