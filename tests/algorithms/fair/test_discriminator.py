"""GRP-FED's discriminator: its network, its losses in logits, and what training with them does."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privfl.algorithms.fair.discriminator import (
    LOSSES,
    discriminator_logits,
    discriminator_terms,
    new_discriminator,
    regulariser_terms,
)

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "grpfed.json").read_text())["discriminator"]
WIDTH, HIDDEN = 6, 16
LOGITS = torch.linspace(-9, 9, 37, dtype=torch.float64)


def fresh(seed=0, dtype=torch.float64):
    return new_discriminator(WIDTH, HIDDEN, torch.Generator().manual_seed(seed), dtype)


def features(shift, rows=200, seed=3):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def trained(kind, of_global, of_local, *, steps=400, rate=0.1):
    """A discriminator after ``steps`` of plain gradient descent on fixed features, and its last loss."""
    parameters = fresh()
    for _ in range(steps):
        leaf = parameters.requires_grad_()
        loss = discriminator_terms(discriminator_logits(leaf, of_global, HIDDEN), kind, is_global=True).mean()
        loss = loss + discriminator_terms(discriminator_logits(leaf, of_local, HIDDEN), kind, is_global=False).mean()
        parameters = (leaf - rate * torch.autograd.grad(loss, leaf)[0]).detach()
    return parameters, float(loss.detach())


def test_it_is_two_linear_layers_with_leaky_relu_between_them():
    parameters = fresh()
    twin = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, 1)).double()
    nn.utils.vector_to_parameters(parameters, twin.parameters())
    assert len(parameters) == sum(p.numel() for p in twin.parameters())
    rows = features(0.0)
    torch.testing.assert_close(discriminator_logits(parameters, rows, HIDDEN), twin(rows)[:, 0], rtol=0, atol=1e-13)


def test_its_initial_weights_fill_pytorchs_range_and_belong_to_their_seed():
    parameters = new_discriminator(64, 128, torch.Generator().manual_seed(1), torch.float32)
    first, second = parameters[: 128 * 65], parameters[128 * 65 :]
    assert 0.99 / 8 < float(first.abs().max()) <= 1 / 8
    assert 0.9 / math.sqrt(128) < float(second.abs().max()) <= 1 / math.sqrt(128)
    assert torch.equal(fresh(4), fresh(4))
    assert not torch.equal(fresh(4), fresh(5))


@pytest.mark.parametrize("kind", LOSSES)
def test_the_losses_are_the_logarithms_that_the_paper_writes(kind):
    chance = torch.sigmoid(LOGITS)
    of_global = discriminator_terms(LOGITS, kind, is_global=True)
    of_local = discriminator_terms(LOGITS, kind, is_global=False)
    if kind == "paper":
        torch.testing.assert_close(of_global, torch.log(1 - chance), rtol=1e-9, atol=0)
        torch.testing.assert_close(of_local, torch.log(chance), rtol=1e-9, atol=0)
    else:
        ones = torch.ones_like(LOGITS)
        bce = F.binary_cross_entropy_with_logits
        torch.testing.assert_close(of_global, bce(LOGITS, ones, reduction="none"), rtol=1e-11, atol=0)
        torch.testing.assert_close(of_local, bce(LOGITS, 0 * ones, reduction="none"), rtol=1e-11, atol=0)
    expected = -torch.log(chance) if kind == "bce" else torch.log(1 - chance)
    torch.testing.assert_close(regulariser_terms(LOGITS, kind), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_regularisers_gradient_in_the_logit_is_a_sigmoid(kind):
    leaf = LOGITS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(regulariser_terms(leaf, kind).sum(), leaf)
    expected = -torch.sigmoid(-LOGITS) if kind == "bce" else -torch.sigmoid(LOGITS)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", LOSSES)
def test_huge_logits_give_finite_losses_and_gradients(kind):
    leaf = torch.tensor([-1e4, -80.0, 80.0, 1e4], requires_grad=True)
    terms = [discriminator_terms(leaf, kind, is_global=flag) for flag in (True, False)] + [
        regulariser_terms(leaf, kind)
    ]
    for term in terms:
        assert bool(term.isfinite().all())
        assert bool(torch.autograd.grad(term.sum(), leaf, retain_graph=True)[0].isfinite().all())


@pytest.mark.parametrize("kind", LOSSES)
def test_it_learns_to_tell_separable_features_apart(kind):
    of_global, of_local = features(1.5), features(-1.5, seed=4)
    parameters, _ = trained(kind, of_global, of_local)
    scores = [discriminator_logits(parameters, rows, HIDDEN) for rows in (of_global, of_local)]
    accuracy = torch.cat([scores[0] > 0, scores[1] < 0]).double().mean()
    assert float(accuracy) > 0.95
    assert float(scores[0].sigmoid().mean()) > float(scores[1].sigmoid().mean())


@pytest.mark.parametrize("kind", LOSSES)
def test_features_moved_against_a_frozen_discriminator_pass_for_global_ones(kind):
    parameters, _ = trained(kind, features(1.5), features(-1.5, seed=4), steps=60)
    moved = features(-1.5, seed=5)
    before = float(discriminator_logits(parameters, moved, HIDDEN).sigmoid().mean())
    for _ in range(50):
        leaf = moved.requires_grad_()
        loss = regulariser_terms(discriminator_logits(parameters, leaf, HIDDEN), kind).mean()
        moved = (leaf - 20 * torch.autograd.grad(loss, leaf)[0]).detach()
    assert float(discriminator_logits(parameters, moved, HIDDEN).sigmoid().mean()) > before


def test_alike_features_cannot_be_told_apart_and_the_loss_ends_at_twice_log_two():
    rows = features(0.5)
    _, loss = trained("bce", rows, rows, steps=2000, rate=0.5)
    assert loss >= ORACLES["bce_at_equilibrium"] - 1e-12
    assert loss == pytest.approx(ORACLES["bce_at_equilibrium"], abs=2e-5)
    undecided = torch.zeros(1, dtype=torch.float64)
    assert float(regulariser_terms(undecided, "bce")) == pytest.approx(ORACLES["regulariser_at_equilibrium"], rel=1e-15)


def test_the_printed_loss_falls_below_that_value_even_for_alike_features():
    rows = features(0.5)
    assert trained("paper", rows, rows)[1] < -2 * ORACLES["regulariser_at_equilibrium"]
