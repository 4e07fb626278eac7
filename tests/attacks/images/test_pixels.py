"""Pixels and inputs are each other's inverse inside [0, 1], and a dataset's constants are the catalog's."""

import pytest
import torch

from attacks.auxiliary import checked_images
from attacks.images.pixels import Pixels, pixels_of, told
from privfl.data.catalog import info
from privfl.errors import ConfigError

COLOUR = Pixels((0.4, 0.5, 0.6), (0.2, 0.25, 0.5))


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_inputs_are_normalised_channel_by_channel_and_back():
    given = images(2, 3, 4, 5)
    inputs = COLOUR.inputs(given)
    for channel in range(3):
        expected = (given[:, channel] - COLOUR.mean[channel]) / COLOUR.std[channel]
        torch.testing.assert_close(inputs[:, channel], expected)
    torch.testing.assert_close(COLOUR.images(inputs), given)


def test_what_no_pixel_can_give_is_projected_to_the_nearest_that_can():
    inputs = COLOUR.inputs(images(2, 3, 4, 4) * 3 - 1)
    boxed = COLOUR.box(inputs)
    torch.testing.assert_close(boxed, COLOUR.inputs((images(2, 3, 4, 4) * 3 - 1).clamp(0, 1)))
    torch.testing.assert_close(COLOUR.box(boxed), boxed)


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_a_datasets_constants_are_the_catalogs(name):
    found = Pixels.of(name)
    assert (found.mean, found.std) == (tuple(info(name).mean), tuple(info(name).std))


def test_what_is_no_image_is_refused():
    with pytest.raises(ConfigError, match="no normalised images"):
        Pixels.of("heart-disease")
    with pytest.raises(ConfigError, match="1 means and 2 std"):
        Pixels((0.0,), (1.0, 1.0))
    with pytest.raises(ConfigError, match="positive numbers"):
        Pixels((0.0,), (0.0,))
    with pytest.raises(ConfigError, match=r"lie in \[0, 2\]"):
        checked_images(torch.tensor([0.0, 2.0]).view(1, 1, 1, 2))
    with pytest.raises(ConfigError, match=r"lie in \[nan"):
        checked_images(torch.full((1, 1, 2, 2), torch.nan))
    for wrong in (torch.zeros(3, 4, 4), torch.zeros(0, 1, 4, 4), torch.zeros(1, 1, 4, 4, dtype=torch.int64)):
        with pytest.raises(ConfigError, match="give floats"):
            checked_images(wrong)


def test_images_of_ones_own_are_pixels_unless_the_attack_is_told_otherwise():
    assert pixels_of("arrays", images(2, 3, 4, 5), None) == Pixels()
    assert pixels_of("digits", images(2, 1, 8, 8) * 9, None) == Pixels.of("digits")
    given = Pixels((0.0,), (1 / 255,))
    assert pixels_of("arrays", images(2, 3, 4, 5) * 255, given) is given
    assert pixels_of("digits", images(2, 1, 4, 5) * 255, given) is given
    assert told(None) == {}
    assert told(COLOUR) == {"pixels": {"mean": COLOUR.mean, "std": COLOUR.std}}


def test_the_range_of_ones_own_images_is_never_guessed():
    with pytest.raises(ConfigError, match=r"public inputs, taken as they are, lie in .* set the attack's pixels"):
        pixels_of("arrays", images(2, 1, 4, 5) * 255, None)
    with pytest.raises(ConfigError, match=r"clients' inputs, times \(0.2, 0.25, 0.5\) plus \(0.4, 0.5, 0.6\), lie in"):
        pixels_of("arrays", images(2, 3, 4, 5) * 9, COLOUR, "clients'")
    with pytest.raises(ConfigError, match="3 means and the images 1 channels"):
        pixels_of("arrays", images(2, 1, 4, 5), COLOUR)
    for nothing in (images(2, 7), torch.zeros(2, 7, dtype=torch.int64), images(2, 1, 7)):
        with pytest.raises(ConfigError, match=r"looks for images, floats \[C, H, W\]; leave it out"):
            pixels_of("arrays", nothing, None)
