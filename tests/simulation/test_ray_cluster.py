"""A cluster that is not there, and parts that cannot be sent, are refused in a sentence and at once."""

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.simulation.ray_cluster import connected, ray_module, unsendable

pytest.importorskip("ray")


@pytest.mark.parametrize("address", ["auto", "head", "head:", ":6379", "head:0", "head:99999", "ray://head:10001"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"address is '.*'; give host:port of a Ray head"), connected(address, 1):
        pytest.fail("there is no such cluster")


def test_an_address_at_which_nobody_listens_is_refused_in_seconds():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address} .*; start one"):
            pf.simulate(
                pf.load("digits", partition=pf.IID(clients=4)),
                pf.FedAvg(),
                rounds=1,
                execution=pf.Execution(engine="ray", address=address, device="cpu"),
            )
        assert time.monotonic() - began < 10


def test_an_address_is_for_ray_alone():
    with pytest.raises(ConfigError, match=r"address is 'head:6379', but engine is 'loop'; set engine = 'ray'"):
        pf.Execution(engine="loop", address="head:6379")


@dataclass(frozen=True)
class Locked(pf.FedAvg):
    """FedAvg with something that no other process can have."""

    name: ClassVar[str] = "locked"
    held: Any = None


def test_a_part_that_cannot_be_sent_is_named_with_the_mend():
    ray = ray_module(None)
    assert unsendable(ray, "locked", Locked(), 1 << 20) == ""
    said = unsendable(ray, "locked", Locked(held=threading.Lock()), 1 << 20)
    assert said.startswith("locked cannot be sent to Ray's workers (TypeError: cannot pickle '_thread.lock' object)")
    assert "keep locks, open files and generators out of its fields" in said


def test_a_part_that_carries_data_is_named_with_the_mend():
    said = unsendable(ray_module(None), "locked", Locked(held=torch.zeros(1 << 19)), 1 << 20)
    assert said.startswith("locked takes 2 MB when it is sent to Ray's workers, as if it carried data")


def test_usage_statistics_are_off_and_the_environment_of_the_program_is_left_alone():
    before = {name for name in os.environ if name.startswith("RAY_AUTH")}
    ray_module(None)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert {name for name in os.environ if name.startswith("RAY_AUTH")} == before
