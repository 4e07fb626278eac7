"""Settings that would make a claim that the run cannot earn are refused before any work; others carry their caveat."""

from dataclasses import fields, replace

import pytest
import torch

import privfl as pf
from privfl.engine.loop import DIRECT_FROM
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.models.flat_network import flatten
from privfl.privacy.loss import coupled
from privfl.simulation.caveats import SECRET_DRAW

CENTRAL = (pf.Clip(1.0), pf.GaussianNoise(1.0))


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=6), model="logistic")


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (
            pf.Privacy(update=CENTRAL, training=pf.DPSGD(target_epsilon=3.0)),
            "target_epsilon cannot be combined with a Poisson",
        ),
        (
            pf.Privacy(update=CENTRAL, budget=pf.Budget(3.0, unit="sample")),
            "a budget for samples cannot be combined with a Poisson cohort",
        ),
    ],
)
def test_what_would_publish_a_secret_draw_is_refused(task, privacy, message):
    with pytest.raises(ConfigError, match=message):
        pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy, cohort=pf.PoissonCohort(0.5))


def test_an_amplified_claim_for_clients_says_what_must_stay_secret(task):
    privacy = pf.Privacy(update=CENTRAL)
    run = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy, cohort=pf.PoissonCohort(0.5))
    assert SECRET_DRAW in run.statement.caveats
    plain = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy)
    assert SECRET_DRAW not in plain.statement.caveats
    cells = [each.statement.cell("client", "public").epsilon for each in (run, plain)]
    assert cells[0] < cells[1]


def test_correlated_noise_is_wider_the_more_often_a_client_may_come(task):
    """The claim is the same. Equal deviations of 650 values would differ by a fifth once in a million."""
    privacy = pf.Privacy(update=(pf.Clip(1.0), pf.BandedNoise(4.0)), noise_key=1)
    once, twice = (
        pf.simulate(task, pf.FedAvg("uniform"), training=NOTHING, rounds=4, privacy=privacy, cohort=pf.Rotation(period))
        for period in (4, 2)
    )
    mean_of_more = 2.0  # clients: half of them train in a round there, a quarter here
    assert 1.2 < mean_of_more * float(twice.parameters.std() / once.parameters.std()) < 2.0
    claims = [run.statement.cell("client", "public").epsilon for run in (once, twice)]
    assert abs(claims[0] - claims[1]) < 1e-6


def test_noise_on_the_sum_covers_a_client_that_counts_once_only(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"))
    with pytest.raises(ConfigError, match="noise_at = 'server' requires uniform weights"):
        pf.simulate(task, pf.FedSampling(300), rounds=1, privacy=privacy, cohort=pf.SizeWeightedCohort(3))


def test_fedsampling_applies_momentum_and_weight_decay_at_the_server(task):
    training = pf.LocalTraining(learning_rate=0.3, momentum=0.9, weight_decay=0.01)
    run = pf.simulate(task, pf.FedSampling(10**6), rounds=3, training=training)
    weight = torch.nn.Parameter(pf.simulate(task, pf.FedAvg(), rounds=1, training=NOTHING).parameters.clone())
    optimizer = torch.optim.SGD([weight], lr=0.3, momentum=0.9, weight_decay=0.01)
    size = task.inputs[0].numel()
    for _ in range(3):
        optimizer.zero_grad()
        rows = task.clients.rows
        logits = task.inputs[rows].flatten(1) @ weight[: 10 * size].view(10, size).T + weight[10 * size :]
        (torch.nn.functional.cross_entropy(logits, task.targets[rows], reduction="sum") / 10**6).backward()
        optimizer.step()
    torch.testing.assert_close(run.parameters, weight.detach(), rtol=1e-4, atol=1e-6)


NOTHING = pf.LocalTraining(learning_rate=1e-30, steps=1)


@coupled
def batch_mean(network, inputs, targets, *, present):
    logits = network(inputs)
    pull = (logits * present[:, None]).sum(0) / present.sum()
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none") + (logits - pull).square().mean(1)


def test_dp_sgd_refuses_a_task_whose_loss_couples_the_samples_of_a_batch(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))
    with pytest.raises(ConfigError, match="batch_mean couples the samples of a batch"):
        pf.simulate(replace(task, loss=batch_mean), pf.FedAvg(), rounds=1, privacy=privacy)


def test_a_large_model_trains_on_a_loss_that_couples_the_samples_of_a_batch():
    """So large that layers would write its gradients where they belong, which needs one term for each sample."""
    task = pf.load("digits", partition=pf.IID(clients=2), model="two-nn", model_options={"hidden": (256, 256)})
    task, training = replace(task, loss=batch_mean), pf.LocalTraining(learning_rate=0.1, batch_size=10_000)
    start = flatten(task.model(0))
    assert len(start) >= DIRECT_FROM
    run = pf.simulate(task, pf.FedAvg(), rounds=1, training=training, execution=pf.Execution(engine="loop", workers=1))
    expected = torch.zeros_like(start)
    for client in range(2):
        network, rows = task.model(0), task.clients[client]
        everybody = torch.ones(len(rows), dtype=torch.bool)
        batch_mean(network, task.inputs[rows], task.targets[rows], present=everybody).mean().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        expected += (start - 0.1 * gradient) * len(rows) / len(task.targets)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-6)


class Repeating(ClientIndex):
    """Says of every client that it holds one example many times."""

    def __getitem__(self, client):
        return super().__getitem__(client)[:1].repeat(20)


class OwnTask(pf.Task):
    """A task of one's own class."""


def test_a_task_that_could_say_something_else_each_time_is_refused(task):
    clients = Repeating(task.clients.rows, task.clients.offsets)
    values = {field.name: getattr(task, field.name) for field in fields(task) if field.init}
    for own, what in (
        (replace(task, clients=clients), "Task.clients is a Repeating"),
        (OwnTask(**values), "task is a OwnTask"),
    ):
        with pytest.raises(ConfigError, match=what):
            pf.simulate(own, pf.FedAvg("uniform"), rounds=1)
