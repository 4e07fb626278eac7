"""What stands in for a tensor decides nothing that a claim rests on."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.plain_tensors import check_plain, check_untouched, given_plain, plain, plain_parts
from tests.lying_tensor import Lying

LONG = 1000.0
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))
ENGINES = ("loop", "vectorised")


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=4), model="logistic")


def ran(task, algorithm, privacy, engine="loop"):
    return pf.simulate(
        task, algorithm, privacy=privacy, rounds=1, seed=1, execution=pf.Execution(engine=engine, workers=1)
    )


def test_plain_tensors_stay_what_they_are():
    for tensor in (torch.ones(2), nn.Parameter(torch.ones(2))):
        assert plain(tensor) is check_plain(tensor, "it") is given_plain(tensor) is tensor
    assert given_plain({"a": (one := torch.ones(1)), "b": 2}) == {"a": one, "b": 2}
    assert given_plain("text") == plain_parts("text") == "text"


def test_a_kind_of_its_own_is_none():
    lying = torch.ones(2).as_subclass(Lying)
    assert plain(lying) is plain("text") is None
    assert plain_parts({"update": lying})["update"] is lying
    for given in (lying, {"anchor": lying}):
        with pytest.raises(ConfigError, match="passes to the door is a Lying, whose own code would decide"):
            given_plain(given)


def test_what_is_written_on_a_tensor_is_left_behind():
    written = torch.ones(2)
    written.numpy = lambda: None
    assert plain(written) is not written
    assert not vars(plain(written))
    assert plain(written).data_ptr() == written.data_ptr()
    with pytest.raises(ConfigError, match=r"Task.inputs has attributes of its own \(numpy\)"):
        check_untouched(written, "Task.inputs")


class Sending(pf.FedAvg):
    """Sends a long update of that kind."""

    name: ClassVar[str] = "sending"

    def finish(self, local, received, training):
        return {"update": (LONG * super().finish(local, received, training)["update"]).as_subclass(Lying)}


class Writing(pf.FedAvg):
    """Sends a long update whose methods say that it is short."""

    name: ClassVar[str] = "writing"

    def finish(self, local, received, training):
        update = LONG * super().finish(local, received, training)["update"]
        for method in ("sum", "numpy", "norm", "double", "contiguous", "clone"):
            setattr(update, method, lambda *_: torch.zeros(update.shape))
        return {"update": update}


@pytest.mark.parametrize("at", ["client", "server"])
def test_an_upload_is_clipped_whatever_it_says_of_itself(task, at):
    privacy = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1e-3, at=at)))
    honest = ran(task, pf.FedAvg("uniform"), privacy).parameters
    sending, writing = (ran(task, kind("uniform"), privacy) for kind in (Sending, Writing))
    assert "4 sent 'update' as Lying" in " ".join(sending.warnings)
    for run in (sending, writing):
        assert float((run.parameters - honest).norm()) < 2.0


class ByParameters(pf.FedAvg):
    """Asks for gradients at parameters of that kind."""

    name: ClassVar[str] = "by-parameters"

    def step(self, local, received, batch, client, training):
        lying = {**local, "parameters": local["parameters"].as_subclass(Lying)}
        super().step(lying, received, batch, client, training)


class ByBroadcast(pf.FedAvg):
    """Sends clients parameters of that kind."""

    name: ClassVar[str] = "by-broadcast"

    def broadcast(self, server):
        return {"parameters": server["parameters"].as_subclass(Lying)}


class ByBeginning(pf.FedAvg):
    """Begins with parameters of that kind."""

    name: ClassVar[str] = "by-beginning"

    def begin(self, received, client_state, training):
        return {"parameters": received["parameters"].clone().as_subclass(Lying)}


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_a_kind_of_its_own_passes_into_the_door(task, engine):
    for algorithm, what in (
        (ByParameters, "what a step passes to the door"),
        (ByBroadcast, "what by-broadcast (broadcasts|begins with)"),
        (ByBeginning, "what by-beginning begins with"),
    ):
        with pytest.raises(ConfigError, match=f"{what} is a Lying"):
            ran(task, algorithm("uniform"), DPSGD, engine)


@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_a_task_of_a_kind_of_its_own_is_refused_before_any_work(task, name):
    own = replace(task, **{name: getattr(task, name).clone().as_subclass(Lying)})
    with pytest.raises(ConfigError, match=f"Task.{name} is a Lying"):
        ran(own, pf.FedAvg("uniform"), DPSGD)


class Buffered(nn.Module):
    """Multiplies by a constant of that kind."""

    def __init__(self):
        super().__init__()
        self.layer, self.ones = nn.Linear(64, 10), torch.ones(10).as_subclass(Lying)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1)) + self.ones


def test_under_dp_sgd_no_code_of_such_a_kind_is_handed_rows():
    own = pf.load("digits", partition=pf.IID(clients=4), model=Buffered)
    with pytest.raises(ConfigError, match="Lying is a kind of tensor of one's own"):
        ran(own, pf.FedAvg("uniform"), DPSGD)
