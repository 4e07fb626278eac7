"""The other direction: how much noise a target ε needs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import dp_accounting as dp

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import check_delta, epsilon
from privfl.privacy.accounting.events import ADD_REMOVE, History

_LARGEST_NOISE = 1e6


def noise_multiplier_for(
    target_epsilon: float, target_delta: float, gradients: Mapping[float, int], *, besides: History | None = None
) -> float:
    """The smallest noise multiplier, to 0.1 %, with which Poisson-sampled Gaussian answers keep a target.

    ``gradients`` says how many answers are taken at each sampling rate, ``besides`` what the same unit releases on top.
    The claim of :func:`privfl.privacy.accounting.accountant.epsilon` at the result is at most ``target_epsilon``.
    Where nothing is sampled no noise is needed and the result is 0.

    Raises:
        PrivacyError: an impossible target (ε <= 0, delta outside (0, 1), spent already by ``besides``, or out of
            reach even with a noise multiplier of a million), a rate outside [0, 1] or a negative number of answers.
    """
    check_delta(target_delta)
    if not target_epsilon > 0:
        raise PrivacyError(f"the target epsilon is {target_epsilon}: give a positive number.")
    for rate, count in gradients.items():
        if not 0 <= rate <= 1 or count < 0:
            raise PrivacyError(f"{count} steps at sampling rate {rate}: a rate lies in [0, 1], steps start at 0.")
    extra = besides or {}

    def spent(noise: float) -> float:
        history = dict(extra)
        for rate, count in gradients.items():
            kind = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), ADD_REMOVE
            history[kind] = history.get(kind, 0) + count
        return epsilon(history, target_delta, interval=False).epsilon

    if (alone := epsilon(extra, target_delta, interval=False).epsilon) > target_epsilon:
        raise PrivacyError(
            f"target_epsilon is {target_epsilon:g}, but what is sent besides gradients alone costs {alone:.4g} for one "
            "example; raise the target, or choose a size mechanism that costs less (laplace charges an example least)"
        )
    if not any(rate * count for rate, count in gradients.items()):
        return 0.0
    if target_delta == 0:
        raise PrivacyError("Gaussian noise reaches no finite epsilon at delta = 0: choose a delta such as 1e-5.")
    low, high = 0.0, 1.0
    while spent(high) > target_epsilon:
        low, high = high, 2 * high
        if high > _LARGEST_NOISE:
            raise PrivacyError(
                f"epsilon {target_epsilon:g} at delta {target_delta:g} needs a noise multiplier above a million: raise "
                "the target or lower the number of steps."
            )
    while high - low > 1e-3 * high and high > 1e-3:
        middle = math.sqrt(low * high) if low > 0 else high / 2
        low, high = (low, middle) if spent(middle) <= target_epsilon else (middle, high)
    return high
