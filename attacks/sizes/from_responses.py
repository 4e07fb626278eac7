"""How many examples a client holds, from its randomised answers about its size.

One answer of generalised randomised response tells little; T *fresh* answers about the same size are T votes, and the
truth is the likeliest of them. A memoised answer is one vote however often it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.sizes.local_randomizers import DuchiSize, LaplaceSize
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.privacy.sizes.randomized_response import RandomizedResponse


def posterior(
    responses: Sequence[float] | NDArray[np.float64],
    mechanism: SizeMechanism,
    prior: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """The attacker's belief [D] about a client's clipped size lo, …, hi after its independent answers.

    For randomised response it depends on how often each size was answered: every vote multiplies a size's odds by e^ε.
    Laplace and Duchi's one bit have closed likelihoods too; the other mechanisms are refused.

    Args:
        responses: T ≥ 0 independent answers; a memoised answer counts once, however often it was sent.
        mechanism: how they were randomised; public.
        prior: belief before [D], default uniform.

    Raises:
        ConfigError: the mechanism has no likelihood here, an answer is impossible, or the prior does not fit.
    """
    sizes = np.arange(mechanism.range.lo, mechanism.range.hi + 1, dtype=np.float64)
    answers = np.asarray(responses, dtype=np.float64)
    belief = np.zeros(len(sizes)) if prior is None else _log_prior(prior, len(sizes))
    if isinstance(mechanism, RandomizedResponse):
        places = answers - mechanism.range.lo
        if not np.all((places == np.floor(places)) & (places >= 0) & (places < len(sizes))):
            raise ConfigError(
                f"an answer lies outside {{{mechanism.range.lo}, …, {mechanism.range.hi}}}; pass the run's mechanism"
            )
        votes = np.bincount(places.astype(np.int64), minlength=len(sizes)).astype(np.float64)
        if math.isinf(mechanism.epsilon):
            belief = np.where(votes == votes.sum(), belief, -np.inf)
        else:
            belief = belief + mechanism.epsilon * votes
    elif isinstance(mechanism, LaplaceSize) and math.isfinite(mechanism.epsilon):
        belief = belief - np.abs(answers[:, None] - sizes).sum(0) / mechanism.scale
    elif isinstance(mechanism, DuchiSize) and math.isfinite(mechanism.epsilon):
        high = 0.5 + mechanism.range.to_unit(sizes) / (2 * mechanism.magnitude)
        ups = int((answers > mechanism.range.centre).sum())
        belief = belief + ups * np.log(high) + (len(answers) - ups) * np.log1p(-high)
    else:
        raise ConfigError(
            f"answers of {type(mechanism).__name__} at epsilon {mechanism.epsilon:g} have no closed likelihood here; "
            "attack randomised response, Laplace or Duchi answers"
        )
    weights = np.exp(belief - belief.max())
    return np.asarray(weights / weights.sum())


def most_likely(belief: NDArray[np.float64], mechanism: SizeMechanism) -> int:
    """The size with the largest posterior, the smallest among equals; for randomised response the mode of the answers.

    A client at the upper end of the range holds at least that many examples.
    """
    return mechanism.range.lo + int(belief.argmax())


def _log_prior(prior: NDArray[np.float64], sizes: int) -> NDArray[np.float64]:
    if prior.shape != (sizes,) or not np.all(np.isfinite(prior) & (prior >= 0)) or prior.sum() <= 0:
        raise ConfigError(f"the prior has the shape {prior.shape} or no mass; give {sizes} numbers ≥ 0, one per size")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(prior / prior.sum()))
