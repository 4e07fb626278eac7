"""Inverting Gradients recovers real images from one gradient, and from the update of several local steps."""

import numpy as np
import pytest
import torch

from attacks.gradient_inversion.inverting_gradients import inverting_gradients
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient, local_update
from privfl.data.catalog import load_dataset
from privfl.data.images import read_webp_strips
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import LocalTraining


def psnr(found, truth):
    return float(-10 * torch.log10((found - truth).square().mean()))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def real(name, rows):
    dataset = load_dataset(name, seed=0)
    pixels = Pixels.of(name)
    return dataset.test_inputs[rows], pixels.images(dataset.test_inputs[rows]), dataset.test_targets[rows], pixels


def test_an_mnist_image_is_recovered(data_folder):
    inputs, image, label, pixels = real("mnist", [1])
    network = sigmoid_lenet((1, 28, 28), 10, generator=generator(1))
    gradient = batch_gradient(network, inputs, label)
    found = inverting_gradients(
        network, gradient, label, (1, 28, 28), generator=generator(1), pixels=pixels, iterations=200
    )
    assert psnr(found.images, image) > 25
    assert found.iterations == 200


def test_a_cifar_image_is_recovered_in_the_published_range(data_folder):
    """Published for an untrained LeNet: 18.0 dB on average over 100 images (Geiping et al. 2020, Table 1)."""
    images, labels = read_webp_strips(data_folder / "cifar10" / "cifar10_test.npz")
    image, label = torch.from_numpy(images[1:2] / np.float32(255)), torch.from_numpy(labels[1:2].astype(np.int64))
    pixels = Pixels.of("cifar10")
    inputs = pixels.inputs(image)
    network = sigmoid_lenet((3, 32, 32), 10, generator=generator(1), spread=None)
    gradient = batch_gradient(network, inputs, label)
    found = inverting_gradients(
        network, gradient, label, (3, 32, 32), generator=generator(1), pixels=pixels, iterations=200
    )
    assert psnr(found.images, image) > 18
    assert psnr(image.mean((2, 3), keepdim=True).expand_as(image), image) < 17


TRAINING = LocalTraining(learning_rate=0.1, batch_size=1, epochs=2)


def test_the_update_of_several_local_steps_gives_both_images_away():
    inputs, images, labels, pixels = real("digits", [0, 1])
    network = sigmoid_lenet((1, 8, 8), 10, generator=generator(0))
    update = local_update(network, inputs, labels, TRAINING)
    found = inverting_gradients(
        network, update, labels, (1, 8, 8), generator=generator(0), pixels=pixels, training=TRAINING, iterations=110
    )
    for one, image in zip(found.images, images, strict=True):
        assert psnr(one, image) > 15
        assert psnr(torch.full_like(image, float(image.mean())), image) < 12


def test_restarts_keep_the_lowest_objective():
    inputs, _, label, pixels = real("digits", [0])
    network = sigmoid_lenet((1, 8, 8), 10, generator=generator(0))
    gradient = batch_gradient(network, inputs, label)
    usual = {"pixels": pixels, "iterations": 8}
    both = inverting_gradients(network, gradient, label, (1, 8, 8), generator=generator(5), restarts=2, **usual)
    first = inverting_gradients(network, gradient, label, (1, 8, 8), generator=generator(5), **usual)
    assert both.attempts == 2
    assert both.objective <= first.objective


def test_what_does_not_fit_is_refused():
    inputs, _, label, _ = real("digits", [0])
    network = sigmoid_lenet((1, 8, 8), 10, generator=generator(0))
    gradient = batch_gradient(network, inputs, label)
    with pytest.raises(ConfigError, match="int64"):
        inverting_gradients(network, gradient, label.double(), (1, 8, 8), generator=generator(0))
    with pytest.raises(ConfigError, match="iterations is 7"):
        inverting_gradients(network, gradient, label, (1, 8, 8), generator=generator(0), iterations=7)
    with pytest.raises(ConfigError, match="has the shapes"):
        inverting_gradients(network, gradient[1:], label, (1, 8, 8), generator=generator(0))
