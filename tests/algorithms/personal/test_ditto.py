"""Ditto: its server is FedAvg's, and a client's own model minimises its loss near the received model."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.models import Network
from tests.algorithms.federation import digits_task, initial
from tests.algorithms.personal.personal_twins import drawn, pulled, quadratics, slope

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def sgd(start, slopes, rate, training=TRAINING):
    """torch.optim.SGD from ``start`` along the slopes of as many functions of the point."""
    point = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([point], lr=rate, momentum=training.momentum, weight_decay=training.weight_decay)
    for slope_at in slopes:
        point.grad = slope_at(point.detach().clone())
        optimizer.step()
    return point.detach()


def test_two_rounds_follow_torch_sgd_on_the_penalised_loss(task):
    """The federated model's learning rate decays, that of the clients' own does not."""
    training = replace(TRAINING, learning_rate_decay=0.5)
    run = pf.simulate(task, pf.Ditto(proximal_weight=0.7, personal_learning_rate=0.1), rounds=2, training=training)
    server = initial(task)
    own = dict.fromkeys(range(3), server)
    for number in range(2):
        trained = []
        for client in range(3):
            rows = list(drawn(task, client, 5, 2, round=number))
            trained.append(sgd(server, [lambda w, r=r: slope(task, w, r) for r in rows], 0.2 / (number + 1)))
            near = [lambda v, r=r: slope(task, v, r) + 0.7 * (v - server) for r in rows]  # noqa: B023
            own[client] = sgd(own[client], near, 0.1)
        server = sum(size / 40 * one for size, one in zip(SIZES, trained, strict=True))
    torch.testing.assert_close(run.parameters, server, rtol=0, atol=1e-12)
    for client, expected in own.items():
        torch.testing.assert_close(run.client_state[client]["personal"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weight", [0.0, 1.0, 1e9])
def test_the_server_follows_fedavg_bit_for_bit_even_if_a_personal_model_diverges(task, weight):
    settings = {"rounds": 3, "training": TRAINING, "cohort": pf.FixedCohort(2), "seed": 4}
    ours, theirs = (pf.simulate(task, one, **settings) for one in (pf.Ditto(proximal_weight=weight), pf.FedAvg()))
    assert torch.equal(ours.parameters, theirs.parameters)
    largest = max(
        float(client_state["personal"].abs().max()) for client_state in ours.client_state.values() if client_state
    )
    assert (largest > 1e9) == (weight == 1e9)


def test_drop_out_moves_the_servers_path_because_both_models_draw_their_masks_from_one_stream(task):
    def model(seed):
        torch.manual_seed(seed)
        return Network(nn.Sequential(nn.Linear(64, 6), nn.Dropout(0.5)), nn.Linear(6, 10)).double()

    dropping = replace(task, model=model)
    runs = [pf.simulate(dropping, one, rounds=1, training=TRAINING) for one in (pf.Ditto(), pf.FedAvg())]
    assert not torch.equal(runs[0].parameters, runs[1].parameters)


def test_without_a_pull_it_is_training_alone(task):
    settings = {"rounds": 4, "training": TRAINING, "cohort": pf.FixedCohort(2), "seed": 1}
    ours, theirs = (pf.simulate(task, one, **settings) for one in (pf.Ditto(proximal_weight=0.0), pf.Local()))
    trained = [client for client, client_state in ours.client_state.items() if client_state]
    assert len(trained) == 3
    for client in trained:
        assert torch.equal(ours.client_state[client]["personal"], theirs.client_state[client]["parameters"])


def test_a_huge_pull_sets_the_own_model_to_the_received_one(task):
    """η·λ = 1 with a small η: one step ends at w^t − η·g."""
    algorithm = pf.Ditto(proximal_weight=1e9, personal_learning_rate=1e-9)
    training = replace(TRAINING, momentum=0.0, weight_decay=0.0)
    before = pf.simulate(task, algorithm, rounds=1, training=training).parameters
    run = pf.simulate(task, algorithm, rounds=2, training=training)
    for client_state in run.client_state.values():
        torch.testing.assert_close(client_state["personal"], before, rtol=0, atol=1e-7)
    assert float((run.parameters - before).abs().max()) > 1e-3


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_on_quadratics_the_own_models_end_at_the_closed_form(weight):
    task, curvatures, optima, optimum = quadratics()
    training = pf.LocalTraining(learning_rate=0.15)
    run = pf.simulate(task, pf.Ditto(proximal_weight=weight), rounds=90, training=training, evaluate_every=90)
    torch.testing.assert_close(run.parameters, optimum, rtol=0, atol=1e-7)
    for client in range(4):
        expected = pulled(curvatures[client], optima[client], optimum, weight)
        torch.testing.assert_close(run.client_state[client]["personal"], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proximal_weight": -1.0}, "ditto's proximal_weight is -1.0"),
        ({"proximal_weight": float("nan")}, "ditto's proximal_weight is nan"),
        ({"personal_learning_rate": 0.0}, "ditto's personal_learning_rate is 0.0"),
        ({"weighting": "sise"}, "ditto's weighting is 'sise'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.Ditto(**settings)
