"""Audits of a noise scale: the smallest noise that error rates refute, in a family of Gaussian mechanisms.

Far stronger than the bound that counts alone give, because one point of a trade-off curve fixes the whole curve. It is
a bound on the mechanism's ε only if the mechanism's curve is one of the family. If it merely lies above a member's, as
where a canary moves a sum by less than the clipping norm, the bound is on the ε of every member that lies below: enough
to refute what an accountant claims for that noise, and no more. A flaw of another kind is not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray
from scipy import special

from audits.bounds.rates import ErrorRates, Rates
from privfl.errors import ConfigError
from privfl.privacy.accounting import accountant
from privfl.privacy.accounting.composition import Sum, compose
from privfl.privacy.accounting.events import ADD_REMOVE, Kind
from privfl.validation import check_count, check_number

_INWARD = 1e-9
"""Noise found by search or closed form is taken larger by this share: more than rounding, and to the safe side."""

_LARGEST_NOISE, _SMALLEST_NOISE = 1e4, 0.2
"""Sampling is inverted between these; beyond, the bound without sampling is kept, below, this noise: both are safe."""

_STEP, _REACH, _POINTS = 2.0**-9, 30.0, 400
"""Grid of the losses of a composed curve, and how far and how finely its lines are drawn."""

_CURVE_DELTA = 1e-7
"""Where a composed trade-off curve is cut off: what escapes its window is far below any rate that trials certify."""


@dataclass(frozen=True)
class GaussianFamily:
    """Gaussian noise on Poisson-sampled sums, one mechanism for each noise multiplier σ > 0.

    Its output is N(B, σ²) at each of ``steps`` steps with the canary, B = 1 with probability ``sample_rate`` and 0
    otherwise, and N(0, σ²) without. Trials see the output of ``observed_steps`` of them: 1 if each step gives a score
    for each world, ``steps`` if each run does.

    Args:
        sample_rate: q in (0, 1], the same at every step; 1: every record takes part in every step.
        steps: how many steps ε is wanted for.
        observed_steps: how many steps the score of one trial sees.

    Raises:
        ConfigError: the rate is not in (0, 1], or a number of steps is below 1, or more steps are observed than taken.

    Source: Nasr et al., USENIX Security 2023, sections 4.3 and 4.4. They find the noise of the sampled family on a grid
    of curves; here one step has a closed form, and curves of several steps are those of the claim's own accountant.
    """

    sample_rate: float = 1.0
    steps: int = 1
    observed_steps: int = 1

    def __post_init__(self) -> None:
        check_number("sample_rate", self.sample_rate, 0, 1, above=True)
        check_count("steps", self.steps)
        check_count("observed_steps", self.observed_steps)
        if self.observed_steps > self.steps:
            raise ConfigError(
                f"{self.observed_steps} of {self.steps} steps are observed; give 1 ≤ observed_steps ≤ steps"
            )

    @property
    def assumption(self) -> str:
        """What a bound found in this family assumes."""
        sampled = "" if self.sample_rate == 1 else f", Poisson-sampled at rate {self.sample_rate:g}"
        number = "one step" if self.steps == 1 else f"{self.steps} steps"
        return f"the trade-off curve is that of {number} of Gaussian noise{sampled}"

    @property
    def precision(self) -> float:
        """To which share of itself the noise is worth searching for: curves of several sampled steps cost time."""
        return 1e-10 if self.sample_rate == 1 else 1e-4

    def strengths(self, rates: ErrorRates) -> Rates:
        """For choosing among decisions: larger where less noise is compatible with ``rates``; −∞ for chance or less."""
        inner = (
            rates.fnr_high if self.observed_steps > 1 else _missed_when_sampled(rates.fnr_high, rates, self.sample_rate)
        )
        with np.errstate(invalid="ignore"):
            found = special.ndtri(1 - rates.fpr_high) - special.ndtri(np.clip(inner, 0, 1))
        return np.where(np.isnan(found), -np.inf, found)

    def noise(self, rates: ErrorRates) -> float:
        """The largest noise multiplier under which one decision can have error rates as low as ``rates``.

        ∞ if they are no better than guessing, 0 if no noise allows them: then not even the sampling is as assumed.
        """
        fpr, fnr = float(rates.fpr_high), float(rates.fnr_high)
        if fpr + fnr >= 1:
            return math.inf
        mu = float(self.strengths(rates))
        unsampled = math.sqrt(self.observed_steps) / mu * (1 + _INWARD) if mu > 0 else math.inf
        if self.sample_rate == 1 or self.observed_steps == 1 or not 0 < unsampled < _LARGEST_NOISE:
            return unsampled

        def allowed(noise: float) -> bool:
            return not _below(self._lines(noise), float(rates.tpr_low), fpr)

        return _largest(allowed, unsampled)

    def epsilon(self, noise: float, delta: float) -> float:
        """The ε at ``delta`` of ``steps`` steps with this noise multiplier, rounded down.

        The lower end of the accountant's interval, 0 where it has none.

        Raises:
            ConfigError: ``delta`` is 0: Gaussian noise is never purely private, so the family's ε would be ∞.
        """
        if delta == 0:
            raise ConfigError("delta is 0, at which Gaussian noise has ε = ∞; give a positive delta, such as 1e-5")
        if noise == 0 or math.isinf(noise):
            return 0.0 if noise else math.inf
        bound = accountant.epsilon({self._kind(noise): self.steps}, delta)
        return max(0.0, bound.lower)

    def missed(self, noise: float) -> Callable[[float], float]:
        """For one canary of ``observed_steps`` steps: caught with probability r → the least that it is missed with.

        The probability that the same guess is made in the other world, where it is wrong, whichever world is which:
        f̄⁻¹(r), with f̄ = 1 − f and f the trade-off curve for one added or one removed record.
        """
        if self.sample_rate == 1 or noise == math.inf:
            mu = math.sqrt(self.observed_steps) / noise
            return lambda caught: 0.0 if caught <= 0 else float(special.ndtr(special.ndtri(min(caught, 1.0)) - mu))
        epsilons, deltas = self._lines(noise)
        both = np.maximum(deltas, _mirrored(epsilons, deltas))
        slopes = np.exp(-epsilons)
        return lambda caught: max(0.0, float(((caught - both) * slopes).max()))

    def _kind(self, noise: float) -> Kind:
        event: DpEvent = GaussianDpEvent(noise)
        return (event if self.sample_rate == 1 else PoissonSampledDpEvent(self.sample_rate, event)), ADD_REMOVE

    def _lines(self, noise: float) -> tuple[Rates, Rates]:
        """ε on a symmetric grid and δ(ε) ≥ sup_E P_in(E) − e^ε·P_out(E), for the observed steps."""
        try:
            sums = compose({self._kind(noise): self.observed_steps}, _STEP, _CURVE_DELTA)
        except OverflowError:  # so little noise that the grid has no room: draw a curve that refutes nothing
            return np.zeros(1), np.ones(1)
        epsilons = np.linspace(0.0, min(_REACH, max(one.lower + len(one.probs) for one in sums) * _STEP), _POINTS)
        caught, spared = (_hockey_sticks(one, epsilons) for one in (sums[0], sums[-1]))
        falling = -np.expm1(-epsilons) + np.exp(-epsilons) * spared
        return np.concatenate([-epsilons[:0:-1], epsilons]), np.concatenate([falling[:0:-1], caught])


def _missed_when_sampled(fnr_high: Rates, rates: ErrorRates, rate: float) -> Rates:
    """Bound on the misses among the trials in which the canary was sampled, 1 − FPR being the share when it was not."""
    return (fnr_high - (1 - rate) * (1 - rates.fpr_high)) / rate


def _hockey_sticks(loss: Sum, epsilons: Rates) -> Rates:
    """Σ P(loss)·(1 − e^(ε − loss))₊, and what escaped, for every ε ≥ 0 of a grid: never too small."""
    first = max(0, -loss.lower)
    values = (loss.lower + np.arange(first, len(loss.probs))) * loss.step
    probs = loss.probs[first:]
    mass, weighted = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (probs, probs * np.exp(-values)))
    places = np.searchsorted(values, epsilons)
    return np.asarray(np.clip(mass[places] - np.exp(epsilons) * weighted[places] + loss.escaped, 0.0, 1.0))


def _mirrored(epsilons: Rates, deltas: Rates) -> Rates:
    """δ of the reverse direction at the same ε: δ′(ε) = 1 − e^ε·(1 − δ(−ε))."""
    return np.asarray(1 - np.exp(epsilons) * (1 - deltas[::-1]), dtype=np.float64)


def _below(lines: tuple[Rates, Rates], tpr_low: float, fpr_high: float) -> bool:
    """Whether TPR⁻ > e^ε·FPR⁺ + δ(ε) for some ε: such rates lie below the trade-off curve."""
    epsilons, deltas = lines
    found: NDArray[np.bool_] = tpr_low > np.exp(epsilons) * fpr_high + deltas
    return bool(found.any())


def _largest(allowed: Callable[[float], bool], highest: float) -> float:
    """The largest noise up to ``highest`` that is ``allowed``, at most 1e-6 of itself too large and never too small."""
    low, high = highest / 2, highest
    while not allowed(low):
        low, high = low / 2, low
        if high < _SMALLEST_NOISE:
            return high
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return high
