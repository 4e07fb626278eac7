"""A certified ε from scores of two worlds: the threshold is fixed in advance, chosen on other trials, or paid for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audits.bounds.bound import LowerBound, error_level
from audits.bounds.counts import bound_in_family, epsilon_of
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.rates import ErrorRates, Rates, as_scores
from privfl.errors import ConfigError
from privfl.randomness import numpy_stream

Choice = Literal["split", "bonferroni", "dkw"]
CHOICES = ("split", "bonferroni", "dkw")

_CAUTION = 60
"""A threshold is chosen by bounds at this fraction of the error level: otherwise luck in the far tails wins, and the
other half pays for it. It decides how much is found, not whether the bound holds."""


@dataclass(frozen=True)
class _Decisions:
    """Decisions "score ≥ threshold" on two sets of scores: how often each said "in"."""

    thresholds: Rates
    true_positives: NDArray[np.int64]
    members: int
    false_positives: NDArray[np.int64]
    non_members: int

    @classmethod
    def count(cls, thresholds: Rates, ins: Rates, outs: Rates) -> _Decisions:
        hits, alarms = (
            len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left") for scores in (ins, outs)
        )
        return cls(thresholds, hits, len(ins), alarms, len(outs))

    def rates(self, level_in: float, level_out: float) -> ErrorRates:
        return ErrorRates.from_counts(
            self.true_positives, self.members, self.false_positives, self.non_members, (level_in, level_out)
        )

    def details(self, index: int) -> dict[str, object]:
        return {
            "threshold": float(self.thresholds[index]),
            "true_positives": int(self.true_positives[index]),
            "members": self.members,
            "false_positives": int(self.false_positives[index]),
            "non_members": self.non_members,
        }


def epsilon_from_scores(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    *,
    delta: float,
    confidence: float,
    choice: Choice = "split",
    threshold: float | None = None,
    family: GaussianFamily | None = None,
    seed: int = 0,
) -> LowerBound:
    """The largest ε certified by "score ≥ threshold" on ``scores_in`` [n1] and ``scores_out`` [n0], larger for "in".

    The scores of each world must be independent trials. ``choice`` says how the search for a threshold is paid for:

    ===============  ==================================================================================================
    ``threshold=t``  t was fixed before the scores were seen: nothing to pay, all trials count
    ``split``        t is the best on a random half of both worlds' trials, and ε comes from the other half alone
    ``bonferroni``   Clopper–Pearson at level (1 − confidence)/2 divided by n0 (false alarms) and by n1 (misses), which
                     holds at all thresholds at once: the true rate beyond the (k+1)-th largest of n scores has the law
                     whose quantile Clopper and Pearson take, and k has n values
    ``dkw``          rates ± √(ln(2/(1 − confidence))/(2n)), at all thresholds at once; blind to rates near 0
    ===============  ==================================================================================================

    With a ``family``, ε is read off the family's trade-off curve (see
    :func:`audits.bounds.counts.epsilon_from_counts`).

    Args:
        seed: which halves ``split`` draws. Keeping the best of several seeds is a choice that nobody paid for.

    Raises:
        ConfigError: a world has too few scores (two for ``split``), a score is NaN, or an argument is not as said.

    Source: section 6.1's test; Massart 1990 for the constant of the Dvoretzky–Kiefer–Wolfowitz inequality, one side per
    world. Published auditors that divide by the number of thresholds on the observed hull divide by too little.
    """
    level = error_level(delta, confidence)
    ins, outs = _checked(scores_in, scores_out)
    if choice not in CHOICES:
        raise ConfigError(f"the choice is {choice!r}; choose one of {', '.join(CHOICES)}, or give a threshold")
    if family is not None:
        family.epsilon(math.inf, delta)
    if threshold is not None:
        if choice != "split":
            raise ConfigError(f"a threshold is given, and the choice '{choice}' too; give one of them")
        if isinstance(threshold, bool) or not isinstance(threshold, Real) or math.isnan(threshold):
            raise ConfigError(
                f"the threshold is {threshold!r}; give a number, or leave it out and say how to choose one"
            )
        found, method = (
            _Decisions.count(np.array([threshold], dtype=np.float64), ins, outs),
            "threshold fixed in advance",
        )
        rates = found.rates(level / 2, level / 2)
    elif choice == "split":
        best, ins, outs = _chosen_on_a_half(ins, outs, level, delta, family, seed)
        found, method = (
            _Decisions.count(np.array([best]), ins, outs),
            "threshold chosen on other trials",
        )
        rates = found.rates(level / 2, level / 2)
    else:
        found = _Decisions.count(np.unique(np.concatenate([ins, outs])), ins, outs)
        method = "all thresholds, Bonferroni" if choice == "bonferroni" else "all thresholds, DKW"
        rates = (
            found.rates(level / 2 / len(ins), level / 2 / len(outs)) if choice == "bonferroni" else _bands(found, level)
        )
    index = _best(rates, delta, family)
    one, details = rates.at(index), found.details(index) | rates.at(index).to_json()
    if family is not None:
        return bound_in_family(one, family, delta, confidence, method, details)
    return LowerBound(
        epsilon=epsilon_of(one, delta), delta=delta, confidence=confidence, method=method, details=details
    )


def _chosen_on_a_half(
    ins: Rates, outs: Rates, level: float, delta: float, family: GaussianFamily | None, seed: int
) -> tuple[float, Rates, Rates]:
    """The best threshold of one random half, and the scores of the other half."""
    if min(len(ins), len(outs)) < 2:
        raise ConfigError(
            f"there are {len(ins)} and {len(outs)} scores, which cannot be split; score two of each, or fix a threshold"
        )
    generator = numpy_stream(seed, "audit-split")
    halves = [np.split(generator.permutation(scores), [len(scores) // 2]) for scores in (ins, outs)]
    (chosen_in, kept_in), (chosen_out, kept_out) = halves
    tried = _Decisions.count(np.unique(np.concatenate([chosen_in, chosen_out])), chosen_in, chosen_out)
    best = _best(tried.rates(level / _CAUTION, level / _CAUTION), delta, family)
    return float(tried.thresholds[best]), kept_in, kept_out


def _bands(found: _Decisions, level: float) -> ErrorRates:
    inside, outside = (math.sqrt(math.log(2 / level) / (2 * number)) for number in (found.members, found.non_members))
    tpr, fpr = found.true_positives / found.members, found.false_positives / found.non_members
    fnr_high, fpr_high = np.minimum(1 - tpr + inside, 1.0), np.minimum(fpr + outside, 1.0)
    return ErrorRates(fpr_high, fnr_high, 1 - fnr_high, 1 - fpr_high)


def _best(rates: ErrorRates, delta: float, family: GaussianFamily | None) -> int:
    """The index of the decision that certifies most; on trials where all bounds hold at once any index would do."""
    if family is not None:
        return int(np.argmax(family.strengths(rates)))
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = np.log(np.maximum(rates.tpr_low - delta, 0)) - np.log(rates.fpr_high)
        reverse = np.log(np.maximum(rates.tnr_low - delta, 0)) - np.log(rates.fnr_high)
    return int(np.argmax(np.maximum(direct, reverse)))


def _checked(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Rates, Rates]:
    ins, outs = as_scores("scores_in", scores_in), as_scores("scores_out", scores_out)
    if not len(ins) or not len(outs):
        raise ConfigError(f"there are {len(ins)} scores in and {len(outs)} out; score at least one trial of each world")
    return ins, outs
