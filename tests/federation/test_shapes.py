"""Images whose channels come last, or without any, and bytes without a factor: each is told, and nothing is guessed."""

import numpy as np
import pytest
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.shapes import UNSCALED, channels_seem_last

RNG = np.random.default_rng(0)
COLOURED = RNG.integers(0, 256, size=(40, 28, 28, 3)).astype(np.uint8)
LABELS = np.arange(40) % 2
LAST = (
    "Inputs of shape 28 x 28 x 3 are read as 28 channels of 28 x 3; if their channels come last, give "
    "inputs.transpose(0, 3, 1, 2)."
)


def task(inputs, **settings):
    return pf.Task.from_arrays(inputs, LABELS, partition=pf.IID(clients=4), **settings)


def warned(one):
    return pf.simulate(one, pf.FedAvg(), rounds=1).summary["warnings"]


@pytest.mark.parametrize("model", [None, "resnet8"])
def test_images_whose_channels_come_last_are_told(model):
    assert warned(task(COLOURED, scale=1 / 255, model=model)) == [LAST]
    assert warned(task(COLOURED.transpose(0, 3, 1, 2), scale=1 / 255, model=model)) == []


def test_only_what_looks_like_a_picture_seems_to_have_its_channels_last():
    seen = [(28, 28, 3), (28, 28, 1), (32, 24, 4), (3, 28, 28), (1, 28, 4), (28, 28, 2), (28, 3), (3, 3, 3)]
    assert [channels_seem_last(shape) for shape in seen] == [True] * 3 + [False] * 5


@pytest.mark.parametrize(
    ("inputs", "model", "sentence"),
    [
        (
            COLOURED,
            "two-cnn",
            r"images of 28 x 3 are too small.*channels came last: give inputs\.transpose\(0, 3, 1, 2\)",
        ),
        (COLOURED[..., 0], "two-cnn", r"images are \[N, C, H, W\], and those of one channel are inputs\[:, None\]"),
        (COLOURED, lambda: nn.Conv2d(3, 4, 3), r"channels came last: give inputs\.transpose\(0, 3, 1, 2\)"),
    ],
)
def test_a_model_that_cannot_take_such_images_says_how_they_are_had(inputs, model, sentence):
    with pytest.raises(ConfigError, match=sentence):
        task(inputs, scale=1 / 255, model=model)


def test_bytes_without_a_factor_are_told_whatever_they_hold():
    pixels = COLOURED.transpose(0, 3, 1, 2)
    assert warned(task(pixels)) == [UNSCALED]
    assert warned(task(np.zeros_like(pixels))) == [UNSCALED]
    assert warned(task(pixels.astype(np.float32))) == []
