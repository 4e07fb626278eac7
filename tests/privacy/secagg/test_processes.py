"""Clients and server need nothing of each other but bytes: the same objects work in processes of their own."""

import multiprocessing
import subprocess
import sys

import pytest

from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.server import Server
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.store import FolderStore
from tests.privacy.secagg.staging import Stage, a_session, sum_of, vectors_for


def be_client(pipe, member, keys, vector, folder):
    """A client that knows its number, its keys and its vector; the rest comes through the pipe."""
    data = pipe.recv_bytes()
    client = Client(Session.from_bytes(data), member, **keys, store=FolderStore(folder))
    while True:
        pipe.send_bytes(client.answer(data, vector))
        data = pipe.recv_bytes()


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_a_session_across_processes_one_of_which_is_killed_gives_the_sum_of_the_others(adversary, tmp_path):
    session = a_session(5, 3, length=20_000, adversary=adversary)
    vectors, actors = vectors_for(session), Stage(session)
    context = multiprocessing.get_context("fork")
    pipes, processes = {}, {}
    for member in session.members:
        pipes[member], theirs = context.Pipe()
        keys = {"signing_key": actors.signing.get(member), "verify_keys": actors.verifying}
        processes[member] = context.Process(
            target=be_client, args=(theirs, member, keys, vectors[member], tmp_path / str(member)), daemon=True
        )
        processes[member].start()
        theirs.close()
        pipes[member].send_bytes(session.to_bytes())
    server = Server(session, actors.verifying)
    try:
        while server.phase is not None:
            for member, pipe in pipes.items():
                assert pipe.poll(60)
                server.receive(pipe.recv_bytes(), member)
            following = server.close_phase()
            if server.phase is Phase.MASK:
                processes[2].kill()
                pipes.pop(2).close()
            for member, pipe in pipes.items():
                if member in following:
                    pipe.send_bytes(following[member])
    finally:
        for process in processes.values():
            process.kill()
    assert server.survivors == {0, 1, 3, 4}
    assert server.result().tolist() == sum_of(session, vectors, server.survivors)


def test_a_client_needs_neither_torch_nor_scipy():
    """It may run where neither would fit: about 40 MiB and 0.6 s, measured once; what is asserted is the cause."""
    program = (
        "import sys, privfl.privacy.secagg.client, privfl.privacy.secagg.encoding, privfl.privacy.secagg.policy, "
        "privfl.privacy.secagg.rehearsal, privfl.privacy.secagg.store\n"
        "from privfl.privacy.secagg.session import Session\n"
        "from privfl.privacy.secagg.parameters import ThreatModel\n"
        "Session.between(range(1000), ThreatModel(0.05, 0.1, 'semi-honest'), length=5).holders[3]\n"
        "print(sorted({'torch', 'scipy', 'opacus'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
