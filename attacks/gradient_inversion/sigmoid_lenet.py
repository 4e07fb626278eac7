"""The network on which gradient inversion was shown first: a LeNet with sigmoids and strides instead of pooling."""

from __future__ import annotations

import torch
from torch import nn

from attacks.images.fitting import drawn_from
from privfl.models.base import Network, Shape, flat_size


def sigmoid_lenet(
    input_shape: Shape, classes: int, *, generator: torch.Generator, spread: float | None = 0.5
) -> Network:
    """Three 5x5 convolutions to 12 channels (padding 2, strides 2, 2, 1), a sigmoid after each, and a linear head.

    The LeNet of DLG's code (Zhu, Liu and Han, NeurIPS 2019): twice differentiable everywhere, which L-BFGS on gradients
    needs, and untrained.

    Args:
        input_shape: (C, H, W).
        generator: draws the weights and biases, uniformly in [−``spread``, ``spread``]; ``None`` leaves PyTorch's own
            initialisation.
    """
    windows = [(5, 2, 2), (5, 2, 2), (5, 1, 2)]
    layers: list[nn.Module] = []
    inner = input_shape[0]
    with drawn_from(generator):
        for kernel, stride, padding in windows:
            layers += [nn.Conv2d(inner, 12, kernel, stride=stride, padding=padding), nn.Sigmoid()]
            inner = 12
        head = nn.Linear(flat_size(input_shape, 12, windows), classes)
    network = Network(nn.Sequential(*layers, nn.Flatten()), head)
    if spread is not None:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.uniform_(-spread, spread, generator=generator)
    return network
