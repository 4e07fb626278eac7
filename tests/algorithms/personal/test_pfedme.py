"""pFedMe: θ solves a proximal problem on each batch, and v follows the gradient of its Moreau envelope."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from tests.algorithms.federation import digits_task, initial, uploads
from tests.algorithms.personal.personal_twins import drawn, pulled, quadratics, slope

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.05, batch_size=5, epochs=2)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def twin(task, client, number, server, *, warm=False, decay=0.0, steps=3, momentum=0.0, wd=0.0, rate=0.05):
    """One client's round with λ = 4, η_p = 0.1 and η = ``rate``, in plain loops."""
    v, theta, velocity = server, server, torch.zeros_like(server)
    for rows in drawn(task, client, 5, 2, round=number):
        if not warm:
            theta = v
        for _ in range(steps):
            theta = theta - 0.1 * (slope(task, theta, rows) + 4 * (theta - v) + decay * theta)
        velocity = momentum * velocity + 4 * (v - theta) + wd * v
        v = v - rate * velocity
    return v, theta


@pytest.mark.parametrize(
    ("weighting", "beta", "weights"),
    [("uniform", 1.0, (1 / 3, 1 / 3, 1 / 3)), ("size", 0.5, (7 / 40, 20 / 40, 13 / 40))],
)
@pytest.mark.parametrize(("warm", "decay"), [(False, 0.0), (True, 0.001)], ids=["paper", "code"])
def test_two_rounds_follow_the_algorithm(task, weighting, beta, weights, warm, decay):
    algorithm = pf.PFedMe(
        weighting,
        server_learning_rate=beta,
        proximal_weight=4.0,
        personal_steps=3,
        personal_learning_rate=0.1,
        warm_start=warm,
        theta_decay=decay,
    )
    run = pf.simulate(task, algorithm, rounds=2, training=replace(TRAINING, learning_rate_decay=0.5))
    server = initial(task)
    for number in range(2):
        settings = {"warm": warm, "decay": decay, "rate": 0.05 / (number + 1)}  # η decays, η_p does not
        found = [twin(task, client, number, server, **settings) for client in range(3)]
        mean = sum(weight * v for weight, (v, _) in zip(weights, found, strict=True))
        server = (1 - beta) * server + beta * mean
    torch.testing.assert_close(run.parameters, server, rtol=0, atol=1e-12)
    for client, (_, theta) in enumerate(found):
        torch.testing.assert_close(run.client_state[client]["theta"], theta, rtol=0, atol=1e-12)
        (model,) = run.algorithm.personal(run.server, run.client_state[client]).values()
        assert torch.equal(model, run.client_state[client]["theta"])


def test_momentum_and_weight_decay_act_on_the_step_of_the_envelope(task):
    training = replace(TRAINING, momentum=0.5, weight_decay=0.1)
    algorithm = pf.PFedMe(proximal_weight=4.0, personal_steps=3, personal_learning_rate=0.1)
    for result in uploads(task, algorithm, {"parameters": initial(task) + 0.1}, training=training):
        v, theta = twin(task, result.client, 0, initial(task) + 0.1, momentum=0.5, wd=0.1)
        torch.testing.assert_close(result.upload["update"], v - initial(task) - 0.1, rtol=0, atol=1e-12)
        torch.testing.assert_close(result.client_state["theta"], theta, rtol=0, atol=1e-12)


def test_without_a_pull_v_stays_where_it_was(task):
    for result in uploads(task, pf.PFedMe(proximal_weight=0.0), {"parameters": initial(task)}, training=TRAINING):
        assert not result.upload["update"].any()
        assert result.client_state["theta"].any()


def test_if_eta_times_lambda_is_one_v_becomes_theta(task):
    algorithm = pf.PFedMe(proximal_weight=20.0, personal_learning_rate=0.02)
    start = initial(task) + 0.1
    for result in uploads(task, algorithm, {"parameters": start}, training=TRAINING):
        torch.testing.assert_close(result.upload["update"], result.client_state["theta"] - start, rtol=0, atol=1e-12)


def test_one_inner_step_is_fedavg_with_the_product_of_the_three_rates(task):
    algorithm = pf.PFedMe("uniform", proximal_weight=4.0, personal_steps=1, personal_learning_rate=0.1)
    shorter = replace(TRAINING, learning_rate=0.05 * 4 * 0.1)
    ours = pf.simulate(task, algorithm, rounds=3, training=TRAINING)
    theirs = pf.simulate(task, pf.FedAvg("uniform"), rounds=3, training=shorter)
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weight", [1.0, 6.0])
def test_on_quadratics_many_inner_steps_solve_the_proximal_problem(weight):
    """With the exact θ*(v) one local round is v − η·λ·(v − θ*(v)), a gradient step on the Moreau envelope."""
    task, curvatures, optima, _ = quadratics()
    rate = 1 / (weight + float(torch.linalg.matrix_norm(curvatures, 2).max()))
    algorithm = pf.PFedMe(proximal_weight=weight, personal_steps=150, personal_learning_rate=rate)
    start = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    training = pf.LocalTraining(learning_rate=0.1)
    for client, result in enumerate(uploads(task, algorithm, {"parameters": start}, training=training)):
        theta = pulled(curvatures[client], optima[client], start, weight)
        torch.testing.assert_close(result.client_state["theta"], theta, rtol=0, atol=1e-9)
        expected = -0.1 * weight * (start - theta)
        torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-9)


def test_dp_sgd_needs_one_inner_step(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    with pytest.raises(ConfigError, match=r"takes 5 gradients of every batch.*set personal_steps = 1"):
        pf.simulate(task, pf.PFedMe(), rounds=1, privacy=privacy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proximal_weight": -1.0}, "pfedme's proximal_weight is -1.0"),
        ({"personal_steps": 0}, "pfedme's personal_steps is 0"),
        ({"personal_learning_rate": 0.0}, "pfedme's personal_learning_rate is 0.0"),
        ({"theta_decay": -1.0}, "pfedme's theta_decay is -1.0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.PFedMe(**settings)
