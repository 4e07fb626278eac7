"""How many examples of each class are in a batch: the exact identity of the soft-max cross-entropy.

For a loss ``L`` that is the mean over B examples, ``∂L/∂b_c = p̄_c − n_c/B`` with p̄ the batch's mean predicted
probabilities, so ``n_c = B·(p̄_c − ∂L/∂b_c)``: the gradient of C biases reveals all label counts. What the attacker
lacks is p̄; at a fresh or zero head it is 1/C, otherwise public data estimate it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import nnls
from torch import Tensor

from attacks.observations.head_gradients import ClassGradients
from privfl.errors import ConfigError
from privfl.validation import check_count


def counts_from_bias(gradient: Tensor, probabilities: Tensor, batch_size: int) -> Tensor:
    """``n_c = B·(p̄_c − ∂L/∂b_c)``, exact to rounding if ``probabilities`` are the batch's own mean.

    Args:
        gradient: ∂L/∂b [C] of a mean-reduced soft-max cross-entropy.
        probabilities: p̄ [C]; for a loss on shifted logits those of the shifted soft-max.
        batch_size: B ≥ 1.

    Returns:
        Counts [C], float64, not rounded; they add up to B.

    Raises:
        ConfigError: the shapes differ, a number is not finite, or B is below 1.
    """
    check_count("batch_size", batch_size)
    gradient, probabilities = _pair(gradient, probabilities)
    return batch_size * (probabilities - gradient)


def counts_from_weights(gradient: Tensor, probabilities: Tensor, batch_size: int, feature_sum: float) -> Tensor:
    """The identity for a head without bias: ``n_c = B·(p̄_c − Σ_k ∂L/∂W_ck / s)``.

    Exact if every example's features add up to the same s = ``feature_sum`` ≠ 0; otherwise s is their mean on public
    data and the counts carry the spread of s. With ReLU features s > 0; a penultimate layer without activation can
    bring s near 0, and then :func:`counts_by_regression` is the better form.

    Args:
        gradient: ∂L/∂W [C, d].
        probabilities: p̄ [C].
        batch_size: B ≥ 1.
        feature_sum: s, the mean over examples of the sum of the d features.

    Raises:
        ConfigError: as :func:`counts_from_bias`, or ``feature_sum`` is 0 or not finite.
    """
    if not math.isfinite(feature_sum) or feature_sum == 0:
        raise ConfigError(f"the features add up to {feature_sum} on average; the identity needs a sum that is not 0")
    return counts_from_bias(gradient.double().sum(1) / feature_sum, probabilities, batch_size)


def counts_by_regression(gradient: Tensor, auxiliary: ClassGradients, *, signed: bool = False) -> Tensor:
    """Counts ≥ 0 whose expected gradient ``Σ_k n_k·ḡ_k`` is nearest to ``gradient``.

    Not in the papers: least squares over the whole head, where ḡ_k is the mean gradient of an example of class k on
    auxiliary data. It uses the direction of the features besides their sum, needs neither a bias nor positive features
    nor 1/C, holds for every loss whose class gradients are known, and finds the *number* of examples too. Coordinates
    are weighed by the inverse of their deviation within a class.

    Args:
        gradient: the head's gradient summed over the examples, [size] as :meth:`HeadGradient.vector`.
        auxiliary: class gradients at the same model.
        signed: let counts be negative. Then their sum is unbiased; cutting off what noise makes negative lifts it, by
            more than the truth for a few examples at a trained model.

    Returns:
        Counts [C], float64, 0 for classes that the auxiliary data do not hold.

    Raises:
        ConfigError: the sizes differ or a number is not finite.
    """
    if gradient.shape != auxiliary.means.shape[1:]:
        raise ConfigError(
            f"the head's gradient has {tuple(gradient.shape)} numbers and the auxiliary ones "
            f"{tuple(auxiliary.means.shape[1:])}; take both from the same model"
        )
    observed = gradient.double().numpy()
    if not np.isfinite(observed).all():
        raise ConfigError("the head's gradient is not finite; leave this client out")
    scale, design = _weighed(auxiliary)
    found = lstsq(design, observed * scale)[0] if signed else nnls(design, observed * scale)[0]
    counts = torch.zeros(len(auxiliary.seen), dtype=torch.float64)
    counts[auxiliary.seen] = torch.from_numpy(found)
    return counts


def total_variance(auxiliary: ClassGradients) -> float:
    """The variance of the sum of signed counts for each example behind the gradient: ``1ᵀ(XᵀX)⁻¹1``.

    X is the weighed design of :func:`counts_by_regression`. It takes the coordinates as independent, which they are
    not: good for comparing models with each other, too small in itself.
    """
    _, design = _weighed(auxiliary)
    return float(np.linalg.pinv(design.T @ design).sum())


def _weighed(auxiliary: ClassGradients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What every coordinate is multiplied by [size], and the weighed design [size, classes seen]."""
    deviations = auxiliary.deviations.numpy()
    positive = deviations[deviations > 0]
    floor = float(np.median(positive)) * 1e-2 if positive.size else 1.0
    scale = 1 / np.maximum(deviations, floor)
    return scale, (auxiliary.means.numpy() * scale).T[:, auxiliary.seen.numpy()]


def integer_counts(counts: Tensor, total: int) -> Tensor:
    """The whole numbers ≥ 0 that add up to ``total`` and are nearest to ``counts`` [C] in the Euclidean norm; int64.

    A shift onto the simplex, rounded down, and the units that are missing given to the largest remainders: the optimum,
    because the marginal costs of a separable convex sum decide it.

    Raises:
        ConfigError: ``total`` is negative or a count is not finite.

    >>> integer_counts(torch.tensor([2.6, -0.3, 1.7]), 4).tolist()
    [2, 0, 2]
    """
    check_count("total", total, 0)
    if not counts.isfinite().all():
        raise ConfigError(f"the counts are {counts.tolist()}; give finite numbers")
    wanted = counts.double()
    shifted = on_simplex(wanted, float(total))
    whole = shifted.floor()
    missing = int(total - whole.sum())
    for place in torch.argsort(wanted - whole, descending=True, stable=True)[: max(missing, 0)].tolist():
        whole[place] += 1
    return whole.long()


def on_simplex(values: Tensor, total: float = 1.0) -> Tensor:
    """The point nearest to ``values`` [C] with entries ≥ 0 that add up to ``total`` ≥ 0 (Held, Wolfe, Crowder 1974).

    >>> on_simplex(torch.tensor([0.5, 0.9, -0.2]))
    tensor([0.3000, 0.7000, 0.0000])
    """
    ordered = values.sort(descending=True).values
    shifts = (ordered.cumsum(0) - total) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    last = int((ordered > shifts).sum().clamp_min(1)) - 1
    return (values - shifts[last]).clamp_min(0)


def _pair(gradient: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    if gradient.ndim != 1 or gradient.shape != probabilities.shape:
        raise ConfigError(
            f"the gradient has the shape {tuple(gradient.shape)} and the probabilities {tuple(probabilities.shape)}; "
            "give one number for each class in both"
        )
    if not (gradient.isfinite().all() and probabilities.isfinite().all()):
        raise ConfigError("the gradient or the probabilities are not finite; leave this client out")
    return gradient.double(), probabilities.double()
