"""Penalties on images equal loops over their pixels."""

import numpy as np
import torch

from attacks.images.priors import sixth_power, squared_variation, total_variation

IMAGES = np.random.default_rng(0).uniform(size=(3, 2, 4, 5))


def differences(image):
    down = [image[c, i + 1, j] - image[c, i, j] for c in range(2) for i in range(3) for j in range(5)]
    right = [image[c, i, j + 1] - image[c, i, j] for c in range(2) for i in range(4) for j in range(4)]
    return np.array(down), np.array(right)


def test_total_variation_is_the_mean_absolute_difference_in_each_direction():
    expected = [np.abs(down).mean() + np.abs(right).mean() for down, right in map(differences, IMAGES)]
    np.testing.assert_allclose(total_variation(torch.from_numpy(IMAGES)), expected)


def test_squared_variation_is_twice_the_mean_square_in_each_direction():
    expected = [2 * ((down**2).mean() + (right**2).mean()) for down, right in map(differences, IMAGES)]
    np.testing.assert_allclose(squared_variation(torch.from_numpy(IMAGES)), expected)


def test_the_sixth_power_punishes_distance_from_mid_grey():
    np.testing.assert_allclose(sixth_power(torch.from_numpy(IMAGES)), ((IMAGES - 0.5) ** 6).mean((1, 2, 3)))


def test_a_flat_image_does_not_vary():
    flat = torch.full((1, 3, 8, 8), 0.3)
    assert float(total_variation(flat)) == float(squared_variation(flat)) == 0
