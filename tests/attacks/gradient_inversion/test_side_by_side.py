"""Inverting Gradients side by side: every image's search is the one that it would have alone."""

import pytest
import torch

import privfl as pf
from attacks.gradient_inversion.inverting_gradients import _search
from attacks.gradient_inversion.side_by_side import inverting_each, single_gradients
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient
from privfl.errors import ConfigError


@pytest.fixture(scope="module")
def world():
    data = pf.load_dataset("digits", seed=0)
    inputs, labels = data.test_inputs[:3], data.test_targets[:3]
    network = sigmoid_lenet(tuple(inputs.shape[1:]), 10, generator=torch.Generator().manual_seed(1))
    return network, inputs, labels, torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))


def test_each_gradient_is_that_of_a_batch_of_one(world):
    network, inputs, labels, _ = world
    found = single_gradients(network, inputs, labels)
    for row in range(3):
        alone = batch_gradient(network, inputs[row : row + 1], labels[row : row + 1])
        for part, expected in zip(found, alone, strict=True):
            torch.testing.assert_close(part[row], expected)


def test_images_are_those_of_searches_one_by_one(world):
    network, inputs, labels, start = world
    pixels, observed = Pixels.of("digits"), single_gradients(network, inputs, labels)
    images, objectives = inverting_each(network, observed, labels, start, pixels, iterations=24, variation=1e-3)
    for row in range(3):
        one = slice(row, row + 1)

        def simulated(at, one=one):
            return batch_gradient(network, at, labels[one], differentiable=True)

        alone = _search(
            simulated, [part[row] for part in observed], labels[one], start[one].clone(), pixels, 24, 0.1, 1e-3, True
        )
        torch.testing.assert_close(images[one], alone.images, atol=1e-4, rtol=0)
        assert float(objectives[row]) == pytest.approx(alone.objective, rel=1e-4)
    assert float((images - pixels.images(inputs)).square().mean()) < float(
        (pixels.images(start) - pixels.images(inputs)).square().mean()
    )


def test_shapes_that_do_not_fit_are_refused(world):
    network, inputs, labels, start = world
    observed = single_gradients(network, inputs, labels)
    with pytest.raises(ConfigError, match="give one of each for every image"):
        inverting_each(network, observed, labels, start[:2], Pixels.of("digits"))
    with pytest.raises(ConfigError, match="iterations"):
        inverting_each(network, observed, labels, start, Pixels.of("digits"), iterations=2)
