"""MOON's network: an encoder, a projection head, and a classifier that reads the projection."""

from __future__ import annotations

from torch import nn

from privfl.models.base import Network, Shape, Size, flat_size
from privfl.models.dense import perceptron

WINDOWS = [(5, 1, 0), (2, 2, 0)] * 2


def projection_head(features: int, width: int = 256) -> nn.Sequential:
    """MOON's projection of ``features`` numbers to ``width`` (Li, He and Song, CVPR 2021): linear, ReLU, linear.

    The first layer keeps the width, as in the authors' code. Put it at the end of a body, so that the network's
    features are the projection.
    """
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))


def moon_cnn(input_shape: Shape, classes: int, *, projection: Size = 256) -> Network:
    """MOON's network for CIFAR-10 (Li, He and Song, CVPR 2021, §4.1), with its projection head of width 256.

    5x5 convolutions to 6 and 16 channels, each with ReLU and 2x2 max pooling, 120 and 84 ReLU units; 92,626 parameters
    on 3x32x32. The features are the projection, which the classifier reads.
    """
    layers, width = perceptron(flat_size(input_shape, 16, WINDOWS), (120, 84))
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *layers,
        projection_head(width, projection),
    )
    return Network(body, nn.Linear(projection, classes))
