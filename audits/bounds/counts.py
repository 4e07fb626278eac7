"""A certified ε from how often a fixed decision was right: two worlds, independent trials in each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from audits.bounds.bound import LowerBound, error_level
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.rates import ErrorRates, as_count
from privfl.errors import ConfigError

Sides = Literal["both", "tpr_only"]


def epsilon_from_counts(
    true_positives: int,
    members: int,
    false_positives: int,
    non_members: int,
    *,
    delta: float,
    confidence: float,
    sides: Sides = "both",
    family: GaussianFamily | None = None,
) -> LowerBound:
    """The largest ε that a decision's counts certify: ``true_positives`` of ``members``, ``false_positives`` of others.

    Under (ε, δ)-DP a decision that does not depend on these trials has TPR ≤ e^ε·FPR + δ and TNR ≤ e^ε·FNR + δ. Both
    rates are bounded by Clopper and Pearson, each at (1 − confidence)/2, so all holds at once with ``confidence``, and
    ε is the larger of ln((TPR⁻ − δ)/FPR⁺) and ln((TNR⁻ − δ)/FNR⁺), or 0. With ``sides="tpr_only"`` only the first,
    as LDP-Auditor has it.

    With a ``family``, ε is instead that of the family's member with the largest noise that allows FPR⁺ and FNR⁺: much
    larger, and worth as much as the assumption that the mechanism's trade-off curve is a member's.

    The trials of each world must be independent, and the decision fixed before they are seen; see
    :func:`audits.bounds.scores.epsilon_from_scores` for decisions that are chosen on scores.

    Raises:
        ConfigError: the counts are impossible, or ``delta``, ``confidence`` or ``sides`` is not as said.

    Source: Jagielski, Ullman & Oprea, NeurIPS 2020; Nasr et al., S&P 2021; with a family Nasr et al., USENIX Security
    2023. The first leave out δ, LDP-Auditor (Arcolezi & Gambs, PoPETs 2024) splits the error further than is needed.
    """
    level = error_level(delta, confidence) / 2
    if sides not in ("both", "tpr_only"):
        raise ConfigError(f"sides is {sides!r}; choose 'both' or 'tpr_only'")
    if family is not None and sides != "both":
        raise ConfigError("sides is 'tpr_only', but a family's curve needs both error rates; leave sides out")
    true_positives = as_count("true_positives", true_positives)
    false_positives = as_count("false_positives", false_positives)
    rates = ErrorRates.from_counts(true_positives, members, false_positives, non_members, (level, level))
    details = {
        "true_positives": int(true_positives),
        "members": int(members),
        "false_positives": int(false_positives),
        "non_members": int(non_members),
        **rates.to_json(),
    }
    if family is not None:
        return bound_in_family(rates, family, delta, confidence, "Clopper-Pearson on counts", details)
    return LowerBound(
        epsilon=epsilon_of(rates, delta, sides),
        delta=delta,
        confidence=confidence,
        method="Clopper-Pearson on counts",
        details=details,
    )


def bound_in_family(
    rates: ErrorRates,
    family: GaussianFamily,
    delta: float,
    confidence: float,
    method: str,
    details: Mapping[str, object],
) -> LowerBound:
    """The bound that the ``rates`` of one decision give in ``family``; the noise found is added to the details."""
    noise = family.noise(rates)
    return LowerBound(
        epsilon=family.epsilon(noise, delta),
        delta=delta,
        confidence=confidence,
        method=f"Gaussian trade-off curve, {method}",
        assumes=family.assumption,
        details={**details, "noise_multiplier": noise if math.isfinite(noise) else "inf"},
    )


def epsilon_of(rates: ErrorRates, delta: float, sides: Sides = "both") -> float:
    """The smallest ε ≥ 0 that allows the ``rates`` of one decision at ``delta``, in one direction or in both."""
    epsilon = log_ratio(float(rates.tpr_low), float(rates.fpr_high), delta)
    if sides == "both":
        epsilon = max(epsilon, log_ratio(float(rates.tnr_low), float(rates.fnr_high), delta))
    return epsilon


def perfect_attack_ceiling(trials: int, *, delta: float, confidence: float) -> float:
    """What an attack that is always right certifies with ``trials`` per world: no bound from counts can be larger.

    Raises:
        ConfigError: ``trials`` is below 1, or ``delta`` or ``confidence`` is out of range.
    """
    return epsilon_from_counts(trials, trials, 0, trials, delta=delta, confidence=confidence).epsilon


def log_ratio(likely: float, unlikely: float, delta: float) -> float:
    """ln((likely − δ)/unlikely), 0 where that is negative or no number: the ε that two rates of one event need."""
    if likely <= delta:
        return 0.0
    return max(0.0, math.log(likely - delta) - math.log(unlikely)) if unlikely > 0 else math.inf
