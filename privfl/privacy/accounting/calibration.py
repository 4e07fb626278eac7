"""The other direction: how much noise, or how many rounds, a target ε allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import dp_accounting as dp
from dp_accounting import DpEvent

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import check_delta, epsilon
from privfl.privacy.accounting.events import ADD_REMOVE, History

_LARGEST_NOISE = 1e6

_MOST_STEPS = 10**7


def noise_multiplier_for(
    target_epsilon: float, target_delta: float, sample_rate: float, steps: int, *, besides: History | None = None
) -> float:
    """The smallest noise multiplier, to 4 digits, with which ``steps`` Poisson-sampled Gaussian answers keep a target.

    ``besides`` is what the same unit releases on top. The result is rounded up: the claim of
    :func:`privfl.privacy.accounting.accountant.epsilon` at the result is at most ``target_epsilon``. With no steps or
    rate 0 no noise is needed and the result is 0.

    Raises:
        PrivacyError: an impossible target (ε <= 0, delta outside (0, 1), spent already by ``besides``, or out of
            reach even with a noise multiplier of a million), or a rate outside [0, 1].
    """
    check_delta(target_delta)
    _check_target(target_epsilon)
    if not 0 <= sample_rate <= 1 or steps < 0:
        raise PrivacyError(f"{steps} steps at sampling rate {sample_rate}: a rate lies in [0, 1], steps start at 0.")
    extra = besides or {}

    def spent(noise: float) -> float:
        event = dp.PoissonSampledDpEvent(sample_rate, dp.GaussianDpEvent(noise))
        history = dict(extra)
        history[event, ADD_REMOVE] = history.get((event, ADD_REMOVE), 0) + steps
        return epsilon(history, target_delta, interval=False).epsilon

    if (alone := epsilon(extra, target_delta, interval=False).epsilon) > target_epsilon:
        raise PrivacyError(
            f"epsilon {target_epsilon:g} is out of reach: other releases spend {alone:.4g} already; raise the target."
        )
    if steps == 0 or sample_rate == 0:
        return 0.0
    if target_delta == 0:
        raise PrivacyError("Gaussian noise reaches no finite epsilon at delta = 0: choose a delta such as 1e-5.")
    low, high = 0.0, 1.0
    while spent(high) > target_epsilon:
        low, high = high, 2 * high
        if high > _LARGEST_NOISE:
            raise PrivacyError(
                f"epsilon {target_epsilon:g} at delta {target_delta:g} needs a noise multiplier above a million for "
                f"{steps} steps at rate {sample_rate:g}: raise the target or lower the number of steps."
            )
    while high - low > 2e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= target_epsilon else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    rounded = math.ceil(high / unit) * unit
    while spent(rounded) > target_epsilon:  # the claim is monotone up to its own looseness of 1e-4
        rounded += unit
    return rounded


def steps_within(
    target_epsilon: float, target_delta: float, per_step: History | DpEvent, already: History | None = None
) -> int:
    """The largest number of steps that keep the claim within ``target_epsilon``, possibly 0.

    ``per_step`` is what one step releases, an event under add-or-remove-one or a history; ``already`` is what has been
    released before.

    Raises:
        PrivacyError: an impossible target, ``already`` above the target, or steps that cost nothing.
    """
    check_delta(target_delta)
    _check_target(target_epsilon)
    step = per_step if isinstance(per_step, Mapping) else {(per_step, ADD_REMOVE): 1}
    before = already or {}

    def spent(steps: int) -> float:
        history = dict(before)
        for kind, count in step.items():
            history[kind] = history.get(kind, 0) + steps * count
        return epsilon(history, target_delta, interval=False).epsilon

    if (alone := spent(0)) > target_epsilon:
        raise PrivacyError(
            f"epsilon {target_epsilon:g} is spent already ({alone:.4g}): raise the target or start a new ledger."
        )
    if spent(1) > target_epsilon:
        return 0
    low, high = 1, 2
    while spent(high) <= target_epsilon:
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            raise PrivacyError(
                f"more than {_MOST_STEPS} steps stay within epsilon {target_epsilon:g}: no limit needed."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle) <= target_epsilon else (low, middle)
    return low


def _check_target(target_epsilon: float) -> None:
    if not target_epsilon > 0:
        raise PrivacyError(f"the target epsilon is {target_epsilon}: give a positive number.")
