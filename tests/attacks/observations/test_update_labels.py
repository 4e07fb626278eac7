"""Updates of many local steps, with momentum, still tell the label distribution."""

import pytest
import torch

from attacks.observations.gradients import local_update
from attacks.observations.head_gradients import HeadGradient, class_gradients, predictions
from attacks.observations.update_labels import (
    averaged_gradient,
    effective_steps,
    label_shares,
    shares_by_regression,
    steps_of,
)
from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork, Layout
from privfl.privacy.door.batch_plans import LocalTraining
from tests.attacks.labelled_batches import CLASSES, batch, counts, drawn_labels, halves, untrained

DATA = halves()


def test_twenty_steps_at_momentum_one_half_are_worth_thirty_eight():
    """Golden value of the specification; without the correction every count is off by 1.9."""
    assert effective_steps(20, 0.5) == pytest.approx(38, abs=1e-5)


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.9), (7, 0.0), (20, 0.5), (50, 0.9), (3, 0.99)])
def test_effective_steps_are_those_of_a_constant_gradient(steps, momentum):
    """Against PyTorch's own optimiser on a linear function, whose gradient never changes."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        (3.0 * weight).sum().backward()
        optimiser.step()
    assert effective_steps(steps, momentum) == pytest.approx(float(-weight.detach()) / 0.3, rel=1e-12)
    found = averaged_gradient(weight.detach(), 0.1, steps, momentum)
    assert float(found) == pytest.approx(3.0, rel=1e-12)


def trained(seed, learning_rate, epochs, momentum):
    """Truth, averaged head gradient, and the network before and after the local epochs of a client of 60 examples."""
    network = untrained(seed)
    inputs, targets = batch(drawn_labels(60, seed, 0.3), DATA.private, seed)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    training = LocalTraining(learning_rate=learning_rate, batch_size=10, epochs=epochs, momentum=momentum)
    parts = local_update(network, inputs[order], targets[order], training)
    update = torch.cat([part.reshape(-1) for part in parts]).detach()
    moved = FlatNetwork(untrained(seed))
    moved.load(moved.flat + update)
    mean = averaged_gradient(update, learning_rate, 6 * epochs, momentum)
    truth = torch.tensor(counts(targets)) / 60
    return truth, HeadGradient.of(mean, Layout.of(network)), network, moved.module


def variation(first, second):
    return float((first - second).abs().sum()) / 2


@pytest.mark.parametrize(("momentum", "epochs"), [(0.0, 1), (0.0, 3), (0.5, 2)])
def test_the_shares_of_a_client_show_after_its_local_epochs(momentum, epochs):
    """60 examples in batches of 10, labels from a Dirichlet draw: total variation below 0.12, large classes found."""
    for seed in range(4):
        truth, gradient, before, after = trained(seed, 0.02, epochs, momentum)
        means = [predictions(network, DATA.public[0]).mean(0) for network in (before, after)]
        shares = label_shares(gradient.bias, *means)
        assert variation(shares, truth) < 0.12
        assert bool((shares[truth >= 0.1] > 0.02).all())


def test_after_long_training_the_regression_is_the_better_form():
    """30 steps that change the predictions by class: mean total variation over six clients."""
    simple, regressed = 0.0, 0.0
    for seed in range(6):
        truth, gradient, before, after = trained(seed, 0.05, 5, 0.0)
        means = [predictions(network, DATA.public[0]).mean(0) for network in (before, after)]
        simple += variation(label_shares(gradient.bias, *means), truth) / 6
        ends = [class_gradients(network, *DATA.public, CLASSES) for network in (before, after)]
        regressed += variation(shares_by_regression(gradient, *ends), truth) / 6
    assert regressed < 0.1 < simple


def test_without_the_correction_for_momentum_the_shares_are_wrong():
    """The gradient comes out (K_β/K) too large; the simplex then cuts small classes off."""
    network = untrained(1)
    inputs, targets = batch([0] * 30 + [1] * 20 + [2] * 10, DATA.private, 1)
    training = LocalTraining(learning_rate=0.005, batch_size=60, steps=20, momentum=0.5)
    update = torch.cat([part.reshape(-1) for part in local_update(network, inputs, targets, training)]).detach()
    layout, mean = Layout.of(network), predictions(network, DATA.public[0]).mean(0)
    truth = torch.tensor(counts(targets)) / 60
    right = HeadGradient.of(averaged_gradient(update, 0.005, 20, 0.5), layout).bias
    wrong = HeadGradient.of(averaged_gradient(update, 0.005, 20), layout).bias
    assert float((label_shares(right, mean, mean) - truth).abs().max()) < 0.05
    assert float((label_shares(wrong, mean, mean) - truth).abs().max()) > 0.1


def test_steps_follow_from_epochs_and_size():
    assert steps_of(61, 20, 2, None) == 8
    assert steps_of(0.4, 20, 1, None) == 1
    assert steps_of(61, 20, 2, 5) == 5


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: effective_steps(0), "steps"),
        (lambda: effective_steps(3, 1.0), "momentum"),
        (lambda: effective_steps(3, -0.1), "momentum"),
        (lambda: averaged_gradient(torch.zeros(2), 0.0, 1), "learning_rate"),
        (lambda: label_shares(torch.zeros(3), torch.zeros(3), torch.zeros(4)), "shapes"),
        (lambda: label_shares(torch.full((CLASSES,), torch.inf), torch.zeros(CLASSES), torch.zeros(CLASSES)), "finite"),
        (lambda: steps_of(0, 20, 1, None), "samples"),
    ],
)
def test_settings_out_of_range_are_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()
