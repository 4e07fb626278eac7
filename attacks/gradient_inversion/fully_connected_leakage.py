"""Analytic leakage: the gradient of a fully-connected layer contains the layer's input."""

from __future__ import annotations

import torch
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


def leaked_head_input(weight: Tensor, weight_gradient: Tensor, *, iterations: int = 200) -> Tensor:
    """The input h [inputs] of a classifier's head *without* a bias, from one sample's cross-entropy gradient.

    The gradient is ``(p − y)hᵀ`` with ``p = softmax(Wh)``: of rank one, so that it gives h up to a factor t, and its
    only row with a negative coefficient is the label's. Along the ray ``h = t·u`` the label's row says
    ``(1 − p_y(t))·t = −⟨∂ℓ/∂W_y, u⟩``; of the t that solve it the one is taken whose other rows fit best. Not in the
    papers, which divide by the gradient of a bias; ReBaFL's network for CIFAR-10 has none. With two classes h and −h
    give the same gradient, so at least three are needed.

    Args:
        weight: W [classes, inputs].
        weight_gradient: ∂ℓ/∂W [classes, inputs], of one sample under plain cross-entropy.
        iterations: bisections of each bracket.

    Raises:
        ConfigError: the shapes differ, there are fewer than three classes, or the gradient is not that of one sample
            (not of rank one).
    """
    if weight.shape != weight_gradient.shape or weight.dim() != 2:
        raise ConfigError(
            f"weight is {tuple(weight.shape)}, its gradient {tuple(weight_gradient.shape)}; give both [classes, inputs]"
        )
    if len(weight) < 3:
        raise ConfigError("a head of two classes without a bias does not tell h from −h; attack one with a bias")
    gradient, matrix = weight_gradient.double(), weight.double()
    _, sizes, rows = torch.linalg.svd(gradient, full_matrices=False)
    rounding = 1e-3 if weight_gradient.dtype == torch.float32 else 1e-9
    if not float(sizes[0]) > 0 or (len(sizes) > 1 and float(sizes[1]) > rounding * float(sizes[0])):
        raise ConfigError("the head's gradient is not of rank one; this works for one sample under plain cross-entropy")
    direction = rows[0]
    along = gradient @ direction  # (p − y)·t, whose largest entry in size is the label's, since p sums to 1
    label = int(along.abs().argmax())
    if along[label] > 0:
        direction, along = -direction, -along
    logits = matrix @ direction
    wanted = float(-along[label])

    def excess(scale: Tensor) -> Tensor:
        p = torch.softmax(scale[:, None] * logits, dim=1)
        return (1 - p[:, label]) * scale - wanted

    grid = wanted * torch.logspace(0, 6, 4001, dtype=torch.float64)  # t ≥ wanted, because 1 − p ≤ 1
    values = excess(grid)
    crossings = (values[:-1].sign() != values[1:].sign()).nonzero().flatten()
    if not len(crossings):
        raise ConfigError("no scale explains the head's gradient; is its loss plain cross-entropy with these weights?")
    low, high = grid[crossings], grid[crossings + 1]
    rising = values[crossings] <= 0
    for _ in range(iterations):
        middle = (low + high) / 2
        above = (excess(middle) > 0) == rising
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    scales = (low + high) / 2
    errors = torch.softmax(scales[:, None] * logits, dim=1) * scales[:, None] - along
    errors[:, label] -= scales
    best = scales[errors.square().sum(1).argmin()]
    found: Tensor = best * direction
    return found.to(weight_gradient.dtype)
