"""Gradients and updates equal autograd's and torch.optim.SGD's, and can be differentiated once more."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.observations.gradients import (
    as_gradient,
    batch_gradient,
    check_gradient,
    cosine_distance,
    criterion_of,
    local_update,
    squared_distance,
)
from privfl.errors import ConfigError
from privfl.federation.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from privfl.models import Network
from privfl.privacy.door.batch_plans import LocalTraining

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


def network():
    generator = torch.Generator().manual_seed(1)
    made = Network(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=generator)
    return made


def test_a_batchs_gradient_is_backwards():
    model = network()
    F.cross_entropy(model(INPUTS), TARGETS).backward()
    for found, parameter in zip(batch_gradient(model, INPUTS, TARGETS), model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)
    certain = batch_gradient(model, INPUTS, F.one_hot(TARGETS, 3).double())
    for found, parameter in zip(certain, model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(learning_rate=0.1, batch_size=6),
        LocalTraining(learning_rate=0.1, batch_size=4, epochs=3, momentum=0.5, weight_decay=0.01),
        LocalTraining(learning_rate=0.2, batch_size=2, steps=5, momentum=0.9),
    ],
)
def test_an_update_is_that_of_sgd_on_batches_in_order(training):
    model, trained = network(), network()
    optimiser = torch.optim.SGD(
        trained.parameters(), training.learning_rate, training.momentum, weight_decay=training.weight_decay
    )
    batches = torch.arange(6).split(training.batch_size)
    for step in range(training.steps or training.epochs * len(batches)):
        rows = batches[step % len(batches)]
        optimiser.zero_grad()
        F.cross_entropy(trained(INPUTS[rows]), TARGETS[rows]).backward()
        optimiser.step()
    for differentiable in (False, True):
        found = local_update(model, INPUTS, TARGETS, training, differentiable=differentiable)
        for part, before, after in zip(found, model.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(part, after - before)


def test_an_update_is_differentiated_through_all_its_steps():
    training = LocalTraining(learning_rate=0.3, batch_size=3, epochs=2, momentum=0.5)

    def length(inputs):
        return torch.stack(
            [p.square().sum() for p in local_update(network(), inputs, TARGETS, training, differentiable=True)]
        ).sum()

    inputs = INPUTS.clone().requires_grad_()
    assert torch.autograd.gradcheck(length, (inputs,))


def test_one_plain_step_gives_the_gradient_back():
    model = network()
    update = local_update(model, INPUTS, TARGETS, LocalTraining(learning_rate=0.05, batch_size=6))
    flat = torch.cat([part.reshape(-1) for part in update]).detach()
    for found, expected in zip(as_gradient(model, flat, 0.05), batch_gradient(model, INPUTS, TARGETS), strict=True):
        torch.testing.assert_close(found, expected)


def test_distances_run_over_all_parameters_together():
    first, second = [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])], [torch.tensor([4.0]), torch.tensor([[3.0, 0.0]])]
    assert float(squared_distance(first, second)) == 1 + 9 + 16
    assert float(cosine_distance(first, second)) == pytest.approx(1 - 12 / 25)
    assert float(cosine_distance(first, [2 * part for part in first])) == pytest.approx(0, abs=1e-6)


def test_what_does_not_fit_the_network_is_refused():
    model = network()
    right = batch_gradient(model, INPUTS, TARGETS)
    check_gradient(model, right)
    with pytest.raises(ConfigError, match="has the shapes"):
        check_gradient(model, right[:-1])
    with pytest.raises(ConfigError, match="not finite"):
        check_gradient(model, [right[0] * torch.nan, *right[1:]])
    with pytest.raises(ConfigError, match="zero everywhere"):
        check_gradient(model, [part * 0 for part in right])
    with pytest.raises(ConfigError, match="43 parameters"):
        as_gradient(model, torch.zeros(3), 0.1)
    with pytest.raises(ConfigError, match="learning_rate is 0"):
        as_gradient(model, torch.zeros(43), 0.0)


def test_the_criterion_of_a_loss_is_the_mean_that_privfl_trains_by():
    model, targets = network(), torch.rand(6, 3, generator=GENERATOR, dtype=torch.float64).round()
    for loss in (cross_entropy, mean_squared_error, binary_cross_entropy):
        answers = TARGETS if loss is cross_entropy else targets
        torch.testing.assert_close(
            criterion_of(loss.__name__)(model(INPUTS), answers), loss(model, INPUTS, answers).mean()
        )
    with pytest.raises(ConfigError, match="the loss is Huber, whose update"):
        criterion_of("Huber")
