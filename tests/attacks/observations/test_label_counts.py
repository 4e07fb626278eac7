"""The identity gives all label counts exactly where its premises hold, and the regression needs fewer of them."""

from itertools import product

import pytest
import torch
from torch import nn

from attacks.observations.head_gradients import HeadGradient, class_gradients, predictions
from attacks.observations.label_counts import (
    counts_by_regression,
    counts_from_bias,
    counts_from_weights,
    integer_counts,
    on_simplex,
)
from privfl.errors import ConfigError
from privfl.models.base import Network
from privfl.models.flat_network import Layout
from tests.attacks.labelled_batches import CLASSES, batch, counts, drawn_labels, halves, head_gradient, untrained

DATA = halves()


@pytest.mark.parametrize("size", [1, 8, 64, 256])
def test_with_the_batchs_own_predictions_the_identity_is_exact(size):
    """Float64, so that only rounding is left: the counts are whole to 1e-10 before any rounding."""
    network = untrained(0).double()
    inputs, targets = batch(drawn_labels(size, 1), DATA.private, 2)
    inputs = inputs.double()
    _, bias = head_gradient(network, inputs, targets)
    found = counts_from_bias(bias, predictions(network, inputs).mean(0), size)
    assert found.tolist() == pytest.approx(counts(targets), abs=1e-10)


@pytest.mark.parametrize("size", [1, 8, 32, 64])
def test_on_untrained_networks_public_predictions_give_every_count(size):
    """The regime of the claim: 10 networks, labels from a Dirichlet draw, p̄ from public data, then the repair."""
    for seed in range(10):
        network = untrained(seed)
        inputs, targets = batch(drawn_labels(size, seed, 0.5), DATA.private, seed)
        _, bias = head_gradient(network, inputs, targets)
        found = counts_from_bias(bias, predictions(network, DATA.public[0]).mean(0), size)
        assert integer_counts(found, size).tolist() == counts(targets)


def test_a_zero_head_needs_no_data_at_all():
    network = untrained(3)
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    inputs, targets = batch(drawn_labels(500, 4, 0.3), DATA.private, 5)
    _, bias = head_gradient(network, inputs, targets)
    found = counts_from_bias(bias, torch.full((CLASSES,), 0.1), 500)
    assert found.tolist() == pytest.approx(counts(targets), abs=1e-3)


def test_features_of_equal_sum_make_the_form_without_bias_exact():
    """Soft-max features add up to 1, so Σ_k ∂L/∂W_ck is the bias gradient that the head does not have."""
    generator = torch.Generator().manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Softmax(1))
    network = Network(body, nn.Linear(20, CLASSES, bias=False)).double()
    inputs = torch.randn(40, 64, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (40,), generator=generator)
    weight, bias = head_gradient(network, inputs, targets)
    assert bias is None
    found = counts_from_weights(weight, predictions(network, inputs).mean(0), 40, 1.0)
    assert found.tolist() == pytest.approx(counts(targets), abs=1e-10)


def test_a_shifted_loss_needs_its_own_predictions():
    """Balanced soft-max: with the shifted p̄ the identity is exact, with the plain one it is off by whole examples."""
    network = untrained(1).double()
    inputs, targets = batch([0] * 8 + [1] * 24, DATA.private, 6)
    inputs = inputs.double()
    log_prior = torch.log(0.99 * torch.tensor(counts(targets)).double() / 32 + 0.001)
    _, bias = head_gradient(network, inputs, targets, log_prior)
    exact = counts_from_bias(bias, predictions(network, inputs, log_prior).mean(0), 32)
    plain = counts_from_bias(bias, predictions(network, inputs).mean(0), 32)
    assert exact.tolist() == pytest.approx(counts(targets), abs=1e-10)
    assert float((plain - torch.tensor(counts(targets))).abs().max()) > 5


def test_on_a_trained_network_one_over_c_is_the_wrong_prediction():
    """Where the claim must fail: after training p̄ follows the labels, and 1/C in its place loses examples."""
    network = untrained(2)
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(DATA.public[0]), DATA.public[1]).backward()
        optimiser.step()
    inputs, targets = batch([0] * 24 + [1] * 8, DATA.private, 7)
    _, bias = head_gradient(network, inputs, targets)
    blind = integer_counts(counts_from_bias(bias, torch.full((CLASSES,), 0.1), 32), 32)
    exact = integer_counts(counts_from_bias(bias, predictions(network, inputs).mean(0), 32), 32)
    assert exact.tolist() == counts(targets)
    assert sum(min(a, b) for a, b in zip(blind.tolist(), counts(targets), strict=True)) < 16


def test_class_gradients_are_those_of_autograd():
    network = untrained(5)
    inputs, targets = batch([3] * 6 + [7] * 2, DATA.public, 8)
    found = class_gradients(network, inputs, targets, CLASSES)
    for label in (3, 7):
        rows = targets == label
        weight, bias = head_gradient(network, inputs[rows], targets[rows])
        expected = HeadGradient(weight, bias).vector()
        assert torch.allclose(found.means[label], expected.double(), atol=1e-7)
    single = torch.stack(
        [HeadGradient(*head_gradient(network, inputs[i : i + 1], targets[i : i + 1])).vector() for i in range(8)]
    )
    centred = single.double() - found.means[targets]
    assert torch.allclose(found.deviations, centred.square().mean(0).sqrt(), atol=1e-6)
    assert found.seen.tolist() == [label in (3, 7) for label in range(CLASSES)]


def test_the_regression_finds_all_counts_and_their_number():
    """On untrained networks without being told B: the total to 5 %, and every count of 64."""
    for seed in range(10):
        network = untrained(seed)
        inputs, targets = batch(drawn_labels(64, seed, 0.5), DATA.private, seed)
        found = counts_by_regression(
            HeadGradient(*head_gradient(network, inputs, targets)).vector() * 64,
            class_gradients(network, *DATA.public, CLASSES),
        )
        assert float(found.sum()) == pytest.approx(64, rel=0.05)
        assert integer_counts(found, 64).tolist() == counts(targets)


def test_the_regression_needs_neither_a_bias_nor_positive_features():
    """A head without bias on features without activation: most labels, where sums of features lose a quarter."""
    exact, summed = 0.0, 0.0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        for layer in (body[1], body[3]):
            nn.init.normal_(layer.weight, std=0.1, generator=generator)
        network = Network(body, nn.Linear(64, CLASSES, bias=False))
        inputs, targets = batch(drawn_labels(32, seed, 0.5), DATA.private, seed)
        weight, _ = head_gradient(network, inputs, targets)
        auxiliary = class_gradients(network, *DATA.public, CLASSES, bias=False)
        with torch.no_grad():
            total = float(network.features(DATA.public[0]).sum(1).mean())
        ways = (
            counts_by_regression(weight.reshape(-1) * 32, auxiliary),
            counts_from_weights(weight, predictions(network, DATA.public[0]).mean(0), 32, total),
        )
        found = [torch.minimum(integer_counts(way, 32), torch.tensor(counts(targets))).sum() / 160 for way in ways]
        exact, summed = exact + float(found[0]), summed + float(found[1])
    assert exact > 0.95
    assert summed < 0.8


def test_the_repair_is_the_nearest_whole_vector():
    """Against every vector of whole numbers with the right total."""
    generator = torch.Generator().manual_seed(9)
    for total in (0, 1, 4, 7):
        everything = [v for v in product(range(total + 1), repeat=4) if sum(v) == total]
        for _ in range(20):
            wanted = total / 4 + 2 * torch.randn(4, generator=generator, dtype=torch.float64)
            best = min(float((wanted - torch.tensor(v)).square().sum()) for v in everything)
            found = integer_counts(wanted, total)
            assert int(found.sum()) == total
            assert float((wanted - found).square().sum()) == pytest.approx(best, abs=1e-12)


def test_the_simplex_point_is_the_nearest_one():
    """Against a fine grid on the simplex of three classes."""
    steps = torch.arange(0, 101) / 100
    grid = torch.tensor([(a, b, 1 - a - b) for a, b in product(steps.tolist(), repeat=2) if a + b <= 1 + 1e-9])
    generator = torch.Generator().manual_seed(10)
    for _ in range(20):
        values = torch.randn(3, generator=generator)
        found = on_simplex(values)
        assert float(found.sum()) == pytest.approx(1, abs=1e-6)
        assert float(found.min()) >= 0
        nearest = (grid - values).square().sum(1).min().sqrt()
        assert float((found - values).norm()) <= float(nearest) + 1e-6


def test_the_head_is_found_in_a_flat_update():
    network = untrained(6)
    layout = Layout.of(network)
    flat = torch.arange(layout.size, dtype=torch.float32)
    found = HeadGradient.of(flat, layout)
    start = layout.size - 10 * 200 - 10
    assert torch.equal(found.weight.reshape(-1), flat[start : start + 2000].double())
    assert torch.equal(found.bias, flat[-10:].double())
    with pytest.raises(ConfigError, match="shape"):
        HeadGradient.of(flat[1:], layout)
    with pytest.raises(ConfigError, match="linear head"):
        HeadGradient.of(torch.zeros(20), Layout.of(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: counts_from_bias(torch.zeros(3), torch.zeros(4), 5), "shape"),
        (lambda: counts_from_bias(torch.zeros(3), torch.full((3,), torch.nan), 5), "finite"),
        (lambda: counts_from_bias(torch.zeros(3), torch.zeros(3), 0), "batch_size"),
        (lambda: counts_from_weights(torch.zeros(3, 2), torch.zeros(3), 5, 0.0), "add up to 0"),
        (lambda: integer_counts(torch.tensor([torch.inf]), 3), "finite"),
        (lambda: integer_counts(torch.zeros(3), -1), "total"),
        (lambda: class_gradients(untrained(0), DATA.public[0], DATA.public[1][:3], CLASSES), "one label"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()
