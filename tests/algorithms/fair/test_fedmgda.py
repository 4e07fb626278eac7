"""FedMGDA+: its quadratic problem against scipy and closed forms, its step against torch.optim's updates."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import privfl as pf
from privfl.algorithms.base import Round
from privfl.algorithms.declarations import declared
from privfl.algorithms.fair.fedmgda import common_descent, gram
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from tests.algorithms.fair.fair_rounds import PRIVATE, SIZES, STEPS, cell, fair_task, replay, simulated
from tests.algorithms.federation import uploads


@pytest.fixture(scope="module")
def task():
    return fair_task()


def units(seed, clients, size=6):
    rows = np.random.default_rng(seed).normal(size=(clients, size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_sequential_programming(products, epsilon):
    clients = len(products)
    found = minimize(
        lambda p: 0.5 * p @ products @ p,
        np.full(clients, 1 / clients),
        jac=lambda p: products @ p,
        method="SLSQP",
        bounds=[(max(0.0, 1 / clients - epsilon), min(1.0, 1 / clients + epsilon))] * clients,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("clients", [2, 5, 11])
def test_the_weights_solve_the_quadratic_problem(clients, epsilon):
    rows = units(clients, clients)
    products = rows @ rows.T
    weights, other = common_descent(products, epsilon), by_sequential_programming(products, epsilon)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights.min() >= 0
    assert np.abs(weights - 1 / clients).max() <= epsilon + 1e-15
    assert weights @ products @ weights <= other @ products @ other + 1e-10
    slope = products @ weights  # KKT: nobody who may fall has a larger slope than anybody who may rise
    falls = weights > max(0.0, 1 / clients - epsilon) + 1e-12
    rises = weights < min(1.0, 1 / clients + epsilon) - 1e-12
    if falls.any() and rises.any():
        assert slope[falls].max() - slope[rises].min() < 1e-8


@pytest.mark.parametrize("seed", range(10))
def test_without_a_cap_nobodys_loss_rises_along_the_direction(seed):
    rows = units(seed, 8, size=20)
    weights = common_descent(rows @ rows.T, 1.0)
    direction = weights @ rows
    assert (rows @ direction >= direction @ direction - 1e-8).all()


@pytest.mark.parametrize("seed", range(5))
def test_two_clients_have_closed_forms(seed):
    one, other = np.random.default_rng(seed).normal(size=(2, 4)) * [[1.0], [3.0]]
    products = np.array([[one @ one, one @ other], [one @ other, other @ other]])
    share = np.clip((other - one) @ other / ((one - other) @ (one - other)), 0, 1)
    np.testing.assert_allclose(common_descent(products, 1.0), [share, 1 - share], atol=1e-8)
    rows = units(seed, 2)
    np.testing.assert_allclose(common_descent(rows @ rows.T, 1.0), [0.5, 0.5], atol=1e-12)


def test_equal_and_opposite_and_hundreds_of_updates_are_solved():
    np.testing.assert_allclose(common_descent(np.ones((5, 5)), 1.0), np.full(5, 0.2), atol=1e-12)
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    weights = common_descent(rows @ rows.T, 1.0)
    assert np.linalg.norm(weights @ rows) < 1e-4  # the ridge of 1e-10 moves the minimum by no more
    many = torch.from_numpy(units(0, 300, size=40)).float()
    products = gram(torch.cat([many, many], 0))
    weights = common_descent(products, 0.1)
    assert weights @ products @ weights <= np.full(600, 1 / 600) @ products @ np.full(600, 1 / 600)


def test_products_are_summed_in_float64_over_all_columns():
    rows = torch.randn(3, 150_000, generator=torch.Generator().manual_seed(0))
    expected = rows.double().numpy() @ rows.double().numpy().T
    np.testing.assert_allclose(gram(rows), expected, rtol=1e-12, atol=1e-9)


def printed_step(epsilon, rate=1.0, decay=1.0):
    """The mean of unit updates with the weights that scipy finds."""

    def step(losses, updates, learning_rate, round):
        rows = updates / updates.norm(dim=1, keepdim=True)
        weights = by_sequential_programming((rows @ rows.T).numpy(), epsilon)
        return rate * decay**round * torch.from_numpy(weights) @ rows

    return step


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0])
def test_three_rounds_are_as_the_paper_prints_them(task, epsilon):
    run = simulated(task, pf.FedMGDA(epsilon=epsilon, server_learning_rate=0.5), rounds=3)
    torch.testing.assert_close(run.parameters, replay(task, 3, printed_step(epsilon, 0.5)), rtol=0, atol=2e-6)


def test_cap_zero_is_the_mean_of_unit_updates_and_the_rate_decays(task):
    algorithm = pf.FedMGDA(epsilon=0.0, server_learning_rate=0.3, server_learning_rate_decay=0.5)
    run = simulated(task, algorithm, rounds=3)

    def step(losses, updates, rate, round):
        return 0.3 * 0.5**round * (updates / updates.norm(dim=1, keepdim=True)).mean(0)

    torch.testing.assert_close(run.parameters, replay(task, 3, step), rtol=0, atol=1e-12)


def test_cap_zero_without_normalisation_is_uniform_fedavg(task):
    runs = [simulated(task, one) for one in (pf.FedMGDA(epsilon=0.0, normalise=False), pf.FedAvg("uniform"))]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_a_step_is_never_longer_than_the_servers_rate(task):
    for epsilon in (0.0, 0.1, 1.0):
        start = flatten(task.model(0))
        run = simulated(task, pf.FedMGDA(epsilon=epsilon, server_learning_rate=0.7), rounds=1)
        length = float((run.parameters - start).norm())
        assert length <= 0.7 * (1 + 1e-12)
        assert run.metrics[0]["direction_norm"] == pytest.approx(length / 0.7, rel=1e-6)


def test_updates_that_are_zero_take_no_part(task):
    bound = pf.FedMGDA(epsilon=0.0).bind(task.context(1, 0))
    server = bound.start(torch.zeros(3, dtype=torch.float64))
    updates = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]], dtype=torch.float64)
    after = bound.aggregate(server, {"update": updates}, Round(3.0, 3, 3), pf.LocalTraining())
    torch.testing.assert_close(after["parameters"], torch.tensor([0.5, 0.5, 0], dtype=torch.float64))
    still = bound.aggregate(server, {"update": 0 * updates}, Round(3.0, 3, 3), pf.LocalTraining())
    assert torch.equal(still["parameters"], server["parameters"])
    assert bound.server_metrics(still) == {"direction_norm": 0.0}
    assert bound.server_metrics(server) == {}


def test_without_normalisation_an_update_of_zero_counts_like_any_other(task):
    """At ε = 0 it pulls the mean down as in FedAvg; at ε = 1 the shortest vector of the convex hull is zero itself."""
    updates = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 6, 0]], dtype=torch.float64)
    for epsilon, expected in ((0.0, [1.0, 2.0, 0.0]), (1.0, [0.0, 0.0, 0.0])):
        bound = pf.FedMGDA(epsilon=epsilon, normalise=False).bind(task.context(1, 0))
        server = bound.start(torch.zeros(3, dtype=torch.float64))
        after = bound.aggregate(server, {"update": updates}, Round(3.0, 3, 3), pf.LocalTraining())
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(after["parameters"], expected, rtol=0, atol=1e-8)


def test_the_length_of_an_update_does_not_matter(task):
    bound = pf.FedMGDA(epsilon=1.0).bind(task.context(1, 0))
    server = bound.start(torch.zeros(6, dtype=torch.float64))
    rows = torch.from_numpy(units(3, 4))
    scale = torch.tensor([[1e-20], [1.0], [7.0], [1e20]], dtype=torch.float64)
    found = [
        bound.aggregate(server, {"update": one}, Round(4.0, 4, 4), pf.LocalTraining())["parameters"]
        for one in (rows, rows * scale)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_a_client_sends_its_update_alone_and_the_server_needs_each(task):
    for result in uploads(task, pf.FedMGDA(), {"parameters": flatten(task.model(0))}):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": len(flatten(task.model(0)))}
    assert declared(pf.FedMGDA())["secure sums"] == "no: update"


def test_a_client_whose_data_is_broken_is_left_out(task):
    broken = task.inputs.clone()
    broken[task.clients[1]] = math.nan
    run = simulated(replace(task, inputs=broken), pf.FedMGDA())
    assert [line["clients"] for line in run.metrics] == [len(SIZES) - 1] * 2
    assert bool(run.parameters.isfinite().all())


def test_it_is_charged_as_fedavg_is_under_dp_sgd_and_refused_under_other_noise(task):
    settings = {"rounds": 1, "training": STEPS, "privacy": pf.Privacy(PRIVATE, noise_key=5)}
    runs = [simulated(task, one, **settings) for one in (pf.FedMGDA(), pf.FedAvg("uniform"))]
    for observer in ("server", "public"):
        ours, theirs = (cell(run, observer=observer).epsilon for run in runs)
        assert 0 < ours == theirs < math.inf
    bare = simulated(task, pf.FedMGDA(), rounds=1)
    assert all(entry.epsilon == math.inf for entry in bare.statement.cells)
    with pytest.raises(ConfigError, match="the server needs every client's 'update'"):
        simulated(task, pf.FedMGDA(), privacy=pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)]))
    with pytest.raises(ConfigError, match="update"):
        simulated(task, pf.FedMGDA(), privacy=pf.Privacy(update=[pf.SecureSum()]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": -0.1}, "fedmgda's epsilon is -0.1"),
        ({"epsilon": 1.5}, "fedmgda's epsilon is 1.5"),
        ({"server_learning_rate": 0.0}, "server_learning_rate is 0.0"),
        ({"server_learning_rate_decay": 1.1}, "server_learning_rate_decay is 1.1"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.FedMGDA(**settings)
