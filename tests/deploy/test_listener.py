"""Strangers keep nobody out of a federation, and no client makes the server hold more than a run needs."""

from __future__ import annotations

import socket
import time

import pytest

from tests.deploy.parties import PATIENCE, peer


@pytest.mark.slow
def test_strangers_who_never_shake_hands_keep_nobody_out(kits, listening, peers):
    server, url = listening
    port = int(url.rsplit(":", 1)[1])
    until = time.monotonic() + PATIENCE
    strangers = []
    while len(strangers) < 3:
        assert time.monotonic() < until
        try:
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=3.0))
        except OSError:
            time.sleep(0.1)
    strangers[-1].sendall(b"no handshake")
    peers.start(program=peer(0, url, kits))
    try:
        assert server.ask({0: b"?"}, 60.0) == {0: b"0"}, peers.logs()
    finally:
        for one in strangers:
            one.close()


@pytest.mark.slow
def test_a_reply_beyond_what_the_run_needs_is_not_taken_and_the_others_are_heard(kits, listening, peers):
    server, url = listening
    server.expect(1 << 20)
    peers.start(program=peer(0, url, kits, "large", 4 << 20))
    peers.start(program=peer(1, url, kits, "large", 1 << 19))
    assert server.ask({1: b"?"}, PATIENCE)[1].startswith(b"1")
    assert list(server.ask({0: b"?", 1: b"?"}, 4.0)) == [1]
    server.expect(8 << 20)
    assert len(server.ask({0: b"?"}, PATIENCE)[0]) == 1 + (4 << 20)
