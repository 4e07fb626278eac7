"""FedPer against a twin that trains torch modules by name, and its limits: FedAvg and training alone."""

from dataclasses import dataclass

import pytest
import torch

import privfl as pf
from privfl.models.flat_network import flatten
from tests.algorithms.personal.test_partial_sharing import (
    EVERYTHING,
    HEAD,
    SHARES,
    TOP_TWO,
    assert_as_by_hand,
    by_hand,
    deep_task,
    simulate,
)


@pytest.fixture(scope="module")
def task():
    return deep_task()


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(("layers", "private"), [(None, HEAD), (1, HEAD), (2, TOP_TWO)])
def test_two_rounds_are_those_of_the_twin(task, layers, private, engine):
    run = simulate(task, pf.FedPer(personal_layers=layers), execution=pf.Execution(engine=engine))
    assert_as_by_hand(task, run, by_hand(task, private, [(EVERYTHING, 2)]))


def test_bases_may_be_averaged_with_equal_weights(task):
    run = simulate(task, pf.FedPer("uniform"))
    assert_as_by_hand(task, run, by_hand(task, HEAD, [(EVERYTHING, 2)], weights=[1 / 3] * 3))


def test_a_server_step_scales_the_mean_of_the_bases(task):
    runs = [simulate(task, pf.FedPer(server_learning_rate=rate), rounds=1) for rate in (1.0, 0.25)]
    begin = flatten(task.model(0))
    moved = [run.parameters - begin for run in runs]
    torch.testing.assert_close(moved[1], moved[0] / 4, rtol=0, atol=1e-14)


@dataclass(frozen=True)
class Everything(pf.FedPer):
    """No parameter is private."""

    def part(self):
        return torch.ones_like(self.context.head)


@dataclass(frozen=True)
class Nothing(pf.FedPer):
    """No parameter is shared."""

    def part(self):
        return torch.zeros_like(self.context.head)


@pytest.mark.parametrize("weighting", ["size", "uniform", "scheme-2"])
def test_without_private_parameters_it_is_fedavg(task, weighting):
    cohort = pf.FixedCohort(2)
    runs = [simulate(task, kind(weighting), rounds=3, cohort=cohort) for kind in (Everything, pf.FedAvg)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_without_shared_parameters_every_client_trains_alone(task):
    runs = [simulate(task, algorithm, rounds=3) for algorithm in (Nothing(), pf.Local())]
    for client in range(len(SHARES)):
        assert torch.equal(runs[0].client_state[client]["parameters"], runs[1].client_state[client]["parameters"])
    assert runs[0].metrics[-1]["test_accuracy"] == runs[1].metrics[-1]["test_accuracy"]
    assert torch.equal(runs[0].parameters, flatten(task.model(0)))
