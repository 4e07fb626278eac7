"""Plain convolutional networks for images [C, H, W] and sound [C, L], each as its paper or benchmark has it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from privfl.errors import ConfigError
from privfl.models.base import Network, Padding, Shape, Size, Sizes, flat_size, group_norm, initialise
from privfl.models.dense import perceptron


def two_cnn(
    input_shape: Shape,
    classes: int,
    *,
    hidden: Sizes = (512,),
    bias: bool = True,
    padding: Padding = 2,
    pool_padding: Annotated[int, Field(ge=0, le=1)] = 0,
) -> Network:
    """The CNN of McMahan et al. (2017, §3): 5x5 convolutions to 32 and 64 channels, each with ReLU and 2x2 max
    pooling, 512 ReLU units; 1,663,370 parameters on MNIST (which fixes the padding of 2 that the text leaves out).

    SuPerFed's code (images resized to 28 x 28): ``hidden=(200, 200), bias=False, padding=1, pool_padding=1``.
    """
    windows = [(5, 1, padding), (2, 2, pool_padding)] * 2
    layers, width = perceptron(flat_size(input_shape, 64, windows), hidden, bias=bias)
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 32, 5, padding=padding, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2, padding=pool_padding),
        nn.Conv2d(32, 64, 5, padding=padding, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2, padding=pool_padding),
        nn.Flatten(),
        *layers,
    )
    return Network(body, nn.Linear(width, classes, bias=bias))


def rebafl_fmnist(input_shape: Shape, classes: int) -> Network:
    """ReBaFL's network for Fashion-MNIST, as in its released code (the paper gives the widths only).

    5x5 convolutions to 16 (no padding) and 32 channels (padding 1), each with LeakyReLU(0.01) and 2x2 max pooling;
    128 LeakyReLU units are the features. The released forward pass hands a projection of them to the feature
    augmentation; here the features are the head's own input, as the paper's equations have it.
    """
    windows = [(5, 1, 0), (2, 2, 0), (5, 1, 1), (2, 2, 0)]
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 5),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=1),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat_size(input_shape, 32, windows), 128),
        nn.LeakyReLU(),
    )
    return Network(body, nn.Linear(128, classes))


def rebafl_cifar(input_shape: Shape, classes: int) -> Network:
    """ReBaFL's network for CIFAR-10, as in its released code.

    As :func:`rebafl_fmnist` with a third convolution, 3x3 to 64 channels (padding 1); the 128 features have no
    activation and the head has no bias.
    """
    windows = [(5, 1, 0), (2, 2, 0), (5, 1, 1), (2, 2, 0), (3, 1, 1), (2, 2, 0)]
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 5),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=1),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat_size(input_shape, 64, windows), 128),
    )
    return Network(body, nn.Linear(128, classes, bias=False))


def vgg9(input_shape: Shape, classes: int, *, width: Size = 16, hidden: Size = 256) -> Network:
    """SuPerFed's VGG-9 for FEMNIST, as in its code: nine layers without biases, ReLU between them.

    3x3 convolutions (padding 1) to ``width``, twice, … and 32 times as many channels, 2x2 max pooling after
    the first, second, fourth and sixth, and dense layers of what is left, ``hidden`` and ``classes``.
    """
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for number in range(6):
        outputs = width << number
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number in (0, 1, 3, 5) else []
        channels = outputs
    values = flat_size(input_shape, channels, [(2, 2, 0)] * 4)
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(values, hidden, bias=False), nn.ReLU())
    return Network(body, nn.Linear(hidden, classes, bias=False))


def leaf_cnn(input_shape: Shape, classes: int) -> Network:
    """The network for LEAF's CelebA in AAggFF's experiments: four convolutions with GroupNorm.

    Each is 3x3 to 32 channels (padding 1, no bias), GroupNorm of 32, 16, 8 and 4 groups, 2x2 max pooling (padding 1)
    and ReLU; then 5x5 average pooling.
    """
    windows = [(2, 2, 1)] * 4 + [(5, 5, 0)]
    values = flat_size(input_shape, 32, windows)
    layers: list[nn.Module] = []
    for channels, groups in ((input_shape[0], 32), (32, 16), (32, 8), (32, 4)):
        layers += [
            nn.Conv2d(channels, 32, 3, padding=1, bias=False),
            nn.GroupNorm(groups, 32),
            nn.MaxPool2d(2, padding=1),
            nn.ReLU(),
        ]
    return Network(nn.Sequential(*layers, nn.AvgPool2d(5), nn.Flatten()), nn.Linear(values, classes))


def m5(input_shape: Shape, classes: int) -> Network:
    """M5 for sound [C, L] (Dai et al. 2017) as in AAggFF's experiments: four convolutions over time.

    Kernel 80 and stride 4 to 64 channels, then kernel 3 to 64, 128 and 256, each with GroupNorm (BatchNorm there), ReLU
    and pooling by 4; the mean over time.
    """
    length = input_shape[1]
    for kernel, stride in ((80, 4), (4, 4), (3, 1), (4, 4), (3, 1), (4, 4), (3, 1), (4, 4)):
        length = (length - kernel) // stride + 1 if length >= kernel else 0
    if length == 0:
        raise ConfigError(f"signals of {input_shape[1]} samples are too short; give at least 1,772")
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, stride in (
        (input_shape[0], 64, 80, 4),
        (64, 64, 3, 1),
        (64, 128, 3, 1),
        (128, 256, 3, 1),
    ):
        layers += [nn.Conv1d(inputs, outputs, kernel, stride), group_norm(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    return Network(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten()), nn.Linear(256, classes))


def cnn_1m(input_shape: Shape, classes: int) -> Network:
    """The CIFAR-10 network of the pfl-research benchmarks, for comparisons of speed; 1,199,882 parameters on 1x28x28.

    3x3 convolutions to 32 and 64 channels with ReLU, 2x2 max pooling, dropout 0.25, 128 ReLU units, dropout 0.5;
    weights are Xavier uniform, biases as in PyTorch.
    """
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(flat_size(input_shape, 64, [(3, 1, 0), (3, 1, 0), (2, 2, 0)]), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
    )
    network = Network(body, nn.Linear(128, classes))
    initialise(network, nn.init.xavier_uniform_, zero_bias=False)
    return network


def tiny_cnn(input_shape: Shape, classes: int) -> Network:
    """Two strided convolutions (5x5 to 8 channels, 3x3 to 16) with ReLU: so small that a framework's overhead shows.

    5,386 parameters on 1x28x28.
    """
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
    )
    return Network(body, nn.Linear(flat_size(input_shape, 16, [(5, 2, 0), (3, 2, 0)]), classes))
