"""Waiting for answers: whoever is silent is missing, and a server that was stopped itself blames nobody for it."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from privfl.deploy.transport import Loopback, Patience


def slow(request):
    time.sleep(0.4)
    return request


@pytest.mark.parametrize("stopped", [0.0, 1.5])
def test_a_server_that_was_stopped_hears_who_answers_in_time(stopped):
    commands = f"sleep 0.2; kill -STOP {os.getpid()}; sleep {stopped}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["/bin/sh", "-c", commands]):
        came = Loopback({client: slow for client in range(4)}).ask(dict.fromkeys(range(4), b"?"), 1.0)
    assert came == dict.fromkeys(range(4), b"?")


def test_whoever_is_silent_or_dies_is_missing_when_time_is_up():
    def dies(request):
        raise OSError("the line is dead")

    def never(request):
        time.sleep(5.0)

    began = time.monotonic()
    came = Loopback({0: lambda request: b"here", 1: dies, 2: never}).ask(dict.fromkeys(range(4), b"?"), 0.3)
    assert came == {0: b"here"}
    assert 0.3 <= time.monotonic() - began < 3


def test_a_wait_counts_for_no_longer_than_it_was_asked_for():
    patience = Patience(1.0)
    patience.spend(time.monotonic() - 60.0, 0.25)
    assert patience.left == 0.75


def test_a_reply_that_is_not_its_clients_own_is_none():
    asked = []

    def genuine(client, reply):
        asked.append((client, reply))
        return client == 0

    came = Loopback({0: lambda request: b"own", 1: lambda request: b"forged"}).ask({0: b"?", 1: b"?"}, 5.0, genuine)
    assert came == {0: b"own"}
    assert sorted(asked) == [(0, b"own"), (1, b"forged")]


def test_a_reply_beyond_what_is_expected_is_none():
    network = Loopback({0: lambda request: bytes(10), 1: lambda request: bytes(11)})
    network.expect(10)
    assert network.ask({0: b"?", 1: b"?"}, 5.0) == {0: bytes(10)}
