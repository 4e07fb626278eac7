"""TERM against soft-max weights over torch.optim's updates and against autograd of its objective."""

import math

import pytest
import torch

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
    TRAINING,
    cell,
    expected_epsilon,
    fair_task,
    losses_at,
    replay,
    sent,
    simulated,
)
from tests.algorithms.federation import uploads

SHARES = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)


@pytest.fixture(scope="module")
def task():
    return fair_task()


def tilted_step(t, weights):
    def step(losses, updates, rate, round):
        return torch.softmax(t * losses + weights.log(), 0) @ updates

    return step


@pytest.mark.parametrize("t", [-5.0, 0.01, 2.0, 40.0])
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_three_rounds_weigh_updates_by_tilted_losses(task, t, weighting):
    run = simulated(task, pf.TERM(t=t, weighting=weighting, reach=60.0), rounds=3)
    weights = SHARES if weighting == "size" else torch.full_like(SHARES, 0.25)
    torch.testing.assert_close(run.parameters, replay(task, 3, tilted_step(t, weights)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("t", [-3.0, 3.0])
def test_one_full_batch_step_descends_on_the_tilted_risk(task, t):
    start = flatten(task.model(0)).requires_grad_()
    risk = torch.logsumexp(t * losses_at(task, start, differentiable=True) + SHARES.log(), 0) / t
    (gradient,) = torch.autograd.grad(risk, start)
    training = pf.LocalTraining(learning_rate=0.5, batch_size=10**6)
    run = simulated(task, pf.TERM(t=t), rounds=1, training=training)
    torch.testing.assert_close(run.parameters, start.detach() - 0.5 * gradient, rtol=0, atol=1e-12)
    assert run.metrics[0]["level"] == pytest.approx(t * float(risk.detach()), rel=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_tilt_zero_is_fedavg_and_a_tiny_tilt_nearly(task, weighting):
    plain = simulated(task, pf.FedAvg(weighting)).parameters
    for t, tolerance in ((0.0, 1e-12), (1e-7, 1e-6)):
        found = simulated(task, pf.TERM(t=t, weighting=weighting)).parameters
        torch.testing.assert_close(found, plain, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("t", "extreme"), [(2000.0, torch.argmax), (-2000.0, torch.argmin)])
def test_a_steep_tilt_copies_the_worst_or_the_best_client(task, t, extreme):
    start = flatten(task.model(0))
    losses, updates = sent(task, start, 0)
    chosen = int(extreme(losses))
    told = {"parameters": start, "level": t * losses[chosen]}
    found = [result.upload for result in uploads(task, pf.TERM(t=t), told, training=TRAINING)]
    step = sum(upload["update"] for upload in found) / sum(upload["normaliser"] for upload in found)
    gap = (losses - losses[chosen]).abs()
    assert float(gap[gap > 0].min()) * abs(t) > 20
    torch.testing.assert_close(step, updates[chosen], rtol=0, atol=1e-7)


@pytest.mark.parametrize("t", [-1.0, 1.0])
def test_the_weights_sum_to_one(task, t):
    told = {"parameters": flatten(task.model(0)), "level": torch.tensor(0.0, dtype=torch.float64)}
    found = uploads(task, pf.TERM(t=t), told, training=TRAINING)
    losses = losses_at(task, told["parameters"])
    normalisers = torch.stack([result.upload["normaliser"] for result in found])
    torch.testing.assert_close(normalisers, (t * losses).exp(), rtol=1e-12, atol=0)


def running_step(t):
    """The authors' code: the running mean starts at 0, and m divides twice."""
    running = 0.0

    def step(losses, updates, rate, round):
        nonlocal running
        shares = torch.exp(t * (losses - losses.max()))
        running = 0.5 * running + 0.5 * float(shares.mean())
        return (shares / (running * len(losses)) @ updates) / len(losses)

    return step


@pytest.mark.parametrize("t", [0.1, 5.0])
def test_the_running_form_is_the_authors_code(task, t):
    run = simulated(task, pf.RunningTERM(t=t), rounds=4)
    torch.testing.assert_close(run.parameters, replay(task, 4, running_step(t)), rtol=0, atol=1e-11)


def test_the_running_forms_weights_sum_to_two_over_m_first_and_to_one_over_m_later(task):
    still = pf.LocalTraining(learning_rate=1e-9)  # losses stay as they are
    run = simulated(task, pf.RunningTERM(), rounds=1, training=still)
    assert float(run.server["shares"].sum()) == pytest.approx(2 / 4, rel=1e-9)
    later = simulated(task, pf.RunningTERM(), rounds=30, training=still)
    assert float(later.server["shares"].sum()) == pytest.approx(1 / 4, rel=1e-6)


def test_a_server_rate_of_m_over_two_makes_the_running_forms_first_step_the_exact_one(task):
    exact = simulated(task, pf.TERM(t=2.0, weighting="uniform"), rounds=1)
    running = simulated(task, pf.RunningTERM(t=2.0, server_learning_rate=2.0), rounds=1)
    torch.testing.assert_close(running.parameters, exact.parameters, rtol=0, atol=1e-12)


def test_the_running_form_weighs_those_who_reported_alone(task):
    run = simulated(task, pf.RunningTERM(), cohort=pf.FixedCohort(2))
    assert int((run.server["shares"] > 0).sum()) == 2


def test_the_running_form_counts_a_client_as_often_as_it_was_drawn(task):
    """With all losses alike the weights of the first round sum to 2/m, m the draws and not the clients drawn."""
    bound = pf.RunningTERM(t=3.0).bind(task.context(1, 0))
    server = bound.start(flatten(task.model(0)))
    losses, times = torch.tensor([2.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 1.0], dtype=torch.float64)
    after = bound.hear(server, losses, Round(4.0, 4, 4, members=torch.tensor([1, 3]), weights=times))
    assert after["shares"].tolist() == [0, 2 / 16, 0, 2 / 16]
    assert float(times @ bound.server_weights(after, torch.tensor([1, 3]))) == 2 / 4
    uneven = bound.hear(
        server,
        torch.tensor([2.0, 1.0], dtype=torch.float64),
        Round(4.0, 4, 4, members=torch.tensor([1, 3]), weights=times),
    )
    low = math.exp(-3.0)
    assert float(uneven["running_mean"]) == pytest.approx((3 + low) / 4 / 2, rel=1e-12)
    run = simulated(task, pf.RunningTERM(), cohort=pf.SizeWeightedCohort(6))
    assert [line["clients"] for line in run.metrics] != [6, 6]
    assert bool(run.parameters.isfinite().all())


def test_the_running_form_needs_every_loss_and_sends_the_update_alone():
    row = declared(pf.RunningTERM())
    assert (row["sends"], row["secure sums"]) == ("loss (each), update (sum)", "no: loss")


def test_the_running_form_costs_what_its_gradients_and_its_report_cost(task):
    algorithm = pf.RunningTERM(loss_bound=5.0)
    for statistics in ((), (NOISY_LOSS,)):
        privacy = pf.Privacy(training=PRIVATE, statistics=statistics, noise_key=5)
        entry = cell(simulated(task, algorithm, rounds=1, training=STEPS, privacy=privacy))
        if statistics:
            assert entry.epsilon == pytest.approx(expected_epsilon(), rel=1e-3)
        else:
            assert entry.epsilon == math.inf
            assert BARE_TOTAL in str(entry)
    with pytest.raises(ConfigError, match="asks its cohort before it trains"):
        simulated(task, algorithm, privacy=pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)]))


@pytest.mark.parametrize("kind", [pf.TERM, pf.RunningTERM])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"t": math.inf}, "'s t is inf"),
        ({"server_learning_rate": -1.0}, "server_learning_rate is -1.0"),
        ({"loss_bound": -1.0}, "loss_bound is -1.0"),
    ],
)
def test_impossible_settings_are_one_sentence(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)
