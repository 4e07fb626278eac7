"""How well scores tell members from non-members: ROC, AUC, rates at small false-positive rates, and what DP allows.

A larger score says "member". Everywhere ``members`` [n1] and ``others`` [n0] are the scores of those who are and of
those who are not; a candidate is called a member if its score is at least the threshold.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from attacks.metrics.measure import CONFIDENCE, Measure, clopper_pearson, proportion
from privfl.errors import ConfigError
from privfl.validation import check_number, said

Scores = NDArray[np.float64]
FALSE_POSITIVE_RATES = (0.1, 0.01, 0.001)


def as_mask(name: str, values: ArrayLike, each: str) -> NDArray[np.bool_]:
    """``values`` as bool of their shape, if they say yes or no of ``each`` one: True and False, or 1 and 0.

    Whatever else there is would count as a yes by its being there, −1 and "out" among it.

    Raises:
        ConfigError: a value is neither.
    """
    try:
        found = np.asarray(values)
    except ValueError:  # rows of unlike length
        raise ConfigError(f"{name} is {said(values)}; give True or False for each {each}") from None
    if found.dtype.kind in "iuf":
        wrong = found[(found != 0) & (found != 1)].tolist()
    else:
        wrong = [one for one in found.ravel().tolist() if not isinstance(one, bool | np.bool_)]
    if wrong:
        raise ConfigError(f"{name} holds {said(wrong[0])}; give True or False for each {each}")
    return found.astype(np.bool_)


def auc(members: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE) -> Measure:
    """P[member's score > other's score] + ½·P[equal]: the exact rank statistic.

    The interval is that of a binomial with min(n1, n0) trials, whose variance is never below that of the rank
    statistic (Birnbaum & Klose, Annals of Mathematical Statistics 1957): it is conservative, and has a width at AUC 1.
    """
    ins, outs = _checked(members, others)
    ranks = rankdata(np.concatenate([ins, outs]))
    wins = float(ranks[: len(ins)].sum()) - len(ins) * (len(ins) + 1) / 2
    value = min(1.0, max(0.0, wins / (len(ins) * len(outs))))
    least = min(len(ins), len(outs))
    return Measure(value, *clopper_pearson(value * least, least, confidence))


def advantage(members: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE) -> Measure:
    """Membership advantage max_τ (TPR − FPR), Yeom et al., CSF 2018.

    The threshold is chosen on the same scores, so the interval comes from the Dvoretzky–Kiefer–Wolfowitz bands of both
    distributions (Massart's constant), which hold for all thresholds at once. It is wide for few scores.
    """
    fpr, tpr = roc(members, others)
    value = float((tpr - fpr).max())
    ins, outs = _checked(members, others)
    error = (1 - confidence) / 2
    band = sum(math.sqrt(math.log(2 / error) / (2 * len(scores))) for scores in (ins, outs))
    return Measure(value, max(0.0, value - band), min(1.0, value + band))


def balanced_accuracy(members: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE) -> Measure:
    """max_τ ½·(TPR + TNR) = ½·(1 + advantage), with the advantage's interval."""
    found = advantage(members, others, confidence)
    return Measure((1 + found.value) / 2, (1 + found.low) / 2, (1 + found.high) / 2)


def tpr_at_fpr(members: ArrayLike, others: ArrayLike, target: float, confidence: float = CONFIDENCE) -> Measure:
    """TPR at the smallest threshold whose empirical FPR is at most ``target`` in [0, 1].

    Non-members alone fix the threshold, so the members' hits are binomial and the Clopper–Pearson interval is exact.
    A target below 1/n0 allows no false positive; 0.1 % needs 10⁴ non-members to mean much.

    Raises:
        ConfigError: ``target`` is not in [0, 1].
    """
    ins, outs = _checked(members, others)
    return proportion(int((ins > _cut(outs, target)).sum()), len(ins), confidence)


def roc(members: ArrayLike, others: ArrayLike) -> tuple[Scores, Scores]:
    """FPR and TPR at all thresholds, from +∞ (0, 0) down to the smallest score (1, 1); both ascending."""
    ins, outs = _checked(members, others)
    thresholds = np.unique(np.concatenate([ins, outs]))[::-1]
    above = [1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores) for scores in (outs, ins)]
    fpr, tpr = (np.concatenate([[0.0], rate]) for rate in above)
    return fpr, tpr


def membership_measures(
    members: ArrayLike, others: ArrayLike, rates: tuple[float, ...] = FALSE_POSITIVE_RATES
) -> dict[str, Measure]:
    """AUC, balanced accuracy, advantage and TPR at every rate of ``rates`` that n0 non-members can resolve.

    A rate below 1/n0 is left out: its TPR would be that at no false positive at all.
    """
    _, outs = _checked(members, others)
    found = {
        "auc": auc(members, others),
        "balanced_accuracy": balanced_accuracy(members, others),
        "advantage": advantage(members, others),
    }
    for rate in rates:
        if rate * len(outs) >= 1:
            found[f"tpr_at_fpr_{rate:g}"] = tpr_at_fpr(members, others, rate)
    return found


def advantage_ceiling(epsilon: float, delta: float = 0.0) -> float:
    """The largest TPR − FPR that (ε, δ)-DP allows: (e^ε − 1 + 2δ)/(e^ε + 1); 1 for ε = ∞ (Kairouz et al. 2015).

    Raises:
        ConfigError: ε is negative or δ not in [0, 1].
    """
    _check_claim(epsilon, delta)
    return 1.0 if epsilon > 700 else min(1.0, (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1))


def tpr_ceiling(fpr: float, epsilon: float, delta: float = 0.0) -> float:
    """The largest TPR at ``fpr`` that (ε, δ)-DP allows: min(e^ε·FPR + δ, 1 − e^−ε·(1 − δ − FPR), 1).

    Raises:
        ConfigError: ε is negative, or δ or ``fpr`` is not in [0, 1].
    """
    _check_claim(epsilon, delta)
    check_number("the false-positive rate", fpr, 0, 1)
    upper = 1 - math.exp(-epsilon) * max(0.0, 1 - delta - fpr)
    return min(1.0, upper) if epsilon > 700 else min(1.0, math.exp(epsilon) * fpr + delta, upper)


def auc_ceiling(epsilon: float, delta: float = 0.0) -> float:
    """The largest AUC that (ε, δ)-DP allows: the area under :func:`tpr_ceiling`, ``1 − (1 − δ)²/(1 + e^ε)``."""
    _check_claim(epsilon, delta)
    return 1.0 if epsilon > 700 else 1 - (1 - delta) ** 2 / (1 + math.exp(epsilon))


def _cut(others: Scores, target: float) -> float:
    """What a score must exceed so that at most a share ``target`` of ``others`` does."""
    check_number("the false-positive rate", target, 0, 1)
    allowed = math.floor(target * len(others) + 1e-9)
    return -math.inf if allowed >= len(others) else float(np.sort(others)[::-1][allowed])


def _checked(members: ArrayLike, others: ArrayLike) -> tuple[Scores, Scores]:
    ins, outs = (np.asarray(scores, dtype=np.float64).reshape(-1) for scores in (members, others))
    if not len(ins) or not len(outs):
        raise ConfigError(f"there are {len(ins)} members and {len(outs)} non-members; score at least one of each")
    if np.isnan(ins).any() or np.isnan(outs).any():
        raise ConfigError("a membership score is NaN; a score must order the candidates")
    return ins, outs


def _check_claim(epsilon: float, delta: float) -> None:
    if not epsilon >= 0 or not 0 <= delta <= 1:
        raise ConfigError(f"the claim is ε = {epsilon!r}, δ = {delta!r}; give ε ≥ 0 and δ in [0, 1]")
