"""AFL against its two steps over torch.optim's updates, and against the minimax point of quadratics."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import privfl as pf
from privfl.algorithms.base import Round
from privfl.algorithms.declarations import declared
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.door.log import BARE_TOTAL
from tests.algorithms.fair.fair_rounds import (
    NOISY_LOSS,
    PRIVATE,
    SIZES,
    STEPS,
    cell,
    expected_epsilon,
    fair_task,
    losses_at,
    replay,
    simulated,
)
from tests.algorithms.test_baselines import quadratic_task


@pytest.fixture(scope="module")
def task():
    return fair_task()


def nearest_mixture(point):
    """The simplex point nearest to ``point``: of all sets of entries that may be positive, the best."""
    best, found = math.inf, None
    for code in range(1, 2 ** len(point)):
        inside = np.array([bool(code >> place & 1) for place in range(len(point))])
        candidate = np.where(inside, point - (point[inside].sum() - 1) / inside.sum(), 0)
        if candidate.min() >= 0 and (gap := np.linalg.norm(candidate - point)) < best:
            best, found = gap, candidate
    return found


def printed_step(step_size):
    mixture = np.full(len(SIZES), 1 / len(SIZES))

    def step(losses, updates, rate, round):
        nonlocal mixture
        mixture = nearest_mixture(mixture + step_size * losses.numpy())
        return torch.from_numpy(mixture) @ updates

    return step


@pytest.mark.parametrize("step_size", [0.1, 1.0, 100.0])
def test_three_rounds_are_two_steps_each(task, step_size):
    run = simulated(task, pf.AFL(step_size=step_size), rounds=3)
    torch.testing.assert_close(run.parameters, replay(task, 3, printed_step(step_size)), rtol=0, atol=1e-11)
    mixture = run.server["mixture"]
    assert float(mixture.min()) >= 0
    assert float(mixture.sum()) == pytest.approx(1, abs=1e-12)


def test_without_a_step_of_the_mixture_it_is_uniform_fedavg(task):
    runs = [simulated(task, one, rounds=3) for one in (pf.AFL(step_size=0.0), pf.FedAvg("uniform"))]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def heard(task, losses, members=range(4), step_size=0.3, mixture=None):
    bound = pf.AFL(step_size=step_size).bind(task.context(1, 0))
    server = bound.start(flatten(task.model(0)))
    if mixture is not None:
        server["mixture"] = torch.tensor(mixture, dtype=torch.float64)
    facts = Round(1.0, len(losses), 4, members=torch.tensor(list(members)))
    return bound, bound.hear(server, torch.tensor(losses, dtype=torch.float64), facts)


def test_equal_losses_keep_the_mixture_whoever_reports_them(task):
    mixture = [0.1, 0.2, 0.3, 0.4]
    for losses, members in (([0.7] * 4, range(4)), ([2.0, 2.0], [1, 3])):
        _, after = heard(task, losses, members, mixture=mixture)
        torch.testing.assert_close(after["mixture"], torch.tensor(mixture, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_client_that_does_not_report_counts_with_the_mean_of_those_that_do(task):
    _, some = heard(task, [1.0, 2.0], [0, 3], step_size=0.1)
    _, everybody = heard(task, [1.0, 1.5, 1.5, 2.0], step_size=0.1)
    torch.testing.assert_close(some["mixture"], everybody["mixture"])


def test_the_mixture_is_renormalised_over_who_is_there_and_uniform_where_it_vanishes(task):
    bound, after = heard(task, [0.0, 0.0, 0.0, 50.0])
    torch.testing.assert_close(after["mixture"], torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    assert bound.server_weights(after, torch.tensor([1, 2])).tolist() == [1.0, 1.0]
    assert bound.server_metrics(after) == {"effective_clients": 1.0, "largest_weight": 4.0}
    run = simulated(task, pf.AFL(), cohort=pf.FixedCohort(2))
    assert bool(run.parameters.isfinite().all())


def test_the_mean_iterate_is_what_is_tested_and_not_what_is_sent(task):
    last = [simulated(task, pf.AFL(), rounds=rounds).parameters for rounds in (1, 2, 3)]
    run = simulated(task, pf.AFL(average_iterates=True), rounds=3)
    torch.testing.assert_close(run.server["parameters"], last[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(run.parameters, torch.stack(last).mean(0), rtol=0, atol=1e-12)


def test_on_quadratics_it_finds_the_point_whose_largest_loss_is_least():
    task, optimum = quadratic_task(clients=3)
    inputs = task.inputs.numpy()

    def losses(w):
        gaps = w - inputs[:, :3]
        return 0.5 * np.einsum("ki,kij,kj->k", gaps, inputs[:, 3:].reshape(-1, 3, 3), gaps)

    best = minimize(
        lambda x: x[3],
        np.append(optimum.numpy(), 10.0),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: x[3] - losses(x[:3])},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    training = pf.LocalTraining(learning_rate=0.2, batch_size=1)
    run = simulated(task, pf.AFL(step_size=0.2), rounds=60, training=training, evaluate_every=60)
    assert losses(run.parameters.numpy()).max() == pytest.approx(best.x[3], rel=1e-6)
    assert losses(optimum.numpy()).max() > 1.1 * best.x[3]


def test_the_worst_client_of_a_real_federation_gains(task):
    training = pf.LocalTraining(learning_rate=0.5, batch_size=10**6)
    found = [
        losses_at(task, simulated(task, one, rounds=15, training=training, evaluate_every=15).parameters).max()
        for one in (pf.AFL(step_size=0.2), pf.FedAvg("uniform"))
    ]
    assert float(found[0]) < float(found[1])


def test_it_sends_a_loss_and_an_update_and_the_server_needs_each_loss():
    row = declared(pf.AFL())
    assert (row["sends"], row["secure sums"]) == ("loss (each), update (sum)", "no: loss")


def test_the_loss_is_bare_until_it_is_noisy(task):
    for statistics in ((), (NOISY_LOSS,)):
        privacy = pf.Privacy(training=PRIVATE, statistics=statistics, noise_key=5)
        run = simulated(task, pf.AFL(loss_bound=5.0), rounds=1, training=STEPS, privacy=privacy)
        for observer in ("server", "public"):
            entry = cell(run, observer=observer)
            if statistics:
                assert entry.epsilon == pytest.approx(expected_epsilon(), rel=1e-3)
            else:
                assert entry.epsilon == math.inf
                assert BARE_TOTAL in str(entry)
    assert all(entry.epsilon == math.inf for entry in simulated(task, pf.AFL(), rounds=1).statement.cells)
    with pytest.raises(ConfigError, match="asks its cohort before it trains"):
        simulated(task, pf.AFL(), privacy=pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"step_size": -0.1}, "afl's step_size is -0.1"), ({"loss_bound": 0.0}, "afl's loss_bound is 0.0")],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.AFL(**settings)
