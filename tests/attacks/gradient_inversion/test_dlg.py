"""DLG and iDLG recover single real images and their labels from the gradient of an untrained LeNet."""

import pytest
import torch

from attacks.gradient_inversion.dlg import dlg, revealed_label
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError


def psnr(found, truth):
    return float(-10 * torch.log10((found - truth).square().mean()))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def victim(shape, seed, image, label):
    network = sigmoid_lenet(shape, 10, generator=generator(seed))
    return network, batch_gradient(network, image, label)


def real(name, row):
    dataset = load_dataset(name, seed=0)
    return Pixels.of(name).images(dataset.test_inputs[row : row + 1]), dataset.test_targets[row : row + 1]


@pytest.mark.parametrize("row", [0, 3])
def test_a_digit_and_its_label_are_recovered(row):
    image, label = real("digits", row)
    network, gradient = victim((1, 8, 8), row, image, label)
    found = dlg(network, gradient, (1, 8, 8), generator=generator(row), classes=10, iterations=60)
    assert int(found.labels[0]) == int(label)
    assert psnr(found.images, image) > 30
    assert psnr(torch.full_like(image, float(image.mean())), image) < 12


def idlg(network, gradient, shape, **settings):
    """DLG for a single image whose label is first read off the head, the network's last matrix."""
    head = gradient[-2]
    return dlg(network, gradient, shape, classes=len(head), labels=[revealed_label(head)], **settings)


def test_idlg_reads_the_label_first():
    image, label = real("digits", 1)
    network, gradient = victim((1, 8, 8), 1, image, label)
    found = idlg(network, gradient, (1, 8, 8), generator=generator(1), iterations=60)
    assert int(found.labels[0]) == int(label)
    assert psnr(found.images, image) > 30


def test_an_mnist_image_is_recovered(data_folder):
    image, label = real("mnist", 1)
    network, gradient = victim((1, 28, 28), 1, image, label)
    found = idlg(network, gradient, (1, 28, 28), generator=generator(1), iterations=30, attempts=2)
    assert int(found.labels[0]) == int(label)
    assert psnr(found.images, image) > 40


@pytest.mark.parametrize("seed", range(5))
def test_the_label_is_the_only_row_that_points_against_positive_features(seed):
    inputs = torch.rand(20, 1, 8, 8, generator=generator(seed))
    network = sigmoid_lenet((1, 8, 8), 10, generator=generator(seed))
    for number in range(20):
        gradient = batch_gradient(network, inputs[number : number + 1], torch.tensor([number % 10]))
        assert revealed_label(gradient[-2]) == number % 10


def test_two_images_come_back_in_some_order():
    images, labels = (torch.cat(parts) for parts in zip(real("digits", 0), real("digits", 1), strict=True))
    network, gradient = victim((1, 8, 8), 0, images, labels)
    found = dlg(network, gradient, (1, 8, 8), generator=generator(0), classes=10, batch=2, iterations=100)
    order = [int((found.images - image).square().flatten(1).sum(1).argmin()) for image in images]
    assert sorted(order) == [0, 1]
    assert min(psnr(found.images[i], image) for i, image in zip(order, images, strict=True)) > 20


def test_what_does_not_fit_is_refused():
    image, label = real("digits", 0)
    network, gradient = victim((1, 8, 8), 0, image, label)
    with pytest.raises(ConfigError, match="for a batch of 2"):
        dlg(network, gradient, (1, 8, 8), generator=generator(0), classes=10, batch=2, labels=[1])
    with pytest.raises(ConfigError, match=r"give \[classes, features\]"):
        revealed_label(gradient[-1])
