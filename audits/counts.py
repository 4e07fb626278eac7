"""A certified ε from how often a fixed decision was right: two worlds, independent trials in each."""

from __future__ import annotations

import math
from typing import Literal

from audits.bound import LowerBound, error_level
from audits.rates import clopper_pearson_lower, clopper_pearson_upper
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
) -> LowerBound:
    """The largest ε that a decision's counts certify: ``true_positives`` of ``members``, ``false_positives`` of others.

    Under (ε, δ)-DP a decision that does not depend on these trials has TPR ≤ e^ε·FPR + δ and TNR ≤ e^ε·FNR + δ. Both
    rates are bounded by Clopper and Pearson, each at (1 − confidence)/2, so all holds at once with ``confidence``, and
    ε is the larger of ln((TPR⁻ − δ)/FPR⁺) and ln((TNR⁻ − δ)/FNR⁺), or 0. With ``sides="tpr_only"`` only the first,
    as LDP-Auditor has it.

    The trials of each world must be independent, and the decision fixed before they are seen; see
    :func:`audits.scores.epsilon_from_scores` for decisions that are chosen on scores.

    Raises:
        ConfigError: the counts are impossible, or ``delta``, ``confidence`` or ``sides`` is not as said.

    Source: Jagielski, Ullman & Oprea, NeurIPS 2020; Nasr et al., S&P 2021. They leave out one direction or δ; Jagielski
    et al. and LDP-Auditor (Arcolezi & Gambs, PoPETs 2024) split the error further than is needed.
    """
    level = error_level(delta, confidence) / 2
    if sides not in ("both", "tpr_only"):
        raise ConfigError(f"sides is {sides!r}; choose 'both' or 'tpr_only'")
    tpr_low = float(clopper_pearson_lower(true_positives, members, level))
    fpr_high = float(clopper_pearson_upper(false_positives, non_members, level))
    epsilon = log_ratio(tpr_low, fpr_high, delta)
    details = {
        "true_positives": int(true_positives),
        "members": int(members),
        "false_positives": int(false_positives),
        "non_members": int(non_members),
        "tpr_low": tpr_low,
        "fpr_high": fpr_high,
    }
    if sides == "both":
        tnr_low = float(clopper_pearson_lower(non_members - false_positives, non_members, level))
        fnr_high = float(clopper_pearson_upper(members - true_positives, members, level))
        epsilon = max(epsilon, log_ratio(tnr_low, fnr_high, delta))
        details |= {"tnr_low": tnr_low, "fnr_high": fnr_high}
    return LowerBound(
        epsilon=epsilon, delta=delta, confidence=confidence, method="Clopper-Pearson on counts", details=details
    )


def log_ratio(likely: float, unlikely: float, delta: float) -> float:
    """ln((likely − δ)/unlikely), 0 where that is negative or no number: the ε that two rates of one event need."""
    if likely <= delta:
        return 0.0
    return max(0.0, math.log(likely - delta) - math.log(unlikely)) if unlikely > 0 else math.inf


def perfect_attack_ceiling(trials: int, *, delta: float, confidence: float) -> float:
    """What an attack that is always right certifies with ``trials`` per world: no bound from counts can be larger."""
    return epsilon_from_counts(trials, trials, 0, trials, delta=delta, confidence=confidence).epsilon
