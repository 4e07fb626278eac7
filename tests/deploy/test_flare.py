"""Real processes over FLARE's messaging with certificates: a client, the link and the server are killed: no change."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time

import numpy as np
import pytest

from privfl.deploy.flare import FlareServer, address_of, check_certificate, check_port, content_of, credentials
from privfl.deploy.kits import KIT, SERVER, project, provision
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from tests.deploy.parties import PATIENCE, ROOT, Parties, free_port, peer

LINK = ROOT / "benchmarks" / "federation_kills.py"
"""With ``--link`` it passes on all bytes between two ports, as a network would."""
EXPERIMENT = """
rounds = 25
seed = 3
device = "cpu"
engine = "loop"
dataset.name = "digits"
model.name = "logistic"
partition = {{name = "iid", clients = 2}}
algorithm = {{name = "tests.deploy.mortal:Mortal", trap = "{trap}", weighting = "uniform"}}
training = {{epochs = 1, batch_size = 128}}
privacy = {{noise_key = 7, target_delta = 1e-4, training = {{noise_multiplier = 2.0}}}}
"""


def test_a_kit_without_its_certificate_is_named(tmp_path):
    (tmp_path / "rootCA.pem").touch()
    with pytest.raises(ConfigError, match=r"there is no .*client\.crt"):
        credentials(tmp_path, "client")


@pytest.mark.parametrize("url", ["http://host:1", "stcp://host", "stcp://:1", "stcp://host:99999", "stcp://[1:2", ""])
def test_what_is_no_address_is_named(url):
    with pytest.raises(ConfigError, match=re.escape(f"url is '{url}'; give stcp://host:port")):
        address_of(url)


def test_a_project_names_every_party_as_its_certificate_will():
    text = project(["server", "client-0"])
    assert "name: server, org: privfl, type: server" in text
    assert "name: client-0, org: privfl, type: client" in text


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"client.crt": "client-1"}, r"client\.crt is the certificate of 'client-1', and this is 'client-0'"),
        ({"client.key": "client-1"}, r"client\.key is not the key of .*client\.crt"),
        ({"client.crt": b"junk"}, r"client\.crt or .*rootCA\.pem is no certificate"),
        ({"client.key": b"junk"}, r"client\.key is not the key of .*client\.crt"),
        ({"rootCA.pem": "other"}, r"client\.crt was not issued by .*rootCA\.pem"),
    ],
)
def test_a_certificate_that_cannot_serve_its_party_is_named_before_anybody_waits(files, sentence, kits, tmp_path):
    folder = tmp_path / "startup"
    shutil.copytree(kits["client-0"], folder)
    check_certificate(credentials(folder, "client"), "client", "client-0")
    for file, source in files.items():
        if source == "other":
            provision({SERVER: tmp_path / "other"})
            source = (tmp_path / "other" / KIT / file).read_bytes()
        (folder / file).write_bytes(source if isinstance(source, bytes) else (kits[source] / file).read_bytes())
    with pytest.raises(ConfigError, match=rf"{sentence}; put the startup folder of the kit of 'client-0' there"):
        check_certificate(credentials(folder, "client"), "client", "client-0")


def test_a_port_that_is_taken_is_named_before_anybody_waits(kits):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"cannot listen on port {port} of 127\.0\.0\.1 \(Address already in use"
        ):
            FlareServer(f"stcp://127.0.0.1:{port}", kits[SERVER])
    check_port(f"stcp://127.0.0.1:{port}")


def test_an_address_of_another_machine_is_named(kits):
    with pytest.raises(ConfigError, match=r"port 8102 of 192\.0\.2\.1 \(Cannot assign .* with --listen"):
        FlareServer("stcp://192.0.2.1:8102", kits[SERVER])


@pytest.mark.parametrize(("sent", "content"), [(b"bytes", b"bytes"), (1 << 62, None), ("text", None), (None, None)])
def test_what_flare_decodes_into_an_object_is_no_content(sent, content):
    """A sender decides by a header what is decoded; of a number, ``bytes`` would make as many zeros."""
    pytest.importorskip("nvflare", reason="pip install 'privfl[federation]'")
    from nvflare.fuel.f3.cellnet.utils import decode_payload, encode_payload
    from nvflare.fuel.f3.message import Message

    message = Message(payload=sent)
    encode_payload(message)
    decode_payload(message)
    assert message.payload == sent
    assert content_of(message) == content


@pytest.mark.slow
def test_no_client_answers_for_another(kits, listening, peers):
    server, url = listening
    peers.start(program=peer(0, url, kits))
    peers.start(program=peer(1, url, kits, "forge", 0))
    came = server.ask({0: b"?", 1: b"?"}, PATIENCE)
    assert came == {0: b"0", 1: b"1"}, peers.logs()


@pytest.mark.slow
def test_a_reply_that_is_not_genuine_is_waited_past_and_asked_for_again(kits, listening, peers):
    server, url = listening
    peers.start(program=peer(0, url, kits))
    seen = []

    def genuine(client, reply):
        seen.append((client, reply))
        return len(seen) == 3

    assert server.ask({0: b"?"}, PATIENCE, genuine) == {0: b"0"}
    assert seen == [(0, b"0")] * 3
    assert server.ask({0: b"?", 1: b"?"}, 3.0, lambda client, reply: False) == {}


@pytest.mark.slow
def test_killed_clients_links_and_servers_change_neither_model_nor_claim(tmp_path):
    pytest.importorskip("nvflare", reason="pip install 'privfl[federation]'")
    trap, file, simulation = tmp_path / "trap", tmp_path / "experiment.toml", tmp_path / "simulation"
    file.write_text(EXPERIMENT.format(trap=trap), encoding="utf-8")
    expected = Experiment.from_toml(file).run(simulation)
    parties, folder = Parties(tmp_path), tmp_path / "federation"
    run = folder / "server" / "run"
    until = time.monotonic() + PATIENCE

    def wait_for(what):
        while not what():
            assert time.monotonic() < until, parties.logs()
            time.sleep(0.02)

    def lines():
        path = run / "metrics.jsonl"
        return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0

    try:
        inner, outer = free_port(), free_port()
        url, listen = (f"stcp://127.0.0.1:{port}" for port in (outer, inner))
        split = parties.start("split", file, "--out", folder, "--url", url, "--seconds", "120")
        assert split.wait(PATIENCE) == 0, parties.logs()
        link = parties.start("--link", outer, inner, program=(LINK,))
        clients = [parties.start("client", folder / f"client-{number}") for number in range(2)]
        server = parties.start("server", folder / "server", "--listen", listen, "--like", simulation)
        wait_for(lambda: lines() >= 1)
        trap.touch()  # whichever client comes next dies in the middle of its round
        wait_for(lambda: any(process.poll() is not None for process in clients))
        died = next(number for number, process in enumerate(clients) if process.poll() is not None)
        assert clients[died].returncode == -signal.SIGKILL
        clients[died] = parties.start("client", folder / f"client-{died}")
        done = lines()
        wait_for(lambda: lines() > done)
        parties.kill(link)
        parties.start("--link", outer, inner, program=(LINK,))
        done = lines()
        wait_for(lambda: lines() > done + 1)  # one may have been on its way
        parties.kill(server)
        assert not (run / "summary.json").exists()
        resumed = parties.start("server", folder / "server", "--listen", listen, "--like", simulation, "--resume")
        assert resumed.wait(PATIENCE) == 0, parties.logs()
        for process in clients:
            assert process.wait(PATIENCE) == 0, parties.logs()
    finally:
        parties.end()
    model = np.load(run / "checkpoints" / "latest.npz")["tensor/server/parameters"]
    assert np.array_equal(model, expected.parameters.numpy())
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert found == json.loads(json.dumps(expected.metrics))
    assert (
        json.loads((run / "statement.json").read_text(encoding="utf-8"))["cells"]
        == json.loads((simulation / "statement.json").read_text(encoding="utf-8"))["cells"]
    )
