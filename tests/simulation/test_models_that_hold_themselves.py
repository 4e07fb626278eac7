"""A model whose containers hold its own parameters or layers keeps its claim, and what it leaves in them costs it."""

import os
import sys
import types
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.models.module_state import ModuleState
from privfl.simulation.shared_state import SHARED_STATE, SharedState

X = np.random.default_rng(0).normal(size=(60, 5, 4)).astype(np.float32)
Y = (X[:, 0, 0] > 0).astype(np.int64)
UPDATE = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(4.0, at="client")))
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))


def ran(model, privacy, engine="loop"):
    return pf.simulate(
        pf.Task.from_arrays(X, Y, test=(X, Y), clients=np.arange(60) % 3, classes=2, model=model),
        pf.FedAvg("uniform"),
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.5, batch_size=5),
        privacy=privacy,
        execution=pf.Execution(engine=engine, workers=2),
    )


def claims(run):
    return {unit: run.statement.cell(unit, "public").epsilon for unit in ("sample", "client")}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, inputs):
        return self.out(torch.tanh(self.body(inputs[:, 0])))


class Recurrent(nn.Module):
    kind: ClassVar[type] = nn.LSTM

    def __init__(self):
        super().__init__()
        self.body, self.out = self.kind(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, inputs):
        return self.out(self.body(inputs)[0][:, -1])


class Gated(Recurrent):
    kind = nn.GRU


class Plain(Recurrent):
    kind = nn.RNN


class Listed(Base):
    """Holds itself, its layers and parameters in all kinds of containers."""

    def __init__(self):
        super().__init__()
        self.weights, self.layers = [self.body.weight, self.out.bias], {"body": self.body, "all": [self]}
        self.tanh = lambda inputs: torch.tanh(self.body(inputs[:, 0]))

    def forward(self, inputs):
        return self.out(self.tanh(inputs))


class WithOptimiser(Base):
    def __init__(self):
        super().__init__()
        self.optimiser = torch.optim.Adam(self.parameters())


def compiled():
    return torch.compile(Base(), backend="eager")


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own, of an LSTM under vmap
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("model", [Recurrent, Gated, Plain, Listed, WithOptimiser, compiled])
def test_a_model_that_holds_its_own_parameters_keeps_its_claim_in_every_engine(model, engine):
    assert claims(ran(model, UPDATE, engine)) == claims(ran(Base, UPDATE))
    if model not in (Gated, Plain):  # which PyTorch cannot run example by example
        assert claims(ran(model, DPSGD, engine)) == claims(ran(Base, DPSGD))
        assert claims(ran(model, DPSGD, engine))["sample"] < np.inf


class InList(Listed):
    """Leaves an activation among its weights."""

    def forward(self, inputs):
        held = self.layers["all"]
        shift = held[1] if len(held) > 1 else 0.0
        if self.training:
            held[1:] = [inputs.detach().mean()]
        return super().forward(inputs + shift)


class OnParameter(Base):
    """Leaves it on a parameter."""

    def forward(self, inputs):
        shift = getattr(self.body.weight, "kept", 0.0)
        if self.training:
            self.body.weight.kept = inputs.detach().mean()
        return super().forward(inputs + shift)


class InSlot(Base):
    """Leaves it in a slot."""

    __slots__ = ("kept",)

    def forward(self, inputs):
        shift = InSlot.kept.__get__(self) if hasattr(self, "kept") else 0.0
        if self.training:
            InSlot.kept.__set__(self, inputs.detach().mean())
        return super().forward(inputs + shift)


class Unregistered(Base):
    """Has a parameter in a list, where nobody loads anything into it, and adds to it."""

    def __init__(self):
        super().__init__()
        self.extra = {"shift": [nn.Parameter(torch.zeros(4))]}

    def forward(self, inputs):
        shift = self.extra["shift"][0]
        if self.training:
            shift.data = 0.9 * shift.detach() + inputs.detach().mean((0, 1))
        return super().forward(inputs + shift)


class View(Base):
    """Writes into a view of what was a parameter's memory."""

    def __init__(self):
        super().__init__()
        self.held = {"views": []}

    def forward(self, inputs):
        views = self.held["views"]
        if self.training:
            views[:] = [self.out.bias.data]
        return super().forward(inputs)


@pytest.mark.parametrize("model", [InList, OnParameter, InSlot, Unregistered, View])
def test_what_a_model_leaves_among_its_parameters_costs_the_claim(model):
    run = ran(model, UPDATE)
    assert set(claims(run).values()) == {np.inf}
    assert SHARED_STATE in " ".join(str(run.statement).split())


@pytest.mark.parametrize("moved", ["its own", "another one's"])
def test_the_parameters_of_another_network_count_by_their_values(moved):
    one, other = Base(), Base()
    one.peers = [other]
    task, phase = (
        types.SimpleNamespace(loss=lambda: None, model=None),
        types.SimpleNamespace(apart=False, forgets=True, mechanisms_forget=False),
    )
    before = SharedState(task, phase, pf.LocalTraining(), {}, [ModuleState(one), ModuleState(other)])
    with torch.no_grad():
        (one if moved == "its own" else other).body.weight.add_(1.0)
    assert before.changed() == ([] if moved == "its own" else ["the network that trains"])


PEERS: list[nn.Module] = []


class Peering(Base):
    """Knows the networks of all workers, by a list in which each stands."""

    def __init__(self):
        super().__init__()
        self.peers = PEERS
        PEERS.append(self)


def test_a_network_that_reaches_another_workers_parameters_claims_nothing():
    PEERS.clear()
    assert set(claims(ran(Peering, UPDATE)).values()) == {np.inf}


def test_the_folder_that_the_compiler_notes_is_no_state_and_any_other_value_is(monkeypatch):
    cache = "TORCHINDUCTOR_CACHE_DIR"
    import torch._inductor.runtime.cache_dir_utils as inductor

    from privfl.simulation.shared_state import _environment

    monkeypatch.delenv(cache, raising=False)
    before = _environment()
    monkeypatch.setitem(os.environ, cache, os.path.abspath(inductor.default_cache_dir()))
    assert _environment() == before
    monkeypatch.setitem(os.environ, cache, "0.25")
    assert _environment() != before
    assert inductor.__name__ in sys.modules
