"""What a client's training leaves in its process is never sent: not in that round, and not in a later one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import pytest
import torch

import privfl as pf
from privfl.deploy import local
from privfl.deploy.local import LEFT_BEHIND
from privfl.deploy.messages import Message, digest
from privfl.deploy.transport import Loopback
from tests.deploy.rehearsal import LOOP, Rehearsal, experiment
from tests.deploy.test_client import link_to, train

DPSGD = {"training": {"noise_multiplier": 4.0, "sample_rate": 0.1}, "target_delta": 1e-4}
AT_CLIENTS = {"update": [{"name": "clip", "max_norm": 1.0}, {"name": "gaussian-noise", "noise_multiplier": 4.0}]}
AT_CLIENTS["update"][1]["at"] = "client"
KEPT: dict[str, Any] = {}


@dataclass(frozen=True)
class Personal(pf.FedAvg):
    """Looks at gradients that stay with the client, and leaves them there."""

    name: ClassVar[str] = "personal"
    local_only: ClassVar[bool] = True
    cache: ClassVar[dict[str, Any]] = {}

    def step(self, local, received, batch, client, training):
        bare = client.local_only_gradient(client.loss, local["parameters"], batch).clone()
        if bool(bare.any()):
            self.remember(bare)
        gradient = client.gradient(client.loss, local["parameters"], batch)
        local["parameters"].add_(gradient, alpha=-training.learning_rate)

    def remember(self, bare):
        """Nothing of it."""

    def finish(self, local, received, training):
        update = local["parameters"] - received["parameters"]
        return {"update": update + 1000 * self.cache.get("bare", 0)}


@dataclass(frozen=True)
class Once(Personal):
    """Keeps its first gradient in a class attribute, and adds that to every upload."""

    name: ClassVar[str] = "once"

    def remember(self, bare):
        self.cache.setdefault("bare", bare)


@dataclass(frozen=True)
class Failing(Personal):
    """The same, but its first step fails after that."""

    name: ClassVar[str] = "failing"

    def remember(self, bare):
        if "bare" not in self.cache:
            self.cache["bare"] = bare
            raise ValueError("too large a gradient")


@dataclass(frozen=True)
class InGlobal(pf.FedAvg):
    """Adds what it sent before."""

    name: ClassVar[str] = "in-global"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        return {"update": upload["update"] + KEPT.setdefault("sent", upload["update"].clone())}


@dataclass(frozen=True)
class Following(pf.Mechanism):
    """A bound that follows the model, which clients do not know as the server does."""

    kind: ClassVar[str] = "bound"
    times: float = 0.5

    def norm_bound(self, server):
        return self.times * float(server["parameters"].norm()) if server else 1.0


@pytest.fixture(autouse=True)
def _another_process(monkeypatch):
    """What these tests leave behind does not outlive them."""
    monkeypatch.setattr(local, "_left", [])
    monkeypatch.setattr(Personal, "cache", {})
    KEPT.clear()


def rehearsed(root, algorithm, privacy=DPSGD):
    named = {"name": f"{algorithm.__module__}:{algorithm.__name__}", "weighting": "uniform"}
    settings = {"learning_rate": 0.1, "epochs": 1, "batch_size": 64}
    return Rehearsal(root / algorithm.name, experiment(algorithm=named, privacy=privacy, training=settings, rounds=3))


def answers(rehearsal, rounds, bound=float("inf"), client=None):
    link = link_to(rehearsal, client or rehearsal.client(1))
    found = (link.ask({1: train(round=number, bound=bound)})[1] for number in rounds)
    return ["sent" if isinstance(one, Message) else one for one in found]


@pytest.mark.parametrize(
    ("algorithm", "privacy", "bound"),
    [(Once, DPSGD, float("inf")), (InGlobal, AT_CLIENTS, 1.0)],
    ids=["dpsgd", "noise"],
)
def test_what_a_round_leaves_in_the_process_is_sent_neither_then_nor_later(algorithm, privacy, bound, tmp_path):
    rehearsal = rehearsed(tmp_path, algorithm, privacy)
    assert answers(rehearsal, (0, 1), bound) == [LEFT_BEHIND] * 2
    assert f"algorithm tests.deploy.test_local:{algorithm.__name__}" in rehearsal.said[0]
    assert "changed while this client trained" in rehearsal.said[0]
    assert rehearsal.said[1] == rehearsal.said[0]  # though round 1 itself left nothing


def test_what_another_run_left_in_the_process_is_not_sent_either(tmp_path):
    rehearsal = rehearsed(tmp_path, Once)
    client = rehearsal.client(1)
    assert answers(rehearsal, (0,), client=client) == [LEFT_BEHIND]
    other = link_to(rehearsal, client, run=bytes(31) + b"\1")
    assert other.ask({1: train()})[1] == LEFT_BEHIND


def test_a_step_that_fails_once_it_has_left_something_sends_nothing_later(tmp_path):
    found = answers(rehearsed(tmp_path, Failing), (0, 1))
    assert found == ["refused, for a reason in its own log", LEFT_BEHIND]


def test_who_leaves_nothing_is_answered_and_so_are_privfls_own_parts_wherever_somebody_left_something(tmp_path):
    assert answers(rehearsed(tmp_path, Personal), (0, 1)) == ["sent"] * 2
    local._left.append("the algorithm of another run")
    shipped = Rehearsal(
        tmp_path / "shipped", experiment(privacy=DPSGD, algorithm={"name": "fedavg", "weighting": "uniform"})
    )
    assert answers(shipped, (0,)) == ["sent"]


def test_a_client_that_refuses_because_of_that_is_dropped_and_nothing_is_claimed_any_more(tmp_path):
    plain = experiment(privacy=DPSGD, algorithm={"name": "fedavg", "weighting": "uniform"}, rounds=1)
    rehearsal = Rehearsal(tmp_path / "federation", plain)
    refusing = rehearsal.client(2)

    def refuses(request):
        if b'"train"' not in request:
            return refusing.answer(request)
        told = {"kind": "refused", "reason": LEFT_BEHIND, "from": 2, "request": digest(request)}
        return Message(told).sealed(refusing.key)

    found = rehearsal.run(Loopback({**rehearsal.clients(), 2: refuses}))
    assert found.summary["dropped"] == {LEFT_BEHIND: 1}
    cell = found.statement.cell("sample", "server")
    assert cell.epsilon == torch.inf
    assert "what the code at client 2 reaches changed while clients trained" in " ".join(str(found.statement).split())


@pytest.mark.parametrize("times", [0.01, 3.0], ids=["shrinks", "grows"])
def test_clients_clip_to_the_bound_of_ones_own_that_the_server_has_come_to(times, tmp_path):
    bound = {"name": "tests.deploy.test_local:Following", "times": times}
    noise = {"name": "gaussian-noise", "noise_multiplier": 1.0}
    privacy = {"noise_key": 11, "update": [bound, noise]}
    asked = experiment(privacy=privacy, algorithm={"name": "fedavg", "weighting": "uniform"}, rounds=2)
    expected = replace(asked, execution=LOOP).run()
    rehearsal, turn = Rehearsal(tmp_path / "federation", asked), Lock()

    def in_turn(answer, request):
        """Clients have processes of their own; here one that builds its model would draw beside one that trains."""
        with turn:
            return answer(request)

    clients = {client: partial(in_turn, answer) for client, answer in rehearsal.clients().items()}
    assert torch.equal(rehearsal.run(Loopback(clients)).parameters, expected.parameters)
