"""What clients receive is one tensor for all of them, so nobody's step changes it for the next client or the server."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.broadcast import check_unchanged, unshared, versions_of

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
NOISY = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1e-4, at="client")))


def ran(algorithm, engine, *, changed=False, privacy=NOISY):
    inputs = X * np.where(np.arange(60) < 20, -30 if changed else 1, 1)[:, None].astype(np.float32)
    task = pf.Task.from_arrays(inputs, Y, test=(X, Y), clients=np.arange(60) // 20, classes=2, model="logistic")
    return pf.simulate(
        task,
        algorithm,
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.5, batch_size=5),
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine=engine, workers=1),
    )


class Anchored(pf.FedAvg):
    """Moves an anchor that it took from what it received, without a copy."""

    name: ClassVar[str] = "anchored"

    def begin(self, received, client_state, training):
        return {"parameters": received["parameters"], "anchor": received["parameters"].view(-1)}

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["anchor"].mul_(0.9).add_(local["parameters"], alpha=0.1)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_what_a_client_begins_with_is_its_own(engine):
    one, other = (ran(Anchored("uniform"), engine, changed=changed).transcript[0] for changed in (False, True))
    for client in (1, 2):  # whose data are the same; noise differs from run to run
        moved = one.training.uploads[client]["update"] - other.training.uploads[client]["update"]
        assert float(moved.norm()) < 0.01
    assert float((one.released - other.released).norm()) < 2 / 3 + 0.01


def own_gradient(local, batch, client):
    return client.gradient(client.loss, local["parameters"], batch)


class Accumulating(pf.FedAvg):
    """Never clears the gradient that autograd adds up on what it received."""

    name: ClassVar[str] = "accumulating"

    def step(self, local, received, batch, client, training):
        given = received["parameters"].requires_grad_()
        gradient = own_gradient(local, batch, client)
        with torch.enable_grad():
            (given * gradient).sum().backward()
        local["parameters"].sub_(given.grad, alpha=training.learning_rate)


class Adding(pf.FedAvg):
    """Computes what it calls a reference once, and adds it to what it received."""

    name: ClassVar[str] = "adding"

    def step(self, local, received, batch, client, training):
        gradient = own_gradient(local, batch, client)
        reference = received.setdefault("reference", gradient.clone())
        local["parameters"].sub_(gradient + reference, alpha=training.learning_rate)


class Writing(pf.FedAvg):
    """Writes the same onto a tensor that it received."""

    name: ClassVar[str] = "writing"

    def step(self, local, received, batch, client, training):
        gradient, given = own_gradient(local, batch, client), received["parameters"]
        if not hasattr(given, "reference"):
            given.reference = gradient.clone()
        local["parameters"].sub_(gradient + given.reference, alpha=training.learning_rate)


class Beginning(pf.FedAvg):
    """Adds to what it received before the first step, when nothing is stacked yet."""

    name: ClassVar[str] = "beginning"

    def begin(self, received, client_state, training):
        received["place"] = received.get("place", torch.zeros(())) + 1
        shift = torch.zeros_like(received["parameters"]) + received["place"]
        return {"parameters": received["parameters"].clone(), "shift": shift}

    def finish(self, local, received, training):
        return {"update": local["shift"]}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("algorithm", [Accumulating, Adding, Writing])
def test_what_a_client_adds_to_what_it_received_is_nobody_elses(algorithm, engine):
    one, other = (ran(algorithm("uniform"), engine, changed=changed).transcript[0] for changed in (False, True))
    assert float((one.training.uploads[0]["update"] - other.training.uploads[0]["update"]).norm()) > 0.1
    for client in (1, 2):
        moved = one.training.uploads[client]["update"] - other.training.uploads[client]["update"]
        assert float(moved.norm()) < 0.01


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_each_client_begins_with_what_was_sent(engine):
    seen = ran(Beginning("uniform"), engine, privacy=None).transcript[0].training.uploads
    assert [float(seen[client]["update"].mean()) for client in range(3)] == [1.0, 1.0, 1.0]


@dataclass(frozen=True)
class Keeping(pf.FedAvg):
    """Leaves a gradient that is to stay with the client where the training that is sent would find it."""

    name: ClassVar[str] = "keeping"
    local_only: ClassVar[bool] = True

    def step(self, local, received, batch, client, training):
        gradient = own_gradient(local, batch, client)
        own = client.local_only_gradient(client.loss, local["parameters"], batch)
        anchor = received.setdefault("anchor", own.clone())
        local["parameters"].sub_(gradient + anchor, alpha=training.learning_rate)


def undecided():
    layer = nn.Linear(5, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_what_stays_with_a_client_is_not_in_what_the_blind_training_received(engine):
    x, y = np.full((60, 5), 1000.0, dtype=np.float32), np.zeros(60, dtype=np.int64)
    task = pf.Task.from_arrays(x, y, clients=np.arange(60) // 20, classes=2, test=(X, Y), model=undecided)
    dpsgd = pf.DPSGD(noise_multiplier=1.0, max_grad_norm=0.01, sample_rate=1.0)
    training = pf.LocalTraining(learning_rate=1.0, batch_size=20, steps=1)
    settings = {"training": training, "execution": pf.Execution(engine=engine, workers=1)}
    run = pf.simulate(task, Keeping("uniform"), rounds=1, privacy=pf.Privacy(training=dpsgd), **settings)
    assert float(run.parameters.norm()) < 1.0


class Overwriting(pf.FedAvg):
    """Changes what it received."""

    name: ClassVar[str] = "overwriting"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        received["parameters"].add_(1.0)
        return upload


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("privacy", [None, NOISY])
def test_a_step_that_changes_what_it_received_is_refused(engine, privacy):
    with pytest.raises(pf.ConfigError, match=r"overwriting changed 'parameters' of what clients receive.*\.clone\(\)"):
        ran(Overwriting("uniform"), engine, privacy=privacy)


class Unseen(pf.FedAvg):
    """Changes it where PyTorch does not count."""

    name: ClassVar[str] = "unseen"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        received["parameters"].data.add_(0.1)
        return upload


def test_where_pytorch_does_not_see_it_nothing_is_claimed():
    run = ran(Unseen("uniform"), "loop")
    assert set(run.statement.cell(unit, "public").epsilon for unit in ("sample", "client")) == {np.inf}
    assert "what clients receive ('parameters') changed" in " ".join(str(run.statement).split())


def test_what_lies_elsewhere_is_not_copied():
    received = {"parameters": torch.zeros(4)}
    local = {"parameters": received["parameters"][:2], "own": torch.ones(2), "count": 3}
    found = unshared(local, received)
    assert found["own"] is local["own"]
    assert found["count"] == 3
    found["parameters"].add_(1)
    assert torch.equal(received["parameters"], torch.zeros(4))
    versions = versions_of(received)
    check_unchanged(pf.FedAvg(), received, versions)
    with pytest.raises(pf.ConfigError, match="fedavg changed 'parameters'"):
        check_unchanged(pf.FedAvg(), {}, versions)
