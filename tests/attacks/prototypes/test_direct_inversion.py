"""Direct optimisation finds the image where the feature determines it, and some image with that feature where not."""

import pytest
import torch

from attacks.images.pixels import Pixels
from attacks.prototypes.direct_inversion import direct_inversion
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.models import build

DIGITS, PIXELS = load_dataset("digits", seed=0), Pixels.of("digits")
IMAGES = PIXELS.images(DIGITS.test_inputs[:3])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_an_invertible_extractor_without_priors_gives_the_image_itself():
    mixing = torch.linalg.qr(torch.randn(64, 64, generator=generator()))[0]
    found, distances = direct_inversion(
        lambda images: images.flatten(1) @ mixing,
        IMAGES.flatten(1) @ mixing,
        (1, 8, 8),
        generator=generator(),
        iterations=300,
        extremes=0.0,
        variation=0.0,
    )
    assert float((found - IMAGES).abs().max()) < 0.02
    assert float(distances.max()) < 0.01


def test_every_target_is_searched_for_on_its_own():
    network = build("two-nn", (1, 8, 8), 10, seed=0).requires_grad_(False)

    def extract(images):
        return network.features(PIXELS.inputs(images))

    targets = extract(IMAGES)
    found, distances = direct_inversion(extract, targets, (1, 8, 8), generator=generator(), iterations=150)
    assert float(distances.max()) < 0.1
    expected = (extract(found) - targets).norm(dim=1) / targets.norm(dim=1)
    torch.testing.assert_close(distances, expected)
    alone, _ = direct_inversion(extract, targets[:1], (1, 8, 8), generator=generator(), iterations=150)
    torch.testing.assert_close(alone, found[:1], atol=1e-3, rtol=0)


def test_total_variation_smooths():
    def rough(weight):
        found, _ = direct_inversion(
            lambda images: images.mean((2, 3)), torch.tensor([[0.4]]), (1, 8, 8), generator=generator(),
            iterations=100, variation=weight,
        )  # fmt: skip
        return float((found[..., 1:] - found[..., :-1]).abs().mean())

    assert rough(1.0) < 0.3 * rough(0.0)


def test_absent_prototypes_are_refused():
    with pytest.raises(ConfigError, match="leave absent prototypes out"):
        direct_inversion(lambda images: images.flatten(1), torch.zeros(1, 64), (1, 8, 8), generator=generator())
    with pytest.raises(ConfigError, match=r"give prototypes \[P, d\]"):
        direct_inversion(lambda images: images.flatten(1), torch.ones(64), (1, 8, 8), generator=generator())
