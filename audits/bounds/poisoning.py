"""A certified ε from worlds that differ in several records: k poisons move a model k times as far as one is allowed."""

from __future__ import annotations

import math

from audits.bounds.bound import LowerBound, error_level
from audits.bounds.one_run_search import largest_refuted
from audits.bounds.rates import ErrorRates, as_count


def epsilon_from_poisoning(
    true_positives: int,
    members: int,
    false_positives: int,
    non_members: int,
    *,
    poisons: int,
    delta: float,
    confidence: float,
) -> LowerBound:
    """The largest ε for one record that counts certify when a world with k = ``poisons`` records more is told apart.

    ``true_positives`` of ``members`` models trained with the poisons were recognised, and ``false_positives`` of
    ``non_members`` trained without. (ε, δ)-DP for one record is (kε, δ·(e^kε − 1)/(e^ε − 1))-DP for k, so ε is the
    supremum of what TPR⁻ > e^kε·FPR⁺ + δ·(e^kε − 1)/(e^ε − 1) refutes, or the same for TNR⁻ and FNR⁺. Clopper and
    Pearson bound both error rates, each at (1 − confidence)/2. The decision must be fixed before the models are seen.

    Raises:
        ConfigError: the counts are impossible, ``poisons`` is below 1, or ``delta`` or ``confidence`` out of range.

    Source: Jagielski, Ullman & Oprea, NeurIPS 2020, theorem 5 and section 4. They have δ = 0, and pick the direction
    with the larger ratio, as the larger of both does here; both hold at once.
    """
    level = error_level(delta, confidence) / 2
    poisons = as_count("poisons", poisons, 1)
    true_positives = as_count("true_positives", true_positives)
    false_positives = as_count("false_positives", false_positives)
    rates = ErrorRates.from_counts(true_positives, members, false_positives, non_members, (level, level)).to_json()
    directions = ((rates["tpr_low"], rates["fpr_high"]), (rates["tnr_low"], rates["fnr_high"]))

    def refuted(epsilon: float) -> bool:
        if poisons * epsilon > 700:
            return False
        steps = poisons if epsilon == 0 else math.expm1(poisons * epsilon) / math.expm1(epsilon)
        return any(likely > math.exp(poisons * epsilon) * unlikely + delta * steps for likely, unlikely in directions)

    return LowerBound(
        epsilon=largest_refuted(refuted),
        delta=delta,
        confidence=confidence,
        method="group privacy on counts",
        details={
            "true_positives": int(true_positives),
            "members": int(members),
            "false_positives": int(false_positives),
            "non_members": int(non_members),
            "poisons": int(poisons),
            **rates,
        },
    )
