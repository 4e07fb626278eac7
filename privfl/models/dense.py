"""Networks of linear layers, for any input of fixed shape: logistic regression and McMahan's two-layer perceptron."""

from __future__ import annotations

from torch import nn

from privfl.models.base import Network, Shape, Sizes, flat_length


def logistic(input_shape: Shape, classes: int) -> Network:
    """Multinomial logistic regression; the features are the flattened inputs themselves.

    With ``classes=1`` it gives the single logit of binary logistic regression.
    """
    return Network(nn.Flatten(), nn.Linear(flat_length(input_shape), classes))


def two_nn(input_shape: Shape, classes: int, *, hidden: Sizes = (200, 200), bias: bool = True) -> Network:
    """The "2NN" of McMahan et al. (2017, §3): two hidden layers of 200 ReLU units; 199,210 parameters on MNIST.

    SuPerFed's code calls a bias-free net with three hidden layers TwoNN: ``hidden=(200, 200, 200), bias=False``.
    """
    layers, width = perceptron(flat_length(input_shape), hidden, bias=bias)
    return Network(nn.Sequential(nn.Flatten(), *layers), nn.Linear(width, classes, bias=bias))


def perceptron(inputs: int, hidden: Sizes, *, bias: bool = True) -> tuple[list[nn.Module], int]:
    """Linear layers with ReLU from ``inputs`` through the ``hidden`` widths, and the last width."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width, bias=bias), nn.ReLU()]
        inputs = width
    return layers, inputs
