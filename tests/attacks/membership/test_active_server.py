"""A server that ascends the candidates' losses: what it sends, what stays honest, and what it learns."""

import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.membership.active_server import gradient_ascent_server
from attacks.membership.update_attacks import LossDrop
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch

CLIENTS = [part(0, 40), part(40, 80), part(80, 120)]
ASKED = game(CLIENTS[0], part(240, 420))
TRAINING = {"rounds": 2, "epochs": 4, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def seen():
    return watch(
        task_of(CLIENTS), algorithm=gradient_ascent_server(pf.FedAvg(), ASKED.candidates, step=2.0), **TRAINING
    )


def loss(seen, parameters) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(seen.network(parameters)(ASKED.candidates.inputs), ASKED.candidates.targets))


def test_the_broadcast_is_steps_up_the_normalised_gradient_and_updates_reach_the_honest_model(seen):
    honest = seen[0].released
    sent = seen[1].broadcast["parameters"]
    network = seen.network(honest)
    total = F.cross_entropy(network(ASKED.candidates.inputs), ASKED.candidates.targets, reduction="sum")
    slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, list(network.parameters()))])
    assert torch.allclose(sent, honest + 2.0 * slope / slope.norm(), atol=1e-5)
    assert loss(seen, sent) > loss(seen, honest) + 0.1
    weights = dict(zip(seen[1].training.asked, seen[1].training.weights, strict=True))
    step = sum(weights[k] * upload["update"] for k, upload in seen[1].uploads.items()) / sum(weights.values())
    assert torch.allclose(seen[1].released, honest + step, atol=1e-5)


def test_who_trains_on_a_record_brings_its_ascended_loss_down_and_another_client_far_less():
    """Ten records of client 0 are ascended: its update brings their losses down, that of client 1 far less."""
    targets = part(0, 10)
    algorithm = gradient_ascent_server(pf.FedAvg(), targets, step=1.0)
    run = watch(task_of(CLIENTS), algorithm=algorithm, rounds=2, epochs=15, learning_rate=0.1)
    drops = [LossDrop(client=client).guess(run, Auxiliary(candidates=targets)).scores for client in (0, 1)]
    assert (drops[0] > drops[1]).all()
    assert drops[0].mean() > drops[1].mean() + 1


def test_the_algorithm_is_otherwise_its_own():
    wrapped = gradient_ascent_server(pf.FedProx(mu=0.1), ASKED.candidates, step=1.0)
    assert isinstance(wrapped, pf.FedProx)
    assert wrapped.mu == 0.1
    assert type(wrapped).add_data_independent_gradient is pf.FedProx.add_data_independent_gradient
    for wrong in ({"step": 0.0}, {"step": 1.0, "ascents": 0}):
        with pytest.raises(ConfigError):
            gradient_ascent_server(pf.FedAvg(), ASKED.candidates, **wrong)
