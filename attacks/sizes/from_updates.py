"""How many examples a FedSampling client holds, from updates that are divided by a public constant.

FedSampling's update ``Δ_u = (1/K)·Σ_{j∈S_u} ∇ℓ_j`` is divided by the public K instead of the private ``|S_u|``, so its
magnitude carries ``m = |S_u|``, and every example is in S_u with the public probability p: n ≈ m/p. Randomising the
answer about the size does not help against that; a secure sum does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.observations.head_gradients import ClassGradients
from attacks.observations.label_counts import counts_by_regression
from privfl.errors import ConfigError
from privfl.validation import check_number


def chosen_from_absent_class(bias_gradient: Tensor, probabilities: Tensor, samples_per_round: int) -> float:
    """``m = K·max_c (∂b_c / p̄_c)``: the number of chosen examples, if one class is absent; else a lower bound.

    ``K·∂b_c = m·p̄_c − m_c`` with label counts m_c ≥ 0, with equality for an absent class. Exact with the batch's own
    p̄, which a zero head makes 1/C.

    Args:
        bias_gradient: the head's bias part [C] of Δ_u.
        probabilities: p̄ [C] > 0, mean predictions of the chosen examples.
        samples_per_round: K ≥ 1.

    Raises:
        ConfigError: shapes differ, or a probability is not positive.
    """
    gradient, probabilities = _checked(bias_gradient, probabilities, samples_per_round)
    return max(0.0, float((samples_per_round * gradient / probabilities).max()))


def chosen_by_shares(bias_gradient: Tensor, probabilities: Tensor, shares: Tensor, samples_per_round: int) -> float:
    """m by least squares over the classes, for a client whose labels follow known ``shares``.

    With m_c ≈ m·q_c the identity is ``K·∂b_c = m·(p̄_c − q_c)``, one unknown for C equations.

    Args:
        bias_gradient: the head's bias part [C] of Δ_u.
        probabilities: p̄ [C].
        shares: q [C], the client's label distribution, for instance from :mod:`attacks.observations.update_labels`.
        samples_per_round: K ≥ 1.

    Raises:
        ConfigError: shapes differ, or the shares equal the predictions, which leaves nothing to see.
    """
    gradient, probabilities = _checked(bias_gradient, probabilities, samples_per_round)
    direction = probabilities - shares.double()
    energy = float(direction.square().sum())
    if energy < 1e-12:
        raise ConfigError("the label shares equal the mean predictions, so the bias gradient vanishes; use the weights")
    return max(0.0, samples_per_round * float(gradient @ direction) / energy)


def chosen_by_regression(head: Tensor, auxiliary: ClassGradients, samples_per_round: int) -> Tensor:
    """The chosen examples of every class [C], float64, by regressing the whole head on auxiliary class gradients.

    Needs neither an absent class nor known shares: features of different classes point in different directions. Noise
    may make a count negative; the sum is m, without bias at an untrained model. A trained one fits its clients'
    examples better than the auxiliary ones, whose gradients are then too large, and m comes out too small.
    """
    check_number("samples_per_round", samples_per_round, 1)
    return counts_by_regression(head.double() * samples_per_round, auxiliary, signed=True)


def size_from_chosen(
    chosen: Sequence[float], rates: Sequence[float], variances: Sequence[float] | None = None
) -> float:
    """``n̂ = max(0, Σ_t w_t·m_t / Σ_t w_t·p_t)`` with ``w_t = 1/(1 − p_t + v_t)``, in examples.

    m_t is a binomial count of n at rate p_t, read with an error of variance v_t for each example of it: its variance is
    n·p_t·(1 − p_t + v_t), and these weights make that of n̂ least. Without ``variances`` all rounds weigh the same,
    which is the maximum-likelihood size for counts without error.

    Args:
        chosen: m of every round in which the client took part.
        rates: the broadcast sampling rate p in (0, 1] of the same rounds.
        variances: v ≥ 0 of the same rounds.

    Raises:
        ConfigError: no round, unequal lengths, or a rate outside (0, 1].
    """
    spread = [0.0] * len(chosen) if variances is None else list(variances)
    if not len(chosen) == len(rates) == len(spread) or not chosen:
        raise ConfigError(f"there are {len(chosen)} counts for {len(rates)} rates; give one of each for every round")
    for rate in rates:
        check_number("a sampling rate", rate, 0, 1, above=True)
    weights = [1.0] * len(chosen)
    if variances is not None:
        weights = [1 / max(1 - rate + variance, 1e-9) for rate, variance in zip(rates, spread, strict=True)]
    total = sum(weight * count for weight, count in zip(weights, chosen, strict=True))
    return max(0.0, total / sum(weight * rate for weight, rate in zip(weights, rates, strict=True)))


def _checked(gradient: Tensor, probabilities: Tensor, samples_per_round: int) -> tuple[Tensor, Tensor]:
    check_number("samples_per_round", samples_per_round, 1)
    if gradient.ndim != 1 or gradient.shape != probabilities.shape:
        raise ConfigError(
            f"the gradient has the shape {tuple(gradient.shape)} and the probabilities {tuple(probabilities.shape)}; "
            "give one number for each class in both"
        )
    both = torch.stack([gradient.double(), probabilities.double()])
    if not both.isfinite().all() or not (both[1] > 0).all():
        raise ConfigError("the gradient is not finite or a mean prediction is not positive; leave this client out")
    return both[0], both[1]
