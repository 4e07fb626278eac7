"""The relaxed balanced soft-max: checks 1 to 4 of ReBaFL's specification, and published or 50-digit values."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from privfl.algorithms.label_skew.balanced_softmax import balanced_cross_entropy, label_counts, smoothed_prior

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "rebafl.json").read_text())
COUNTS = torch.tensor([3.0, 0.0, 7.0, 11.0, 0.0])


def draws(samples=40, classes=5, dtype=torch.float64, present=(0, 2, 3)):
    """Random logits [samples, classes], and targets among the ``present`` classes."""
    rng = np.random.default_rng(7)
    targets = torch.from_numpy(rng.choice(present, size=samples))
    return torch.from_numpy(rng.normal(size=(samples, classes))).to(dtype), targets


def gradient_of_logits(logits, targets, prior):
    logits = logits.clone().requires_grad_()
    loss = balanced_cross_entropy(logits, targets, prior.log()).mean()
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("row", ORACLES["balanced_softmax"]["rows"], ids=lambda row: f"epsilon {row['epsilon']}")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_the_loss_is_that_of_fifty_digits(row, dtype, tolerance):
    prior = smoothed_prior(torch.tensor(row["counts"], dtype=dtype), row["epsilon"])
    logits = torch.tensor([row["logits"]], dtype=dtype)
    found = float(balanced_cross_entropy(logits, torch.tensor([row["target"]]), prior.log()))
    assert found == pytest.approx(row["loss"], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 1.0])
def test_the_smoothed_prior_is_a_distribution_with_a_floor_of_epsilon_over_the_classes(epsilon):
    prior = smoothed_prior(COUNTS.double(), epsilon)
    assert float(prior.sum()) == pytest.approx(1, abs=1e-15)
    assert float(prior[1]) == pytest.approx(epsilon / 5, abs=1e-16)
    assert float(prior[3]) == pytest.approx((1 - epsilon) * 11 / 21 + epsilon / 5, abs=1e-15)


def test_noisy_counts_below_zero_count_as_zero_and_nothing_left_is_uniform():
    assert smoothed_prior(torch.tensor([-4.0, 3.0, 1.0]), 0.0).tolist() == [0.0, 0.75, 0.25]
    assert smoothed_prior(torch.tensor([-4.0, -1.0, 0.0, -3.0]), 0.0).tolist() == [0.25] * 4


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_epsilon_1_is_plain_cross_entropy(dtype, tolerance):
    logits, targets = draws(dtype=dtype)
    found = balanced_cross_entropy(logits, targets, smoothed_prior(COUNTS.to(dtype), 1.0).log())
    expected = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0])
def test_a_uniform_label_distribution_makes_it_plain_cross_entropy_whatever_epsilon(epsilon):
    logits, targets = draws(dtype=torch.float32)
    prior = smoothed_prior(torch.full((5,), 6.0), epsilon)
    expected = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(balanced_cross_entropy(logits, targets, prior.log()), expected, rtol=0, atol=1e-6)


def test_without_smoothing_a_missing_class_gets_no_gradient_at_all():
    logits, targets = draws()
    _, gradient = gradient_of_logits(logits, targets, smoothed_prior(COUNTS.double(), 0.0))
    assert torch.equal(gradient[:, [1, 4]], torch.zeros(40, 2, dtype=torch.float64))
    assert float(gradient[:, [0, 2, 3]].abs().min()) > 0
    renumbered = torch.tensor([0, -1, 1, 2, -1])[targets]
    client_state = logits[:, [0, 2, 3]] + COUNTS.double()[[0, 2, 3]].log()
    present = F.cross_entropy(client_state, renumbered, reduction="none")
    masked = balanced_cross_entropy(logits, targets, smoothed_prior(COUNTS.double(), 0.0).log())
    torch.testing.assert_close(masked, present, rtol=0, atol=1e-14)


def test_a_client_with_one_class_has_no_loss_and_no_gradient_without_smoothing():
    logits, _ = draws()
    targets = torch.full((40,), 2)
    loss, gradient = gradient_of_logits(logits, targets, smoothed_prior(torch.tensor([0.0, 0, 9, 0, 0]).double(), 0.0))
    assert float(loss) == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("epsilon", [0.001, 0.1])
def test_with_smoothing_the_missing_classes_of_such_a_client_are_pushed_by_their_small_prior(epsilon):
    logits, _ = draws(samples=1)
    counts = torch.tensor([0.0, 0, 9, 0, 0]).double()
    _, gradient = gradient_of_logits(logits, torch.tensor([2]), smoothed_prior(counts, epsilon))
    weights = [(1 - epsilon) * (c == 2) + epsilon / 5 for c in range(5)]
    terms = [weight * math.exp(z) for weight, z in zip(weights, logits[0].tolist(), strict=True)]
    for missing in (0, 1, 3, 4):
        expected = epsilon / 5 * math.exp(float(logits[0, missing])) / sum(terms)
        assert float(gradient[0, missing]) == pytest.approx(expected, rel=1e-12)
        assert float(gradient[0, missing]) > 0


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0])
def test_one_step_of_the_head_and_of_the_features_is_the_closed_form(epsilon):
    """Equations (4) and (5), summed in loops of NumPy."""
    rng, rate, samples, width = np.random.default_rng(3), 0.1, 40, 6
    _, targets = draws()
    h, phi = rng.normal(size=(samples, width)), rng.normal(size=(5, width))
    features = torch.from_numpy(h).requires_grad_()
    head = torch.from_numpy(phi).requires_grad_()
    log_prior = smoothed_prior(COUNTS.double(), epsilon).log()
    loss = balanced_cross_entropy(features @ head.T, targets, log_prior).mean()
    by_head, by_features = torch.autograd.grad(loss, (head, features))
    y, counts = targets.numpy(), COUNTS.double().numpy()
    weighted = np.exp(h @ phi.T) * ((1 - epsilon) * counts / counts.sum() + epsilon / 5)
    q = weighted / weighted.sum(1, keepdims=True)
    for c in range(5):
        step = sum((1 - q[j, c]) * h[j] if y[j] == c else -q[j, c] * h[j] for j in range(samples))
        np.testing.assert_allclose(-rate * by_head[c].numpy(), rate / samples * step, rtol=0, atol=1e-14)
    for j in range(samples):
        others = sum(q[j, c] * phi[c] for c in range(5) if c != y[j])
        step = rate / samples * ((1 - q[j, y[j]]) * phi[y[j]] - others)
        np.testing.assert_allclose(-rate * by_features[j].numpy(), step, rtol=0, atol=1e-14)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_give_finite_losses_and_gradients(epsilon, dtype):
    logits = torch.tensor([[1e4, -1e4, 0, 1e4, -1e4], [-1e4, 1e4, 1e4, -1e4, 0]], dtype=dtype)
    loss, gradient = gradient_of_logits(logits, torch.tensor([2, 0]), smoothed_prior(COUNTS.to(dtype), epsilon))
    assert math.isfinite(float(loss))
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize(("epsilon", "row"), [(1.0, "cross_entropy"), (0.01, "relaxed")])
def test_the_bias_gradient_of_a_skewed_batch_is_measured_against_the_prior(epsilon, row):
    counts = torch.zeros(10, dtype=torch.float64)
    counts[:2] = 16
    targets = torch.tensor([0] * 8 + [1] * 24)
    logits = torch.zeros(32, 10, dtype=torch.float64)
    _, gradient = gradient_of_logits(logits, targets, smoothed_prior(counts, epsilon))
    assert gradient.sum(0)[:2].tolist() == pytest.approx(ORACLES["bias_gradient"][row], abs=5e-4)


def test_the_label_statistic_adds_up_to_the_histogram():
    _, targets = draws()
    rows = label_counts(torch.nn.Identity(), torch.zeros(40, 1), targets, classes=5)
    assert rows.sum(0).tolist() == np.bincount(targets.numpy(), minlength=5).tolist()
    assert rows.norm(dim=1).tolist() == [1.0] * 40
