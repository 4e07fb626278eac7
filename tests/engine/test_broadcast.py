"""What clients receive is one tensor for all of them, so nobody's step changes it for the next client or the server."""

from typing import ClassVar

import numpy as np
import pytest
import torch

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
