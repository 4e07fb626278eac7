"""PropFair: its surrogate against closed forms and autograd, its clients against torch.optim on it."""

import math

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms.declarations import declared
from privfl.algorithms.fair.propfair import slope, surrogate
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.door.log import BARE_TOTAL
from privfl.randomness import torch_stream
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
    simulated,
)
from tests.algorithms.federation import uploads

TAILS = pytest.mark.parametrize("tail", ["linear", "huber", "continuous"])


@pytest.fixture(scope="module")
def task():
    return fair_task()


def number(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def literal(loss, base, margin, tail):
    """The surrogate of one number as it is printed."""
    if loss <= base - margin:
        return -math.log(1 - loss / base)
    return {
        "linear": loss / base,
        "huber": loss / margin,
        "continuous": -math.log(margin) + (loss - base + margin) / margin + math.log(base),
    }[tail]


@TAILS
@pytest.mark.parametrize("loss", [0.0, 0.4, 2.7, 2.8, 2.8 + 1e-9, 3.0, 3.5, 50.0])
def test_the_surrogate_and_its_slope(loss, tail):
    at = number(loss)
    value = surrogate(at, 3.0, 0.2, tail)
    assert float(value.detach()) == pytest.approx(literal(loss, 3.0, 0.2, tail), rel=1e-12)
    (gradient,) = torch.autograd.grad(value, at)
    assert float(slope(at.detach(), 3.0, 0.2, tail)) == pytest.approx(float(gradient), rel=1e-12)
    assert float(gradient) >= 1 / 3 - 1e-15
    step = 1e-7
    if abs(loss - 2.8) > 1e-6:
        difference = (literal(loss + step, 3.0, 0.2, tail) - literal(loss, 3.0, 0.2, tail)) / step
        assert float(gradient) == pytest.approx(difference, rel=1e-5)


def test_the_continuous_tail_joins_in_value_and_slope_and_the_others_do_not():
    gap = {}
    for tail in ("linear", "huber", "continuous"):
        near, far = (torch.tensor(2.8 + side, dtype=torch.float64) for side in (-1e-9, 1e-9))
        gap[tail] = [
            float(function(far, 3.0, 0.2, tail) - function(near, 3.0, 0.2, tail)) for function in (surrogate, slope)
        ]
    assert gap["continuous"] == pytest.approx([0, 0], abs=1e-6)
    assert gap["huber"] == pytest.approx([14 - math.log(15), 0], abs=1e-6)
    assert gap["linear"] == pytest.approx([2.8 / 3 - math.log(15), 1 / 3 - 5], abs=1e-6)


def by_hand(task, client, start, base, tail, training, *, once=False):
    """One client's parameters after a round of torch.optim.SGD on the printed surrogate of batch means."""
    network = task.model(0)
    nn.utils.vector_to_parameters(start.clone(), network.parameters())
    optimizer = torch.optim.SGD(
        network.parameters(), lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    rows, order = task.clients[client], torch_stream(0, "batches", 0, client)
    whole = float(losses_at(task, start)[client].detach())
    whole = (1 / (base - whole)) if whole <= base - 0.2 else (1 / base if tail == "linear" else 1 / 0.2)
    for _ in range(training.epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(training.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(task.inputs[batch]), task.targets[batch])
            if once:
                surrogated = whole * loss
            elif float(loss.detach()) <= base - 0.2:
                surrogated = -torch.log(1 - loss / base)
            else:
                surrogated = loss / base if tail == "linear" else loss / 0.2
            surrogated.backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


DECAYING = pf.LocalTraining(learning_rate=0.1, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)


@TAILS
@pytest.mark.parametrize("base", [1.5, 2.5, 5.0])
@pytest.mark.parametrize("per_sample", [False, True])
def test_clients_train_as_torch_sgd_does_on_the_surrogate(task, tail, base, per_sample):
    start = flatten(task.model(0))
    algorithm = pf.PropFair(base=base, tail=tail, per_sample=per_sample)
    found = uploads(task, algorithm, {"parameters": start}, training=DECAYING)
    for client, result in enumerate(found):
        twin = by_hand(task, client, start, base, tail, DECAYING, once=per_sample)
        torch.testing.assert_close(result.upload["update"], twin - start, rtol=0, atol=1e-11)


def test_the_tails_that_differ_in_value_alone_train_alike(task):
    runs = [simulated(task, pf.PropFair(base=2.0, tail=tail)) for tail in ("huber", "continuous", "linear")]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert not torch.equal(runs[0].parameters, runs[2].parameters)


def test_padding_of_stacked_clients_enters_no_mean(task):
    """Clients of 4 to 20 rows in batches of 5 have different numbers of rows in their last batches."""
    settings = {"rounds": 1, "training": TRAINING}
    runs = [
        pf.simulate(task, pf.PropFair(base=2.0), execution=pf.Execution(engine=one), **settings)
        for one in ("loop", "vectorised")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("per_sample", [False, True])
def test_a_huge_base_with_a_rate_as_huge_is_fedavg(task, weighting, per_sample):
    base = 1e8
    scaled = pf.LocalTraining(**{**vars(TRAINING), "learning_rate": 0.3 * base})
    fair = simulated(task, pf.PropFair(weighting, base=base, per_sample=per_sample), training=scaled)
    plain = simulated(task, pf.FedAvg(weighting), training=TRAINING)
    torch.testing.assert_close(fair.parameters, plain.parameters, rtol=0, atol=1e-6)


def test_one_full_batch_step_descends_on_the_proportional_objective(task):
    """∇ of −Σ p_k·log(M − F_k), by autograd."""
    start = flatten(task.model(0)).requires_grad_()
    shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    objective = -(shares * torch.log(5.0 - losses_at(task, start, differentiable=True))).sum()
    (gradient,) = torch.autograd.grad(objective, start)
    training = pf.LocalTraining(learning_rate=0.5, batch_size=10**6)
    for per_sample in (False, True):
        run = simulated(task, pf.PropFair(per_sample=per_sample), rounds=1, training=training)
        torch.testing.assert_close(run.parameters, start.detach() - 0.5 * gradient, rtol=0, atol=1e-12)


def test_a_client_sends_its_update_alone(task):
    for algorithm in (pf.PropFair(), pf.PropFair(per_sample=True)):
        for result in uploads(task, algorithm, {"parameters": flatten(task.model(0))}):
            assert {name: value.numel() for name, value in result.upload.items()} == {
                "update": len(flatten(task.model(0)))
            }
        assert declared(algorithm)["secure sums"] == "yes"


def test_dp_sgd_refuses_the_form_that_couples_samples(task):
    with pytest.raises(ConfigError, match=r"couples the samples of a batch; set per_sample = true"):
        simulated(task, pf.PropFair("uniform"), training=STEPS, privacy=pf.Privacy(training=PRIVATE))


def test_the_separable_form_costs_its_gradients_and_its_loss(task):
    algorithm = pf.PropFair("uniform", per_sample=True, loss_bound=4.8)
    for statistics in ((), (NOISY_LOSS,)):
        privacy = pf.Privacy(training=PRIVATE, statistics=statistics, noise_key=5)
        run = simulated(task, algorithm, rounds=1, training=STEPS, privacy=privacy)
        for observer in ("server", "public"):
            entry = cell(run, observer=observer)
            if statistics:
                assert entry.epsilon == pytest.approx(expected_epsilon(), rel=1e-3)
            else:
                assert entry.epsilon == math.inf
                assert BARE_TOTAL in str(entry)


def test_the_slope_multiplies_the_noise_as_well(task):
    """What is sent is a function of the noisy gradient and the noisy loss: the first is scaled as a whole."""
    bound = pf.PropFair("uniform", per_sample=True).bind(task.context(1, 0))

    class Answers:
        loss = None

        def total(self, statistic, parameters, batch, name):
            return torch.tensor([30.0, 10.0], dtype=torch.float64)

        def gradient(self, loss, parameters, batch):
            return torch.full_like(parameters, 0.2)

    told = {"parameters": flatten(task.model(0))}
    plain = pf.LocalTraining(learning_rate=0.3)
    local = {**bound.begin(told, {}, plain), "parameters": told["parameters"].clone()}
    bound.prepare(local, told, None, Answers(), plain)
    bound.step(local, told, None, Answers(), plain)
    update = bound.finish(local, told, plain)["update"]
    torch.testing.assert_close(update, torch.full_like(update, -0.3 * 0.2 / (5 - 3)))


def test_noise_that_hides_clients_claims_for_it_what_it_claims_for_fedavg(task):
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)], noise_key=1)
    epsilons = [
        cell(simulated(task, algorithm, rounds=1, privacy=privacy), "client", "public").epsilon
        for algorithm in (pf.PropFair("uniform"), pf.FedAvg("uniform"))
    ]
    assert 0 < epsilons[0] == epsilons[1] < math.inf
    assert all(entry.epsilon == math.inf for entry in simulated(task, pf.PropFair(), rounds=1).statement.cells)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": 0.0}, "propfair's base is 0.0"),
        ({"margin": 0.0}, "propfair's margin is 0.0"),
        ({"margin": 6.0}, "propfair's margin is 6.0"),
        ({"tail": "flat"}, "tail is 'flat'"),
        ({"loss_bound": 5.0}, "set per_sample = true"),
        ({"per_sample": True, "loss_bound": -1.0}, "loss_bound is -1.0"),
        ({"weighting": "sise"}, "weighting is 'sise'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.PropFair(**settings)
