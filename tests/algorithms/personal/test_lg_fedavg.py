"""LG-FedAvg against a twin that trains torch modules by name, and its limits: FedAvg and training alone."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.models.flat_network import flatten
from tests.algorithms.personal.test_partial_sharing import (
    EVERYTHING,
    assert_as_by_hand,
    by_hand,
    deep,
    deep_task,
    simulate,
)

ALIKE = [1 / 3] * 3
LOWER_TWO = ("body.",)
LOWEST = ("body.0.",)


@pytest.fixture(scope="module")
def task():
    return deep_task()


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(("layers", "private"), [(None, LOWER_TWO), (1, LOWER_TWO), (2, LOWEST)])
def test_two_rounds_are_those_of_the_twin_with_equal_weights(task, layers, private, engine):
    run = simulate(task, pf.LGFedAvg("uniform", shared_layers=layers), execution=pf.Execution(engine=engine))
    assert_as_by_hand(task, run, by_hand(task, private, [(EVERYTHING, 2)], weights=ALIKE))


def test_it_shares_what_fedper_keeps(task):
    setting = task.context(2, 0)
    for layers in (None, 1, 2):
        top, base = pf.LGFedAvg(shared_layers=layers).bind(setting), pf.FedPer(personal_layers=layers).bind(setting)
        assert torch.equal(top.shared, ~base.shared)


@dataclass(frozen=True)
class Everything(pf.LGFedAvg):
    """No parameter is private."""

    def part(self):
        return torch.ones_like(self.context.head)


@dataclass(frozen=True)
class Nothing(pf.LGFedAvg):
    """No parameter is shared."""

    def part(self):
        return torch.zeros_like(self.context.head)


def test_without_private_parameters_it_is_fedavg_with_uniform_weights(task):
    runs = [
        simulate(task, one, rounds=3, cohort=pf.FixedCohort(2)) for one in (Everything("uniform"), pf.FedAvg("uniform"))
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_without_shared_parameters_every_client_trains_alone(task):
    runs = [simulate(task, one, rounds=3) for one in (Nothing(), pf.Local())]
    for client in range(3):
        assert torch.equal(runs[0].client_state[client]["parameters"], runs[1].client_state[client]["parameters"])


def test_all_clients_may_start_from_a_model_that_fedavg_trained(task):
    trained = simulate(task, pf.FedAvg()).parameters

    def warm(seed):
        network = deep(seed)
        nn.utils.vector_to_parameters(trained.clone(), network.parameters())
        return network

    started = replace(task, model=warm)
    still = pf.LocalTraining(learning_rate=1e-300)  # nobody moves, so what is kept is what clients began with
    run = simulate(started, pf.LGFedAvg(), training=still)
    for client in range(3):
        assert torch.equal(run.client_state[client]["parameters"], trained)
    assert not torch.equal(flatten(deep(0)), trained)
