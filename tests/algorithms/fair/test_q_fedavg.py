"""q-FedAvg against its formulas as printed, written out over torch.optim's updates; section D of the specification."""

import math

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from tests.algorithms.fair.fair_rounds import SIZES, TRAINING, fair_task, losses_at, replay, sent, simulated
from tests.algorithms.federation import full_gradient, uploads


@pytest.fixture(scope="module")
def task():
    return fair_task()


def printed_step(q, weights=None):
    """``−Σ F^q·L·(w − w_k) / Σ h_k`` with L = 1/η of the round."""

    def step(losses, updates, rate, round):
        scaled = -updates / rate
        share = losses**q
        normaliser = q * losses ** (q - 1) * scaled.square().sum(1) + share / rate
        factor = torch.ones_like(losses) if weights is None else torch.tensor(weights, dtype=losses.dtype)
        return -(factor * share) @ scaled / (factor * normaliser).sum()

    return step


@pytest.mark.parametrize("q", [0.001, 0.5, 1.0, 5.0, 15.0])
def test_three_rounds_are_as_the_paper_prints_them(task, q):
    run = simulated(task, pf.QFedAvg(q=q), rounds=3)
    torch.testing.assert_close(run.parameters, replay(task, 3, printed_step(q)), rtol=0, atol=1e-11)


def test_weights_by_size_multiply_both_sums(task):
    run = simulated(task, pf.QFedAvg(q=2.0, weighting="size"))
    torch.testing.assert_close(run.parameters, replay(task, 2, printed_step(2.0, SIZES)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_power_zero_is_fedavg(task, weighting):
    runs = [simulated(task, algorithm) for algorithm in (pf.QFedAvg(q=0.0, weighting=weighting), pf.FedAvg(weighting))]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_one_full_batch_step_is_q_fedsgd(task):
    """``w − ΣF^q·∇F / Σ(q·F^{q−1}·‖∇F‖² + L·F^q)``, with gradients by plain autograd."""
    training, q, start = pf.LocalTraining(learning_rate=0.5, batch_size=10**6), 3.0, flatten(task.model(0))
    losses = losses_at(task, start)
    rows = [task.clients[client] for client in range(len(SIZES))]
    gradients = torch.stack([full_gradient(task, start, one) / len(one) for one in rows])
    normaliser = (q * losses ** (q - 1) * gradients.square().sum(1) + losses**q / 0.5).sum()
    run = simulated(task, pf.QFedAvg(q=q), rounds=1, training=training)
    torch.testing.assert_close(run.parameters, start - losses**q @ gradients / normaliser, rtol=0, atol=1e-12)


def test_a_large_power_follows_the_worst_client_by_ever_smaller_steps(task):
    start = flatten(task.model(0))
    losses, updates = sent(task, start, 0)
    worst = updates[int(losses.argmax())]
    lengths = []
    for q in (1.0, 100.0, 1000.0):
        level = {"parameters": start, "level": q * losses.max().log()}
        found = [result.upload for result in uploads(task, pf.QFedAvg(q=q), level, training=TRAINING)]
        step = sum(upload["update"] for upload in found) / sum(upload["normaliser"] for upload in found)
        lengths.append(float(step.norm()))
    assert lengths[0] > lengths[1] > lengths[2]
    assert float(step @ worst / (step.norm() * worst.norm())) > 1 - 1e-6
    bound = float(worst.norm()) / (1 + 1000 * float(worst.square().sum() / (0.3 * losses.max())))
    assert lengths[2] == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.3, 7.0])
def test_the_weights_of_the_updates_sum_to_at_most_one_and_to_one_at_power_zero(task, q):
    start = flatten(task.model(0))
    losses, _ = sent(task, start, 0)
    told = {"parameters": start, "level": torch.tensor(0.0, dtype=torch.float64)}
    found = uploads(task, pf.QFedAvg(q=q), told, training=TRAINING)
    whole = float((losses**q).sum() / sum(result.upload["normaliser"] for result in found))
    assert whole == 1 if q == 0 else 0 < whole < 1


def test_a_greater_power_evens_losses_out(task):
    spreads = []
    for q in (0.0, 2.0, 10.0):
        training = pf.LocalTraining(learning_rate=0.5, batch_size=10**6)
        run = simulated(task, pf.QFedAvg(q=q), rounds=20, training=training, evaluate_every=20)
        losses = losses_at(task, run.parameters)
        spreads.append(float(losses.max() / losses.min()))
    assert spreads[0] > spreads[1] > spreads[2]


def test_a_loss_of_zero_counts_as_a_tiny_one():
    loss = torch.tensor(0.0, dtype=torch.float64)
    algorithm, update = pf.QFedAvg(q=0.5), torch.ones(3, dtype=torch.float64)
    share = algorithm.log_share(loss).exp()
    assert float(share) == pytest.approx(1e-5)
    assert math.isfinite(float(algorithm.normaliser(share, loss, update, TRAINING)))


@pytest.mark.parametrize("q", [-1.0, math.inf, math.nan])
def test_an_impossible_power_is_one_sentence(q):
    with pytest.raises(ConfigError, match=f"q-fedavg's q is {q}"):
        pf.QFedAvg(q=q)
