"""GRNN's generator explains a feature without public data, and its objective is the published one."""

import pytest
import torch
import torch.nn.functional as F

from attacks.images.pixels import Pixels
from attacks.prototypes.grnn import NOISE, generator_network, grnn_inversion
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError

DIGITS, PIXELS = load_dataset("digits", seed=0), Pixels.of("digits")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8)])
def test_the_generator_draws_images_of_the_asked_shape(shape):
    network = generator_network(shape, base=8)
    images = network(torch.randn(2, NOISE, generator=generator()))
    assert images.shape == (2, *shape)
    assert 0 < float(images.detach().min()) < float(images.detach().max()) < 1


def test_a_single_samples_feature_that_is_the_image_gives_the_image():
    image = F.interpolate(PIXELS.images(DIGITS.test_inputs[:1]), size=(16, 16), mode="bilinear")
    found, distance = grnn_inversion(
        lambda images: images.flatten(1),
        image.flatten(),
        (1, 16, 16),
        generator=generator(),
        iterations=200,
        momentum=0.9,
        base=16,
    )
    assert float((found - image).norm() / image.norm()) == pytest.approx(distance, rel=1e-4)
    assert distance < 0.12
    mean = F.interpolate(PIXELS.images(DIGITS.inputs).mean(0, keepdim=True), size=(16, 16), mode="bilinear")
    assert float((mean - image).norm() / image.norm()) > 0.4


def test_several_images_share_a_mean_that_none_of_them_is():
    images = PIXELS.images(DIGITS.test_inputs[:4])
    found, distance = grnn_inversion(
        lambda batch: batch.flatten(1),
        images.flatten(1).mean(0),
        (1, 8, 8),
        generator=generator(),
        images=4,
        iterations=300,
        base=16,
    )
    assert found.shape == images.shape
    apart = (found.mean(0) - images.mean(0)).norm() / images.mean(0).norm()
    assert float(apart) == pytest.approx(distance, rel=1e-4)
    assert distance < 0.25


def test_what_cannot_be_explained_is_refused():
    def plain(images):
        return images.flatten(1)

    for target in (torch.zeros(64), torch.full((64,), torch.nan), torch.ones(2, 64)):
        with pytest.raises(ConfigError, match="one finite vector"):
            grnn_inversion(plain, target, (1, 8, 8), generator=generator())
    with pytest.raises(ConfigError, match="at least 1 of each"):
        grnn_inversion(plain, torch.ones(64), (1, 8, 8), generator=generator(), images=0)
    with pytest.raises(ConfigError, match="cannot be halved"):
        generator_network((1, 7, 7))
