"""GradInversion without batch statistics finds the labels of a batch and images that are better than their mean."""

import math

import pytest
import torch

from attacks.gradient_inversion.gradinversion import gradinversion, revealed_labels, scheduled
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError

DIGITS, PIXELS = load_dataset("digits", seed=0), Pixels.of("digits")


def generator(seed):
    return torch.Generator().manual_seed(seed)


def observed(rows, seed=0):
    network = sigmoid_lenet((1, 8, 8), 10, generator=generator(seed))
    inputs, labels = DIGITS.test_inputs[rows], DIGITS.test_targets[rows]
    return network, batch_gradient(network, inputs, labels), PIXELS.images(inputs), labels


def psnr(found, truth):
    return float(-10 * torch.log10((found - truth).square().mean()))


@pytest.mark.parametrize("seed", range(5))
def test_different_labels_of_a_batch_have_the_smallest_entries(seed):
    rows = [int((DIGITS.test_targets == label).nonzero()[seed]) for label in (1, 4, 7)]
    gradient = observed(rows, seed)[1]
    assert revealed_labels(gradient[-2], 3).tolist() == [1, 4, 7]


@pytest.mark.parametrize("extra", [{}, {"seeds": 2, "group_weight": 1e-3}], ids=["one seed", "two, pulled together"])
def test_a_digit_is_recovered_better_than_by_its_mean(extra):
    network, gradient, image, label = observed([3])
    found = gradinversion(
        network,
        gradient,
        label,
        (1, 8, 8),
        generator=generator(0),
        pixels=PIXELS,
        iterations=150,
        gradient_weight=1.0,
        **extra,
    )
    assert psnr(found.images, image) > psnr(torch.full_like(image, float(image.mean())), image) + 6
    again = batch_gradient(network, PIXELS.inputs(found.images), label)
    expected = sum(float((a - b).square().sum()) for a, b in zip(again, gradient, strict=True))
    assert found.objective == pytest.approx(expected, rel=1e-3)


def test_the_step_rises_linearly_and_falls_by_half_a_cosine():
    factors = [scheduled(number, 100, 10) for number in range(100)]
    assert factors[:10] == pytest.approx([(n + 1) / 11 for n in range(10)])
    assert factors[10] == 1
    assert factors[55] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 89 / 90)))


def test_what_does_not_fit_is_refused():
    network, gradient, _, label = observed([0])
    with pytest.raises(ConfigError, match="2 seeds"):
        gradinversion(network, gradient, label, (1, 8, 8), generator=generator(0), group_weight=0.1)
    with pytest.raises(ConfigError, match="int64"):
        gradinversion(network, gradient, label[:0], (1, 8, 8), generator=generator(0))
    with pytest.raises(ConfigError, match="at most as many images as classes"):
        revealed_labels(gradient[-2], 11)
