"""Analytic leakage: the gradient of a fully-connected layer contains the layer's input."""

from __future__ import annotations

from torch import Tensor

from privfl.errors import ConfigError


def leaked_rows(weight_gradient: Tensor, bias_gradient: Tensor, *, floor: float = 0.0) -> Tensor:
    """``∂ℓ/∂W_i / ∂ℓ/∂b_i`` of every neuron i whose bias gradient exceeds ``floor`` in size, [R, inputs].

    For ``a = Wx + b`` and any loss, ``∂ℓ/∂W_i = Σ_j (∂ℓ/∂a_ij)·x_j`` and ``∂ℓ/∂b_i = Σ_j ∂ℓ/∂a_ij``: a row is a
    combination of the batch's inputs with weights that sum to 1, and exactly x_j where sample j alone reaches neuron i
    (always for one sample; "trap weights" of a malicious server make it so for many: Boenisch et al. 2021, Fowl et al.
    2022).

    Args:
        weight_gradient: [outputs, inputs].
        bias_gradient: [outputs].

    Raises:
        ConfigError: the shapes do not belong to one layer.
    """
    if weight_gradient.dim() != 2 or bias_gradient.shape != weight_gradient.shape[:1]:
        raise ConfigError(
            f"gradients are {tuple(weight_gradient.shape)} and {tuple(bias_gradient.shape)}; give [outputs, inputs] "
            "and [outputs] of one layer"
        )
    used = bias_gradient.abs() > floor
    return weight_gradient[used] / bias_gradient[used, None]


def leaked_input(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """The input [inputs] of a layer with a bias, from the gradient of one sample: exact up to rounding.

    Takes the neuron with the largest bias gradient, where rounding does least. Applied to a classifier's head the input
    is the feature vector, and :mod:`attacks.prototypes.upcnn` and its kin go on from there.

    Raises:
        ConfigError: the shapes do not belong to one layer, or no neuron has a bias gradient.
    """
    rows = leaked_rows(weight_gradient, bias_gradient)
    if not len(rows):
        raise ConfigError("every bias gradient is zero; this layer's gradient says nothing about its input")
    used = bias_gradient[bias_gradient != 0]
    return rows[used.abs().argmax()]
