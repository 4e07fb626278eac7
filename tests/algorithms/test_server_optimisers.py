"""Adaptive servers against torch's optimisers, closed forms and FedAvg (part C of the baselines' specification)."""

import math

import pytest
import torch

import privfl as pf
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.server_optimisers import FedAdagrad, FedAdam, FedYogi, ServerOptimiser
from privfl.errors import ConfigError
from tests.algorithms.federation import digits_task

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2)


def walk(seed=0, steps=20, size=9):
    """Mean updates of widely different sizes [steps, size]."""
    draws = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.linspace(-4, 1, size, dtype=torch.float64)
    return torch.randn(steps, size, generator=draws, dtype=torch.float64) * scales


def final(rule, updates, **constants):
    settings = {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3} | constants
    optimiser = ServerOptimiser(rule, **settings)
    server = {"parameters": torch.zeros(updates.shape[1], dtype=torch.float64)}
    server |= optimiser.start(server["parameters"])
    for update in updates:
        server = optimiser.step(server, update)
    return server


def test_fedadagrad_is_torchs_adagrad_on_the_negative_update():
    updates = walk()
    for zero, initial in ((True, 0.0), (False, 1e-6)):
        ours = final("fedadagrad", updates, beta1=0.0, start_at_zero=zero)["parameters"]
        weights = torch.zeros(updates.shape[1], dtype=torch.float64, requires_grad=True)
        theirs = torch.optim.Adagrad([weights], lr=0.05, eps=1e-3, initial_accumulator_value=initial)
        for update in updates:
            weights.grad = -update
            theirs.step()
        torch.testing.assert_close(ours, weights.detach(), rtol=1e-12, atol=1e-13)


def test_fedadam_is_torchs_adam_without_the_correction_of_its_bias():
    updates = walk()
    weights = torch.zeros(updates.shape[1], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=0.05, betas=(0.9, 0.99), eps=1e-3)
    server = {"parameters": torch.zeros(updates.shape[1], dtype=torch.float64)}
    server |= ServerOptimiser("fedadam", 0.05, 0.9, 0.99, 1e-3, start_at_zero=True).start(server["parameters"])
    for t, update in enumerate(updates, 1):
        root = math.sqrt(1 - 0.99**t)  # torch divides m by 1 − β₁ᵗ and √v by this
        corrected = ServerOptimiser("fedadam", 0.05 * root / (1 - 0.9**t), 0.9, 0.99, 1e-3 * root)
        server = corrected.step(server, update)
        weights.grad = -update
        adam.step()
        torch.testing.assert_close(server["parameters"], weights.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", ["fedadam", "fedyogi"])
def test_the_first_step_from_zero_has_its_closed_form(rule):
    update = walk(steps=1)
    moved = final(rule, update, start_at_zero=True)["parameters"]
    size = update[0].abs()
    expected = 0.05 * 0.1 * size / (math.sqrt(0.01) * size + 1e-3)
    torch.testing.assert_close(moved.abs(), expected)
    assert torch.equal(moved.sign(), update[0].sign())


def test_yogi_moves_its_second_moment_towards_the_square_by_at_most_the_square():
    server, squares = None, []
    optimiser = ServerOptimiser("fedyogi", 0.05, 0.9, 0.99, 1e-3)
    server = {"parameters": torch.zeros(9, dtype=torch.float64)} | optimiser.start(torch.zeros(9, dtype=torch.float64))
    for update in walk(steps=300):
        before = server["server_second_moment"]
        server = optimiser.step(server, update)
        after, square = server["server_second_moment"], update.square()
        torch.testing.assert_close((after - before).abs(), 0.01 * square, rtol=1e-6, atol=1e-12)
        assert torch.equal(after > before, square > before)
        assert bool((after >= 0).all())
        squares.append(square)


@pytest.mark.parametrize("algorithm", [FedAdam, FedYogi, FedAdagrad])
def test_with_a_dominant_tau_and_no_momentum_an_adaptive_server_is_fedavg(algorithm):
    task = digits_task(SIZES)
    adaptive = algorithm(tau=1e9, server_learning_rate=1e9, beta1=0.0, start_at_zero=True)
    runs = [pf.simulate(task, one, rounds=3, training=TRAINING) for one in (adaptive, FedAvg())]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-8)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("algorithm", [FedAdam, FedYogi, FedAdagrad])
def test_the_moments_live_on_from_round_to_round(algorithm, weighting):
    """Each round's mean update is that of one FedAvg round from the same parameters; the rule is applied by hand."""
    task, rounds = digits_task(SIZES), 3
    chosen = algorithm(weighting=weighting)
    seen = []
    run = pf.simulate(
        task,
        chosen,
        rounds=rounds,
        training=TRAINING,
        callbacks=[lambda simulation, line: seen.append(dict(simulation.server))],
    )
    start = chosen.start(torch.zeros(650, dtype=torch.float64))
    for before, after in zip([start, *seen[:-1]], seen, strict=True):
        m = after["server_first_moment"]
        update = (m - chosen.beta1 * before["server_first_moment"]) / (1 - chosen.beta1)
        square, v = update.square(), before["server_second_moment"]
        expected = {
            "fedadagrad": v + square,
            "fedadam": 0.99 * v + 0.01 * square,
            "fedyogi": v - 0.01 * square * (v - square).sign(),
        }[chosen.name]
        torch.testing.assert_close(after["server_second_moment"], expected, rtol=1e-9, atol=1e-18)
        moved = before["parameters"] + 0.01 * m / (expected.sqrt() + 1e-3)
        torch.testing.assert_close(after["parameters"], moved, rtol=0, atol=1e-12)
    one = pf.simulate(task, FedAvg(weighting=weighting), rounds=1, training=TRAINING).parameters
    first = seen[0]["server_first_moment"] / (1 - chosen.beta1)
    torch.testing.assert_close(first, one, rtol=0, atol=1e-12)
    assert torch.equal(run.parameters, seen[-1]["parameters"])


def test_a_round_in_which_everybody_reports_size_zero_changes_nothing():
    chosen = FedAdam()
    server = chosen.start(torch.ones(3))
    silent = pf.algorithms.Round(weight=0.0, cohort=2, clients=2)
    assert chosen.aggregate(server, {"update": torch.ones(3)}, silent, TRAINING) is server


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "scheme-2"}, "fedadam's weighting is 'scheme-2'"),
        ({"server_learning_rate": -1.0}, "fedadam's learning_rate is -1.0"),
        ({"tau": 0.0}, "fedadam's tau is 0.0"),
        ({"beta1": 1.0}, "fedadam's beta1 is 1.0"),
        ({"beta2": math.nan}, "fedadam's beta2 is nan"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedAdam(**settings)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="server optimiser is 'fedsgd'"):
        ServerOptimiser("fedsgd", 0.1, 0.9, 0.9, 0.1)
