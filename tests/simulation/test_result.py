"""A finished run says in one line what it is."""

import pytest
import torch
from torch import nn

import privfl as pf


def test_a_run_is_shown_by_what_it_came_to_and_not_by_its_tensors():
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    run = pf.simulate(task, pf.FedAvg(), rounds=2)
    shown = repr(run)
    assert shown.startswith("Run(fedavg on digits: 2 rounds, 650 parameters, test_loss ")
    assert f"test_accuracy {run.summary['test_accuracy']:.4g}" in shown
    assert shown.endswith("no finite ε)")
    assert "tensor" not in shown
    private = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=pf.Privacy(training=pf.DPSGD(1.0)))
    epsilon = private.statement.cell("sample", "server").epsilon
    assert f"ε = {epsilon:.4g} (sample/server)" in repr(private)


def shared_and_frozen():
    """A body that stays as it is, and two layers that share their weights."""
    body, one, other = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10)
    with torch.no_grad():
        body.weight.copy_(torch.arange(640.0).view(10, 64).sin())
    body.requires_grad_(False)
    body.bias.zero_()
    other.weight = one.weight
    return nn.Sequential(nn.Flatten(), body, one, nn.ReLU(), other)


@pytest.mark.parametrize("model", ["logistic", "two-nn", shared_and_frozen], ids=["logistic", "two-nn", "own"])
def test_its_network_is_a_module_with_the_trained_parameters(model):
    task = pf.load("digits", partition=pf.IID(clients=4), model=model)
    run = pf.simulate(task, pf.FedAvg(), rounds=2)
    before, network = run.parameters.clone(), run.network()
    assert not network.training
    with torch.no_grad():
        outputs = network(task.test_inputs)
        accuracy = float((outputs.argmax(1) == task.test_targets).double().mean())
        for parameter in network.parameters():
            parameter.zero_()
    assert accuracy == pytest.approx(run.summary["test_accuracy"], abs=1e-9)
    assert torch.equal(run.parameters, before), "the module has parameters of its own"
    loss = nn.functional.cross_entropy(run.network()(task.test_inputs), task.test_targets)
    assert float(loss) == pytest.approx(run.summary["test_loss"], rel=1e-5)


def test_a_clients_own_model_is_a_network_as_well():
    task = pf.load("digits", partition=pf.IID(clients=3), model="logistic", local_tests=pf.LocalTests())
    run = pf.simulate(task, pf.Ditto(), rounds=1)
    own = torch.cat([value.flatten() for value in run.client_state[1].values()])[:650]
    assert torch.equal(torch.cat([one.detach().flatten() for one in run.network(own).parameters()]), own)
    with pytest.raises(pf.ConfigError, match=r"parameters have shape \(3,\); give 650 numbers in one row"):
        run.network(torch.zeros(3))
