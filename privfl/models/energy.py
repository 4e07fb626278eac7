"""Classifiers that are read as energies: a head of spectral norm one, and two networks that carry it.

The joint energy of an input x and a class y is minus the logit of y (Grathwohl et al., ICLR 2020). Nothing in the
cross-entropy bounds the size of logits, so FedEvg divides the last layer's weights by their largest singular value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.models.base import Network, Shape, Size, flat_size, group_norm, initialise
from privfl.models.residual import fedevg_resnet10

LEAST = 1e-12
"""Weights whose largest singular value is smaller are divided by this instead: an all-zero layer stays zero."""


class SpectralLinear(nn.Module):
    """``x·(W/σ_max(W))ᵀ + b``: a linear layer whose effective weights have spectral norm 1 (Miyato et al., ICLR 2018).

    σ_max is the square root of the largest eigenvalue of W·Wᵀ [classes, classes]: exact up to rounding in every call,
    in training and in evaluation mode. The usual layer estimates it by power iteration: it approaches from above (a
    fresh layer is up to 9 % too large after 3 passes), keeps a vector as a buffer that only training passes update, and
    so gives logits that depend on the history of its calls. Without that state the layer is an ordinary function of its
    parameters, which can be stacked by ``torch.func.vmap``, has per-sample gradients, and averages like any other. The
    gradient is the same as that of converged power iteration: ∂σ/∂W = u·vᵀ.

    Weights start Xavier normal and the bias at zero, as in FedEvg's code.

    Args:
        in_features: width of the input.
        out_features: number of outputs.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_normal_(self.weight)

    def effective_weight(self) -> Tensor:
        """W/σ_max(W) [out_features, in_features]; not finite where W is not."""
        wide = self.weight if self.in_features >= self.out_features else self.weight.mT
        gram = (wide @ wide.mT).nan_to_num(0.0, 0.0, 0.0)  # the solver raises at NaN, which would end everybody's round
        largest = torch.linalg.eigvalsh(gram)[-1]
        effective: Tensor = self.weight / largest.clamp_min(LEAST**2).sqrt()
        return effective

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return F.linear(inputs, self.effective_weight(), self.bias)


def resnet10_energy(input_shape: Shape, classes: int, *, width: Size = 64) -> Network:
    """FedEvg's ResNet-10 (:func:`privfl.models.residual.fedevg_resnet10`) with its spectrally normalised head.

    Xavier-normal weights and zero biases, as in its code. 4,979,914 parameters on MNIST: the head has no more of them
    than a plain one, so the vector serves a twin without the normalisation too.
    """
    plain = fedevg_resnet10(input_shape, classes, width=width)
    network = Network(plain.body, SpectralLinear(plain.feature_dim, classes), plain.feature_dim)
    initialise(network, nn.init.xavier_normal_, zero_bias=True)
    return network


def energy_cnn(input_shape: Shape, classes: int, *, width: Size = 16) -> Network:
    """A small energy network for studies on a CPU: three 3x3 convolutions, GroupNorm, SiLU, a head of spectral norm 1.

    ``width``, 2·``width`` and 2·``width`` channels, strides 1, 2, 2, no pooling before the head, as in FedEvg's
    ResNet-10. 19,258 parameters for ten classes at 14 x 14.
    """
    layers: list[nn.Module] = []
    inner = input_shape[0]
    for outer, stride in ((width, 1), (2 * width, 2), (2 * width, 2)):
        layers += [nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False), group_norm(outer, 4), nn.SiLU()]
        inner = outer
    values = flat_size(input_shape, inner, [(3, 1, 1), (3, 2, 1), (3, 2, 1)])
    network = Network(nn.Sequential(*layers, nn.Flatten()), SpectralLinear(values, classes), values)
    initialise(network, nn.init.xavier_normal_, zero_bias=True)
    return network
