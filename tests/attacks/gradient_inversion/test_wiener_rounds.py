"""The estimate over several rounds: they are pooled by their noise, and rounds without the image hardly count."""

import math

import pytest
import torch

import attacks.gradient_inversion.wiener as module
from attacks.auxiliary import Records
from attacks.gradient_inversion.wiener import Attacker, wiener
from attacks.observations.gradients import batch_gradient
from privfl.models.registry import build
from tests.attacks.federations import DIGITS

SHAPE = (1, 8, 8)
PUBLIC = Records(DIGITS.inputs[400:1400], DIGITS.targets[400:1400])
KNOWN = Attacker(PUBLIC, 10)
PRIOR = KNOWN.prior
NETWORKS = [build("two-nn", SHAPE, 10, seed=seed) for seed in range(16)]


def messages(row, noises, present=None, seed=0):
    """Gradients of a digit at as many networks, made of length 1, under these noises; where not present, noise only."""
    generator = torch.Generator().manual_seed(1000 * seed + row)
    found = []
    for k, noise in enumerate(noises):
        gradient = batch_gradient(NETWORKS[k], DIGITS.inputs[row : row + 1], DIGITS.targets[row : row + 1])
        length = torch.cat([part.flatten() for part in gradient]).norm()
        there = 1.0 if present is None or present[k] else 0.0
        noisy = [there * part / length + noise * torch.randn(part.shape, generator=generator) for part in gradient]
        found.append((NETWORKS[k], noisy))
    return found


def psnr(found, row):
    """In dB over the range of a digit's pixels."""
    span = float(DIGITS.inputs.max() - DIGITS.inputs.min())
    return float(10 * torch.log10(span**2 / (found.view(SHAPE) - DIGITS.inputs[row]).square().mean().double()))


def mean_and_error(values):
    """The mean and the half-width of its 95 % interval."""
    numbers = torch.tensor(values, dtype=torch.float64)
    return float(numbers.mean()), 1.96 * float(numbers.std()) / math.sqrt(len(numbers))


def test_with_known_outward_gradients_the_pooled_estimate_solves_the_normal_equations(monkeypatch):
    """x ~ N(μ, Σ) and G_k = l_k·xᵀ + noise of deviation s_k: (Σ⁻¹ + Σ_k ‖l_k‖²/s_k²·I)x = Σ⁻¹μ + Σ_k G_kᵀl_k/s_k²."""
    generator = torch.Generator().manual_seed(3)
    noises = [0.02, 0.05, 0.4]
    sights = [module._sight(*message) for message in messages(5, noises)]
    outward = {id(one.layer): torch.randn(200, generator=generator).double() for one in sights}
    monkeypatch.setattr(module, "_outward", lambda network, layer, *rest: (outward[id(layer)], 0.0))
    at = PRIOR.estimate(4, *module._pooled(sights, PRIOR.means[4], 4, SHAPE))

    inverse = (PRIOR.vectors @ torch.diag(1 / PRIOR.values) @ PRIOR.vectors.T).numpy()
    left, right = inverse.copy(), inverse @ PRIOR.means[4].numpy()
    for one in sights:
        told = outward[id(one.layer)].numpy()
        left += told @ told / one.noise**2 * torch.eye(64).double().numpy()
        right += one.weight.numpy().T @ told / one.noise**2
    expected = torch.linalg.solve(torch.from_numpy(left), torch.from_numpy(right))
    torch.testing.assert_close(at, expected, rtol=1e-7, atol=1e-9)


def test_one_round_gives_what_it_gave_before_there_were_several():
    """The formulas of one round, written out: no shares, no sum."""
    for noise in (0.01, 0.3):
        (network, gradient), *_ = seen = messages(2, [noise])
        (one,) = [module._sight(*message) for message in seen]
        sizes = torch.linalg.svdvals(one.layer)
        deviation = math.sqrt(float(sizes[1:].square().sum()) / ((len(one.layer) - 1) * (one.layer.shape[1] - 1)))
        chances = module._label_chances([one], PRIOR, SHAPE)
        total = torch.zeros_like(PRIOR.means[0])
        for label in (chances > 1e-3).nonzero().flatten().tolist():
            at = PRIOR.means[label]
            for _ in range(module.PASSES):
                outward, twice = module._outward(network, one.layer, at, label, deviation, SHAPE)
                power = max(float(outward @ outward), 1e-300)
                told = (gradient[0].double().T @ outward - twice * at) / power
                at = PRIOR.estimate(label, told, deviation**2 / power)
            total += chances[label] * at
        found, label = wiener(seen, PRIOR, SHAPE)
        expected = total / chances[chances > 1e-3].sum()
        torch.testing.assert_close(found.view(-1), expected.float(), rtol=1e-5, atol=1e-6)
        assert label == int(chances.argmax())


def test_label_chances_multiply_over_rounds_and_the_shares_count_once():
    sights = [module._sight(*message) for message in messages(7, [0.5, 0.5, 0.5])]
    single = torch.stack([module._label_chances([one], PRIOR, SHAPE) for one in sights])
    expected = (single / PRIOR.shares).prod(0) * PRIOR.shares
    torch.testing.assert_close(module._label_chances(sights, PRIOR, SHAPE), expected / expected.sum())


def test_sixteen_rounds_show_the_image_at_a_noise_at_which_one_shows_the_class_mean():
    one, many, null = [], [], []
    for row in range(20):
        seen = messages(row, [0.1] * 16)
        one.append(psnr(KNOWN.image(seen[:1], SHAPE, 0.1)[0], row))
        found, label = KNOWN.image(seen, SHAPE, 0.1)
        many.append(psnr(found, row))
        null.append(psnr(PRIOR.means[label].float(), row))
    gain, error = mean_and_error([a - b for a, b in zip(many, one, strict=True)])
    assert gain > error
    gain, error = mean_and_error([a - b for a, b in zip(many, null, strict=True)])
    assert gain > error


@pytest.mark.parametrize("noise", [0.03, 0.3, 3.0])
def test_pooled_rounds_are_never_below_the_best_null(noise):
    own, nulls = [], {"class": [], "mean": []}
    for row in range(12):
        found, label = KNOWN.image(messages(row, [noise] * 4), SHAPE, noise)
        own.append(psnr(found, row))
        nulls["class"].append(psnr(PRIOR.means[label].float(), row))
        nulls["mean"].append(psnr(PRIOR.centre.float(), row))
    for null in nulls.values():
        gain, error = mean_and_error([a - b for a, b in zip(own, null, strict=True)])
        assert gain > -error


def test_rounds_in_whose_batch_the_image_was_not_hardly_change_the_estimate():
    present = [k % 2 == 0 for k in range(8)]
    heads = {network: module._heads(network, PRIOR, SHAPE) for network in NETWORKS[:8]}
    change, against = [], []
    for row in range(20):
        seen = messages(row, [0.03] * 8, present)
        sampled, _ = wiener(seen[::2], PRIOR, SHAPE, heads)
        everything, _ = wiener(seen, PRIOR, SHAPE, heads)
        change.append(psnr(everything, row) - psnr(sampled, row))
        against.append(psnr(everything, row) - psnr(wiener(seen[1::2], PRIOR, SHAPE, heads)[0], row))
    assert abs(sum(change) / 20) < 0.5
    gain, error = mean_and_error(against)
    assert gain > error


def test_a_round_of_zeros_says_nothing_and_many_exact_rounds_are_exact():
    seen = messages(0, [0.0, 0.0], [True, False])
    for order in (seen, seen[::-1]):
        found, label = KNOWN.image(order, SHAPE)
        torch.testing.assert_close(found, DIGITS.inputs[0], atol=1e-3, rtol=1e-3)
        assert label == int(DIGITS.targets[0])


def test_the_weights_of_a_rehearsal_are_kept_for_noises_that_are_nearly_the_same(monkeypatch):
    known = Attacker(PUBLIC, 10)
    first = known.weights(NETWORKS[:2], [0.1, 0.2], [1.0, 1.0], SHAPE)
    monkeypatch.setattr(module, "wiener", None)
    assert known.weights(NETWORKS[:2], [0.101, 0.199], [1.01, 1.0], SHAPE) is first
    with pytest.raises(TypeError):
        known.weights(NETWORKS[:2], [0.2, 0.1], [1.0, 1.0], SHAPE)
