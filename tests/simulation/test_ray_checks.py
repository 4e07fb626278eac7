"""A worker is refused that would compute something else than the driver's claims are about."""

import importlib
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.simulation.ray_checks import check_same_kind, check_same_run, refuse
from privfl.simulation.ray_worker import Built, computes
from tests.simulation.test_ray_worker import plan_of

MODULE = """
from dataclasses import dataclass
from typing import ClassVar

import privfl as pf

SCALE = 1.0

def scaled(value):
    return value * SCALE

@dataclass(frozen=True)
class Scaled(pf.FedAvg):
    name: ClassVar[str] = "scaled"

    def finish(self, local, received, training):
        return scaled(super().finish(local, received, training))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of one's own, and the folder it lies in."""
    (tmp_path / "scaled_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("scaled_module")
    del sys.modules["scaled_module"]


def built(algorithm, privacy=pf.Privacy()):  # noqa: B008 - nobody writes into it
    plan = plan_of(algorithm, privacy)
    return Built.of(plan.task, replace(plan.algorithm), plan.training, plan.channel.usual)


def test_the_same_run_is_the_same_each_time_it_is_built(module):
    check_same_run("it", built(module.Scaled()), built(module.Scaled()))
    check_same_kind("it", computes())


def test_a_global_of_ones_own_module_that_has_another_value_there_is_refused(module, monkeypatch):
    there = built(module.Scaled())
    monkeypatch.setattr(module, "SCALE", 4.0)
    with pytest.raises(ConfigError, match="it has not the algorithm of this process: a module of one's own has anot"):
        check_same_run("it", there, built(module.Scaled()))


def test_a_file_that_was_edited_since_this_process_imported_it_is_refused(module, tmp_path):
    here = built(module.Scaled())
    (tmp_path / "scaled_module.py").write_text(MODULE.replace("value * SCALE", "value + SCALE  "), encoding="utf-8")
    with pytest.raises(ConfigError, match="not the algorithm"):
        check_same_run("it", built(importlib.reload(module).Scaled()), here)


@pytest.mark.parametrize("what", ["model", "loss", "training", "privacy mechanisms"])
def test_every_part_that_clients_execute_is_compared(what):
    here = built(pf.FedAvg())
    with pytest.raises(ConfigError, match=f"not the {what} of"):
        check_same_run("it", replace(here, code={**here.code, what: "0" * 64}), here)


def test_what_is_frozen_in_a_model_must_be_the_same_there():
    weights, plan = [1.0], plan_of(pf.FedAvg(), pf.Privacy())

    def build():
        network = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2))
        network[0].weight.fill_(weights[0])
        return network

    def found():
        task = pf.Task.from_arrays(torch.ones(8, 3), [0, 1] * 4, clients=[0] * 4 + [1] * 4, model=build)
        return Built.of(task, pf.FedAvg(), plan.training, plan.channel.usual)

    there = found()
    check_same_run("it", there, found())
    weights[0] = 2.0
    with pytest.raises(ConfigError, match="other data than this process: what is frozen in the model is"):
        check_same_run("it", there, found())


def test_another_kind_of_processor_and_another_version_are_refused():
    for what in ("kind of processor", "numpy", "privfl's code"):
        with pytest.raises(ConfigError, match=f"it has another {what} than this process \\(other, not "):
            check_same_kind("it", {**computes(), what: "other"})


@dataclass(frozen=True)
class ReadsByString(pf.FedAvg):
    name: ClassVar[str] = "reads by string"

    def finish(self, local, received, training):
        return globals()["unheard of"](super().finish(local, received, training))


def test_what_nobody_can_look_into_is_refused_before_any_work():
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"the algorithm of this run reaches builtins\.globals, whose content cannot"):
        refuse(plan_of(ReadsByString(), pf.Privacy()))
