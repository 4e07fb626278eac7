"""Image metrics against brute force: one window, one pair, one assignment at a time."""

import itertools
import math

import numpy as np
import pytest
import torch

from attacks.metrics.images import fmse, identifiability, matching, mse, pairwise_mse, psnr, ssim
from attacks.metrics.perceptual import percept_rand
from privfl.errors import ConfigError


def pictures(seed: int, count: int = 2, channels: int = 3, size: int = 14) -> torch.Tensor:
    return torch.rand(count, channels, size, size + 1, generator=torch.Generator().manual_seed(seed))


def ssim_by_windows(x: np.ndarray, y: np.ndarray) -> float:
    """One window after the other in one channel, straight from the definition."""
    line = np.array([math.exp(-((i - 5) ** 2) / (2 * 1.5**2)) for i in range(11)])
    weights = np.outer(line, line) / np.outer(line, line).sum()
    found = []
    for row, column in itertools.product(range(x.shape[0] - 10), range(x.shape[1] - 10)):
        a, b = x[row : row + 11, column : column + 11], y[row : row + 11, column : column + 11]
        mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
        var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
        cov = (weights * (a - mean_a) * (b - mean_b)).sum()
        found.append(
            (2 * mean_a * mean_b + 1e-4) * (2 * cov + 9e-4) / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
        )
    return float(np.mean(found))


def test_ssim_is_the_mean_over_windows_and_channels():
    x, y = pictures(0), (pictures(0) + 0.2 * pictures(1)).clamp(0, 1)
    for image in range(2):
        channels = [ssim_by_windows(x[image, c].double().numpy(), y[image, c].double().numpy()) for c in range(3)]
        assert float(ssim(x, y)[image]) == pytest.approx(np.mean(channels), abs=1e-10)
    assert ssim(x, x).tolist() == pytest.approx([1, 1], abs=1e-12)


def test_psnr_follows_from_the_error_and_ends_at_100_decibels():
    x = torch.full((1, 1, 4, 4), 0.5)
    assert float(mse(x, x + 0.1)) == pytest.approx(0.01, rel=1e-5)
    assert float(psnr(x, x + 0.1)) == pytest.approx(20, abs=1e-4)
    assert float(psnr(x, x)) == 100
    assert float(mse(x, x + 7)) == pytest.approx(0.25), "reconstructions are clipped to [0, 1] first"


def test_the_matching_has_the_least_error_of_all_permutations():
    truth, found = pictures(2, 5, 1), pictures(3, 5, 1)
    errors = pairwise_mse(truth, found).numpy()
    best = min(itertools.permutations(range(5)), key=lambda order: sum(errors[i, j] for i, j in enumerate(order)))
    assert matching(found, truth).tolist() == list(best)
    assert errors[1, 3] == pytest.approx(float((truth[1].double() - found[3].double()).square().mean()), rel=1e-12)


def test_a_reconstruction_is_identified_if_nothing_of_the_client_is_nearer():
    everything = pictures(4, 6, 1)
    images = everything[[2, 5]] + torch.tensor([0.0, 1.0]).view(2, 1, 1, 1) * (everything[[1, 1]] - everything[[2, 5]])
    assert identifiability(images, torch.tensor([2, 5]), everything) == 0.5
    brightness = identifiability(everything, torch.arange(6), everything, features=lambda x: x.mean((1, 2, 3))[:, None])
    assert brightness == 1


def test_features_are_compared_in_place_of_pixels():
    x, y = pictures(5), pictures(6)
    expected = (x.double().mean((2, 3)) - y.double().mean((2, 3))).square().mean(1)
    assert torch.allclose(fmse(x, y, lambda batch: batch.mean((2, 3))), expected, atol=1e-9)


def test_the_random_pyramid_orders_by_distortion_and_is_the_same_every_time():
    clean = pictures(7, 4)
    noise = pictures(8, 4) - 0.5
    distances = [percept_rand(clean + strength * noise, clean).mean() for strength in (0.0, 0.1, 0.4)]
    assert float(distances[0]) == 0
    assert distances[0] < distances[1] < distances[2]
    assert torch.equal(percept_rand(clean + noise, clean), percept_rand(clean + noise, clean))
    assert percept_rand(pictures(9, 1, 1), pictures(9, 1, 1)).tolist() == [0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: mse(pictures(0, 2), pictures(0, 3)),
        lambda: ssim(pictures(0, size=8), pictures(0, size=8)),
        lambda: matching(pictures(0, 1), pictures(0, 2)),
        lambda: pairwise_mse(pictures(0, channels=1), pictures(0)),
    ],
)
def test_what_cannot_be_compared_is_refused(call):
    with pytest.raises(ConfigError):
        call()


def test_rounding_on_a_blank_background_is_no_perceptual_distance():
    blank = torch.zeros(2, 1, 16, 16)
    blank[:, :, 4:8, 4:8] = 0.7
    assert float(percept_rand((blank + 1e-7).clamp(0, 1), blank).max()) < 1e-8
