"""UpCNN learns the mean image that a feature allows, and beats the mean image on features of unseen images."""

import pytest
import torch

from attacks.images.pixels import Pixels
from attacks.prototypes.upcnn import decoded, train_upcnn
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.models import build

DIGITS, PIXELS = load_dataset("digits", seed=0), Pixels.of("digits")
PUBLIC, LABELS = PIXELS.images(DIGITS.inputs), DIGITS.targets
HELD_OUT = PIXELS.images(DIGITS.test_inputs)
SMALL = {"hidden": 64, "channels": (16, 8)}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def features(images):
    with torch.no_grad():
        return build("two-nn", (1, 8, 8), 10, seed=0).features(PIXELS.inputs(images))


def error(found, truth):
    return float((found - truth).square().mean())


def test_a_feature_that_is_the_class_is_decoded_to_the_class_mean():
    """The minimiser of E‖x − g(h)‖² is E[x | h]; with h the class that is the class's mean image."""
    classes = torch.eye(10)
    decoder = train_upcnn(classes[LABELS], PUBLIC, generator=generator(), epochs=12, learning_rate=5e-3, **SMALL)
    means = torch.stack([PUBLIC[label == LABELS].mean(0) for label in range(10)])
    assert error(decoded(decoder, classes), means) < 0.05 * error(PUBLIC.mean(0).expand_as(means), means)


def test_features_of_unseen_images_give_more_than_the_mean_image():
    decoder = train_upcnn(features(PUBLIC), PUBLIC, generator=generator(), epochs=12, learning_rate=5e-3, **SMALL)
    assert not decoder.training
    found = decoded(decoder, features(HELD_OUT))
    assert error(found, HELD_OUT) < 0.4 * error(PUBLIC.mean(0).expand_as(HELD_OUT), HELD_OUT)
    better = train_upcnn(features(PUBLIC), PUBLIC, generator=generator(), epochs=4, start=decoder)
    assert better is decoder
    assert error(decoded(better, features(HELD_OUT)), HELD_OUT) < error(found, HELD_OUT)


def test_the_decoder_depends_on_its_generator_alone():
    def drawn(seed):
        decoder = train_upcnn(features(PUBLIC), PUBLIC, generator=generator(seed), epochs=1, **SMALL)
        return decoded(decoder, features(HELD_OUT[:2]))

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


def test_what_is_no_auxiliary_data_is_refused():
    with pytest.raises(ConfigError, match="one row each"):
        train_upcnn(torch.zeros(3, 4), PUBLIC[:2], generator=generator())
    with pytest.raises(ConfigError, match="auxiliary images lie in"):
        train_upcnn(torch.zeros(2, 4), PUBLIC[:2] * 9, generator=generator())
