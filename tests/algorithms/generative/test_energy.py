"""Energies, their mixture and the Langevin steps: golden values, finite differences, and a mixture of two normals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from privfl.algorithms.generative.energy import (
    chain_step,
    cosine_decay,
    from_sums,
    joint_energy,
    langevin,
    mixed,
    real_loss,
    saturation,
    shares,
    step_sizes,
    strengths,
    synthetic_loss,
)
from privfl.errors import ConfigError

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "fedevg.json").read_text())
GOLDEN = ORACLES["mixture"]
WEIGHTINGS = ("signed", "exact", "size")


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)).double()


def test_the_joint_energy_is_minus_the_logit_and_gives_the_classifiers_probabilities() -> None:
    network, points, labels = classifier(), normal(6, 4), torch.tensor([0, 1, 2, 2, 1, 0])
    logits = network(points)
    joint = torch.stack([joint_energy(network, points, torch.full((6,), c)) for c in range(3)], 1)
    assert torch.equal(joint, -logits)
    assert torch.equal(joint_energy(network, points, labels), joint[torch.arange(6), labels])
    torch.testing.assert_close(torch.softmax(-joint, 1), logits.softmax(1))


@pytest.mark.parametrize("weighting", ["signed", "exact"])
def test_shares_and_mixed_gradients_have_the_golden_values(weighting: str) -> None:
    energies, weights = tensor(GOLDEN["energies"]), tensor(GOLDEN["weights"])
    found = shares(energies, weights, weighting)
    gradients = tensor(GOLDEN["gradients"]).clamp(-GOLDEN["clip"], GOLDEN["clip"])
    torch.testing.assert_close(found, tensor(GOLDEN[weighting]["shares"]), rtol=0, atol=6e-7)
    torch.testing.assert_close(mixed(gradients, found), tensor(GOLDEN[weighting]["gradient"]), rtol=0, atol=6e-7)


def test_the_servers_step_has_the_golden_values() -> None:
    row = GOLDEN["step"]
    gradients = tensor(GOLDEN["gradients"]).clamp(-3, 3)
    pull = mixed(gradients, shares(tensor(GOLDEN["energies"]), tensor(GOLDEN["weights"]), "signed"))
    images = tensor(row["images"])
    noise = torch.full_like(images, 1e6)  # a deviation of zero silences it
    after = langevin(images, pull, noise, step=row["step"], deviation=row["deviation"], low=0.0, high=1.0)
    torch.testing.assert_close(after, tensor(row["after"]), rtol=0, atol=6e-7)


def mixture_energy(energies: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """E_mix = −log Σ_k π_k·exp(−E_k) [N], equation (3)."""
    return -((weights / weights.sum())[:, None] * torch.exp(-energies)).sum(0).log()


def test_check_1_the_exact_gradient_is_the_mixtures_by_finite_differences() -> None:
    networks, labels, weights = [classifier(k) for k in range(3)], torch.tensor([0, 1, 2, 1]), tensor([5.0, 3.0, 2.0])
    points = normal(4, 4, seed=9)

    def energies(at: torch.Tensor) -> torch.Tensor:
        return torch.stack([joint_energy(network, at, labels) for network in networks])

    leaf = points.clone().requires_grad_()
    gradients = torch.stack([torch.autograd.grad(row.sum(), leaf, retain_graph=True)[0] for row in energies(leaf)])
    found = mixed(gradients, shares(energies(points).detach(), weights, "exact"))
    with torch.no_grad():
        for column in range(4):
            step = torch.zeros(4, dtype=torch.float64)
            step[column] = 1e-5
            ends = [mixture_energy(energies(points + sign * step), weights) for sign in (1, -1)]
            torch.testing.assert_close(found[:, column], (ends[0] - ends[1]) / 2e-5, rtol=0, atol=1e-9)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_check_1_shares_are_a_distribution_over_clients_even_for_huge_energies(weighting: str) -> None:
    for scale in (1.0, 1e4):
        found = shares(scale * normal(5, 7), tensor([1.0, 2.0, 3.0, 4.0, 0.0]), weighting)
        assert found.isfinite().all()
        assert (found >= 0).all()
        torch.testing.assert_close(found.sum(0), torch.ones(7, dtype=torch.float64))
        assert not found[4].any(), "a client of weight zero has no share"


def test_check_1_exact_shares_ignore_a_constant_that_all_energies_share_and_signed_ones_do_not() -> None:
    energies, weights = normal(3, 5), tensor([1.0, 1.0, 2.0])
    for constant in (3.0, -1e4):
        moved = shares(energies + constant, weights, "exact")
        torch.testing.assert_close(moved, shares(energies, weights, "exact"), rtol=0, atol=1e-11)
    assert not torch.allclose(shares(energies + 0.7, weights, "signed"), shares(energies, weights, "signed"))


def test_check_2_equal_signs_give_the_average_and_one_client_gives_its_own_gradient() -> None:
    weights, gradients = tensor([1.0, 3.0]), normal(2, 4, 6)
    average = 0.25 * gradients[0] + 0.75 * gradients[1]
    for energies in (normal(2, 4).abs() + 0.1, -normal(2, 4).abs() - 0.1):
        torch.testing.assert_close(mixed(gradients, shares(energies, weights, "signed")), average)
    torch.testing.assert_close(mixed(gradients, shares(normal(2, 4), weights, "size")), average)
    for weighting in WEIGHTINGS:
        torch.testing.assert_close(
            mixed(gradients[:1], shares(normal(1, 4), weights[:1], weighting)), gradients[0], rtol=0, atol=0
        )


def test_check_2_turning_an_energys_sign_turns_e_into_its_inverse() -> None:
    energies = tensor([-3.0, -1e-9, 0.0, 1e-9, 5.0])
    expected = tensor([math.e, math.e, 1.0, 1 / math.e, 1 / math.e])
    torch.testing.assert_close(strengths(energies), expected)
    torch.testing.assert_close(strengths(-energies), 1 / expected)


def test_one_client_that_knows_a_class_among_ten_has_a_share_of_451_per_mille() -> None:
    energies = torch.ones(10, 1, dtype=torch.float64)
    energies[0] = -1
    assert float(shares(energies, torch.ones(10), "signed")[0]) == pytest.approx(math.e / (math.e + 9 / math.e))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["exact", "signed"])
def test_check_3_exact_shares_sample_the_mixture_and_signed_ones_lose_the_smaller_mode(weighting: str) -> None:
    """20,000 chains: the mass has standard error 0.0033, so two points are six of them."""
    toy = ORACLES["toy_mixture"]
    generator = torch.Generator().manual_seed(3)
    chains, step, deviation = 20_000, toy["step"], toy["deviation"]
    centres, weights = tensor([-toy["centre"], toy["centre"]])[:, None], tensor(toy["weights"])
    right = torch.rand(chains, generator=generator) < toy["weights"][1]
    x = torch.where(right, toy["centre"], -toy["centre"]).double()
    x += deviation * torch.randn(chains, generator=generator, dtype=torch.float64)
    for _ in range(2000):
        gap = (x - centres) / deviation
        energies = gap.square() / 2 + math.log(deviation * math.sqrt(2 * math.pi))  # minus the log density
        gradients = gap / deviation
        pull = mixed(gradients, shares(energies, weights, weighting))
        noise = math.sqrt(2 * step) * torch.randn(chains, generator=generator, dtype=torch.float64)
        x = x - step * pull + noise
    mass, target = float((x > 0).double().mean()), toy["right_of_0"]["target"]
    if weighting == "exact":
        assert abs(mass - target) < 0.02
    else:
        assert mass < target - 0.1
        assert float(x.mean()) == pytest.approx(toy["signed_mean"], abs=0.03)
        assert float(x.std()) == pytest.approx(toy["signed_deviation"], abs=0.02)


def test_check_4_a_step_stays_within_the_pixels_and_check_6_no_step_and_no_noise_only_clip() -> None:
    images, pull, noise = (normal(3, 1, 4, 4, seed=seed) for seed in range(3))
    after = langevin(images, 30 * pull, noise, step=10.0, deviation=1.0, low=0.0, high=1.0)
    assert after.shape == images.shape
    assert 0 <= float(after.min()) <= float(after.max()) <= 1
    still = langevin(images, pull, noise, step=0.0, deviation=0.0, low=0.0, high=1.0)
    assert torch.equal(still, images.clamp(0, 1))
    assert torch.equal(langevin(still, pull, noise, step=0.0, deviation=0.0, low=0.0, high=1.0), still)


def test_check_5_the_schedule_has_the_published_values_and_never_rises() -> None:
    row = ORACLES["schedule"]
    steps = step_sizes(row["rounds"], row["start"], row["end"], "as-coded")
    for number, value in row["steps"].items():
        assert float(steps[int(number) - 1]) == pytest.approx(value, abs=6e-5)
    plain = step_sizes(row["rounds"], row["start"], row["end"], "cosine")
    assert float(plain[249]) == pytest.approx(row["cosine_half_way"], abs=1e-2)
    for schedule in (steps, plain, step_sizes(1, 10.0, 1.0, "as-coded"), step_sizes(3, 2.0, 2.0, "cosine")):
        assert (schedule.diff() <= 1e-12).all()
        assert float(schedule[-1]) in (1.0, 2.0)
    assert float(cosine_decay(7)[0]) == 1.0
    assert float(cosine_decay(7)[-1]) < 1e-30


def test_a_schedule_without_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="a schedule of 0 rounds has no step; give rounds ≥ 1"):
        step_sizes(0, 10.0, 1.0, "as-coded")


def test_check_8_one_small_step_lowers_the_loss_and_the_gap_between_real_and_chain_energies() -> None:
    network, labels = classifier(), torch.tensor([0, 1, 2, 2, 1, 0])
    inputs, images, negatives = (normal(6, 4, seed=seed) for seed in (1, 2, 3))

    def loss() -> torch.Tensor:
        synthetic = synthetic_loss(network, images, negatives, labels, gamma=0.1)
        return real_loss(network, inputs, labels).mean() + synthetic.mean()

    def gap() -> torch.Tensor:
        return (joint_energy(network, inputs, labels) - joint_energy(network, negatives, labels)).mean()

    before, gap_before = loss(), float(gap().detach())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, betas=(0.5, 0.999))
    before.backward()
    optimizer.step()
    assert float(loss().detach()) < float(before.detach())
    assert float(gap().detach()) < gap_before


def test_the_losses_terms_are_those_of_equation_10() -> None:
    network, labels = classifier(), torch.tensor([2, 0, 1])
    inputs, images, negatives = (normal(3, 4, seed=seed) for seed in (4, 5, 6))
    rows = torch.arange(3)
    logits, negative = network(inputs), -network(negatives)[rows, labels]
    entropy = -logits.log_softmax(1)[rows, labels]
    energy = -logits[rows, labels]
    torch.testing.assert_close(real_loss(network, inputs, labels), entropy + energy)
    torch.testing.assert_close(
        real_loss(network, inputs, labels, penalty=0.5), entropy + energy + 0.5 * energy * energy
    )
    fitted = -network(images).log_softmax(1)[rows, labels]
    found = synthetic_loss(network, images, negatives, labels, gamma=0.3, penalty=0.5)
    torch.testing.assert_close(found, 0.3 * fitted - negative + 0.5 * negative * negative)


def test_check_8_without_gamma_the_loss_does_not_see_the_downloaded_images() -> None:
    network, labels, negatives = classifier(), torch.tensor([0, 1]), normal(2, 4, seed=1)
    images = [normal(2, 4, seed=seed).requires_grad_() for seed in (2, 3)]
    losses = [synthetic_loss(network, image, negatives, labels, gamma=0.0) for image in images]
    assert torch.equal(*losses)
    assert not torch.autograd.grad(losses[0].sum(), images[0])[0].any()


def test_a_step_of_the_chain_clips_the_gradient_and_not_the_pixels() -> None:
    points, gradient, noise = tensor([0.5, 0.5, 0.5]), tensor([10.0, -10.0, 1.0]), tensor([1.0, 1.0, 2.0])
    after = chain_step(points, gradient, noise, step=2.0, deviation=0.01, clip=3.0)
    torch.testing.assert_close(after, tensor([0.5 - 6 + 0.01, 0.5 + 6 + 0.01, 0.5 - 2 + 0.02]))


def test_check_14_the_ratio_of_sums_is_equation_5() -> None:
    sizes, energies = tensor([10.0, 3.0, 7.0, 1.0]), normal(4, 5)
    gradients = normal(4, 5, 6, seed=1).clamp(-3, 3)
    s = strengths(energies)[:, :, None]
    total = (sizes[:, None, None] * torch.cat([s * gradients, s], 2)).sum(0)
    torch.testing.assert_close(
        from_sums(total, float(sizes.sum())), mixed(gradients, shares(energies, sizes, "signed")), rtol=0, atol=1e-12
    )


def test_check_14_fixed_point_sums_change_it_by_no_more_than_their_resolution() -> None:
    sizes, energies = tensor([600.0, 580.0, 10.0]), normal(3, 5)
    gradients = normal(3, 5, 6, seed=1).clamp(-3, 3)
    s = strengths(energies)[:, :, None]
    terms, resolution = sizes[:, None, None] * torch.cat([s * gradients, s], 2), 2.0**-16
    rounded = ((terms / resolution).round() * resolution).sum(0)
    exact = mixed(gradients, shares(energies, sizes, "signed"))
    bound = 3 * resolution / 2 * (1 + 3) / (float(sizes.sum()) / math.e)
    assert float((from_sums(rounded, float(sizes.sum())) - exact).abs().max()) <= bound


def test_a_denominator_that_noise_made_small_or_negative_is_lifted_to_its_least_value() -> None:
    total = tensor([[4.0, -5.0], [4.0, 0.0], [4.0, 100.0]])
    expected = tensor([[4.0 * math.e / 10], [4.0 * math.e / 10], [0.04]])
    torch.testing.assert_close(from_sums(total, 10.0), expected)


def test_saturation_counts_the_pixels_on_a_bound() -> None:
    assert float(saturation(tensor([[0.0, 0.5], [1.0, 0.2]]), 0.0, 1.0)) == 0.5
