"""Audits of additive noise by its own release: does what comes out betray what went in, down to the last bit?

All (ε, δ) that one noise scale earns are claimed at once, so a test may pick whichever of them the trials refute most.
What is released are floating-point numbers, and an error may sit in bits that no one looks at: the smallest power of
two that divides x + noise tells x where noise is added in floating point and left there (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from audits.bounds.bound import error_level
from audits.bounds.counts import log_ratio
from audits.bounds.guess_budget import gaussian_strength
from audits.bounds.rates import clopper_pearson_lower, clopper_pearson_upper
from privfl.errors import ConfigError
from privfl.plain_text import printable
from privfl.validation import checked

Values = NDArray[np.float64]
Mechanism = Callable[[Values], Values]
"""Releases of the true values [n]: noisy float64 numbers [n], independent of each other."""
Noise = Literal["laplace", "gaussian"]

DELTAS: Values = np.concatenate([[0.0], np.geomspace(1e-9, 0.999, 900)])
"""The δ at which the claim is tried."""
_CAUTION = 60
"""Events are chosen by bounds at this fraction of the error level, or luck in the far tails would win."""


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """What releases of two neighbouring values certify of the noise between them.

    Args:
        noise: the law that is claimed.
        claimed_scale: its scale: b of Laplace noise, σ of Gaussian noise.
        certified_scale: with ``confidence``, noise that earned what was seen would have a scale of at most this.
        epsilon, delta: where the claim fails most, or comes closest to failing: no noise that fits is
            (ε′, ``delta``)-DP with ε′ < ``epsilon``.
        confidence: in (0, 1).
        details: the event's counts.
    """

    noise: Noise
    claimed_scale: float
    certified_scale: float
    epsilon: float
    delta: float
    confidence: float
    details: dict[str, Any]

    @property
    def refuted(self) -> bool:
        """Whether the claimed scale is refuted with ``confidence``."""
        return self.certified_scale < self.claimed_scale

    def __str__(self) -> str:
        verdict = "is refuted" if self.refuted else "is not refuted, which does not prove it"
        return printable(
            f"{self.noise} noise of scale {self.claimed_scale:g} {verdict}: what was seen allows at most "
            f"{self.certified_scale:.4g} (ε = {self.epsilon:.3g} at δ = {self.delta:.2g}) with confidence "
            f"{100 * self.confidence:.10g} %"
        )


@checked
def audit_noise(
    release: Mechanism,
    *,
    noise: Noise,
    scale: float,
    shift: float = 1.0,
    trials: int = 40_000,
    confidence: float = 0.95,
) -> NoiseAudit:
    """Audit ``release``, which claims to add ``noise`` of ``scale`` to values that differ by at most ``shift``.

    A decision tree learns from the values, exponents and last bits of ``trials`` releases of 0 and as many of
    ``shift`` (a third of them) which is which; another third chooses the tail of its posterior, in either direction;
    the last third certifies it by Clopper and Pearson, each rate at half the error. For every δ of :data:`DELTAS` these
    two rates need an ε, in one direction or the other, and (ε, δ) a scale by the exact curve of the law:
    δ(ε) = 1 − e^{(ε − shift/b)/2} for Laplace noise, Balle and Wang's for Gaussian noise. The smallest of these scales
    is certified: all hold as soon as the two rates do.

    Raises:
        ConfigError: fewer than 300 trials, or ``noise``, ``scale`` or ``shift`` is not as said.

    Source: Lokna et al., "Group and Attack: Auditing Differential Privacy", CCS 2023. They take a formula of
    Gaussian noise that holds for ε ≤ 1 alone; here the curve is exact, and no point has to be left out.
    """
    level = error_level(0.0, confidence) / 2
    if trials < 300:
        raise ConfigError(f"{trials} trials are too few to learn from, to choose and to certify; give at least 300")
    if not (0 < scale < math.inf and 0 < shift < math.inf):
        raise ConfigError(f"the scale is {scale!r} and the shift {shift!r}; give two positive numbers")
    third = trials // 3
    parts = [[features(release(np.full(third, value))) for value in (0.0, shift)] for _ in range(3)]
    (zeros, ones), chosen_on, certified_on = parts
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(min_samples_leaf=100, random_state=0)
    tree.fit(np.concatenate([zeros, ones]), np.repeat([0, 1], third))
    chosen = [tree.predict_proba(side)[:, 1] for side in chosen_on]
    threshold, upward = _best_tail(noise, chosen, level / _CAUTION)
    counts = [_tail(tree.predict_proba(side)[:, 1], threshold, upward) for side in certified_on]
    hits, alarms = (counts[1], counts[0]) if upward else (counts[0], counts[1])
    low = float(clopper_pearson_lower(hits, third, level))
    high = float(clopper_pearson_upper(alarms, third, level))
    smallest, epsilon, delta = math.inf, 0.0, 0.0
    for likely, unlikely in ((low, high), (1 - high, 1 - low)):  # the event and its complement
        for candidate in DELTAS[low - high > DELTAS]:
            needed = log_ratio(likely, unlikely, float(candidate))
            found = largest_scale(noise, needed, float(candidate), shift)
            if found < smallest:
                smallest, epsilon, delta = found, needed, float(candidate)
    details = {"hits": hits, "false_alarms": alarms, "trials": third, "threshold": threshold, "upward": upward}
    return NoiseAudit(
        noise=noise,
        claimed_scale=scale,
        certified_scale=smallest,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        details=details,
    )


def features(releases: Values) -> Values:
    """Value, exponent, the smallest power of two in it, and its last eight bits: float64 [n, 11]."""
    values = np.ascontiguousarray(releases, dtype=np.float64)
    bits = values.view(np.uint64)
    mantissas = (bits & np.uint64((1 << 52) - 1)) | np.uint64(1 << 52)
    lowest = np.log2((mantissas & (~mantissas + np.uint64(1))).astype(np.float64))
    exponents = np.frexp(values)[1].astype(np.float64)
    last = (bits[:, None] >> np.arange(8, dtype=np.uint64)) & np.uint64(1)
    return np.column_stack([values, exponents, np.where(values == 0, 0.0, exponents + lowest), last.astype(np.float64)])


def largest_scale(noise: Noise, epsilon: float, delta: float, shift: float) -> float:
    """The largest scale at which ``noise`` between two values ``shift`` apart is no better than (ε, δ)-DP.

    ∞ for (0, 0), and for Gaussian noise at δ = 0: it is never purely private, so nothing is claimed there.
    """
    if epsilon <= 0:
        if delta <= 0:
            return math.inf
        # the largest difference between two probabilities is δ
        apart = -2 * math.log1p(-delta) if noise == "laplace" else 2 * float(norm.ppf((1 + delta) / 2))
        return shift / apart
    if noise == "laplace":
        return shift / (epsilon - 2 * math.log1p(-delta))
    return math.inf if delta == 0 else shift / gaussian_strength(epsilon, delta)


def _tail(posterior: Values, threshold: float, upward: bool) -> int:
    return int((posterior > threshold).sum() if upward else (posterior < threshold).sum())


def _best_tail(noise: Noise, posteriors: list[Values], level: float) -> tuple[float, bool]:
    """The threshold, and its side, that would certify the smallest scale."""
    zeros, ones = posteriors
    best, chosen = -math.inf, (0.5, True)
    for threshold in np.unique(np.quantile(np.concatenate(posteriors), np.linspace(0, 1, 101))):
        for upward in (True, False):
            counts = [_tail(side, float(threshold), upward) for side in (zeros, ones)]
            hits, alarms = (counts[1], counts[0]) if upward else (counts[0], counts[1])
            low = float(clopper_pearson_lower(hits, len(ones), level))
            high = float(clopper_pearson_upper(alarms, len(zeros), level))
            found = _distance(noise, low, high)
            if found > best:
                best, chosen = found, (float(threshold), upward)
    return chosen


def _distance(noise: Noise, low: float, high: float) -> float:
    """shift/scale at which an event's probabilities ``low`` and ``high`` are just possible, −∞ if they always are."""
    if low <= high:
        return -math.inf
    if noise == "gaussian":
        return float(norm.ppf(low) - norm.ppf(high))
    deltas = DELTAS[low - high > DELTAS]
    ratios = np.maximum((low - deltas) / high, (1 - high - deltas) / (1 - low))
    return float((np.log(ratios) - 2 * np.log1p(-deltas)).max())
