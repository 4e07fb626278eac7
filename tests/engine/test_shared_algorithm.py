"""One copy of an algorithm serves a stack, and nothing of one client gets into what another one sends."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.shared_algorithm import NotStacked, check_fields, fields_of, for_each_client
from privfl.errors import ConfigError

CLIENTS = 6


@dataclass(frozen=True)
class CountsSteps(pf.FedAvg):
    """Divides its update by how many steps it took, which it counts in a field."""

    name: ClassVar[str] = "counts-steps"
    taken: list = field(default_factory=list)

    def begin(self, received, state, training):
        self.taken.clear()
        return super().begin(received, state, training)

    def step(self, local, received, batch, client, training):
        self.taken.append(1)
        super().step(local, received, batch, client, training)

    def finish(self, local, received, training):
        return {name: value / len(self.taken) for name, value in super().finish(local, received, training).items()}


class Mixed(torch.autograd.Function):
    """The identity, but of a stack the differences to its mean."""

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, back):
        return back

    @staticmethod
    def vmap(info, in_dims, values):
        return values - values.mean(in_dims[0], keepdim=True), in_dims[0]


@dataclass(frozen=True)
class MixesClients(pf.FedAvg):
    name: ClassVar[str] = "mixes-clients"

    def finish(self, local, received, training):
        return {name: Mixed.apply(value) for name, value in super().finish(local, received, training).items()}


def trained(algorithm, engine, privacy=None):
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(60, 4, generator=generator), torch.arange(60) % 3
    task = pf.Task.from_arrays(
        inputs, targets, partition=pf.IID(clients=CLIENTS), model=lambda: nn.Linear(4, 3), test=(inputs + 1, targets)
    )
    noisy = pf.Privacy(update=[pf.Clip(0.1), pf.GaussianNoise(1.0, at="server")], noise_key=3)
    return pf.simulate(
        task,
        algorithm,
        rounds=2,
        training=pf.LocalTraining(batch_size=4),
        privacy=privacy or noisy,
        execution=pf.Execution(engine=engine, device="cpu"),
    )


@pytest.mark.parametrize("algorithm", [CountsSteps(weighting="uniform"), MixesClients(weighting="uniform")])
def test_who_would_share_something_is_trained_alone_and_comes_to_the_loops_model(algorithm):
    alone, stacked = (trained(algorithm, engine) for engine in ("loop", "vectorised"))
    assert torch.allclose(alone.parameters, stacked.parameters, atol=1e-5)
    assert str(alone.statement) == str(stacked.statement)
    assert any("one by one" in one or "one after another" in one for one in stacked.warnings)


def test_without_a_claim_on_clients_a_field_may_be_one_for_all():
    run = trained(CountsSteps(weighting="uniform"), "vectorised", pf.Privacy())
    assert not any("one after another" in one for one in run.warnings)


def test_fields_are_compared_by_what_they_hold():
    algorithm = CountsSteps(weighting="uniform")
    before = fields_of(algorithm)
    check_fields(algorithm, before)
    algorithm.taken.append(1)
    with pytest.raises(NotStacked, match="counts-steps changes a field of its own, which all clients of a stack would"):
        check_fields(algorithm, before)


def test_a_guarded_call_is_the_same_call():
    local = {"value": torch.arange(6.0).view(3, 2)}
    for guarded in (True, False):
        work = for_each_client(lambda one: {"value": one["value"] * 2}, guarded=guarded)
        assert torch.equal(work(local)["value"], local["value"] * 2)


def test_a_guarded_call_refuses_what_sees_all_clients_and_what_it_keeps():
    local, kept = {"value": torch.ones(3, 2)}, []
    mixed = for_each_client(lambda one: {"value": Mixed.apply(one["value"])}, guarded=True)
    with pytest.raises(
        ConfigError, match="Mixed brings a vmap rule of its own, which would see more than one client of"
    ):
        mixed(local)

    def keeps(one):
        kept.append(one["value"] * 2)
        return {"value": one["value"] + kept[0]}

    keeping = for_each_client(keeps, guarded=True)
    assert torch.equal(keeping(local)["value"], torch.full((3, 2), 3.0))
    with pytest.raises(ConfigError, match="a tensor that stands for one client of a stack comes from another call"):
        keeping(local)
