"""Which methods the seeds can tell apart: paired tests on the same seeds, corrected for how many are made."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from privfl.study.results import Results, Row, Test, student


@dataclass(frozen=True)
class Comparison:
    """Two methods at one level, on the seeds that both have.

    Args:
        level: where they were compared.
        better, worse: the methods, the one with the better mean over these seeds first.
        seeds: how many both have.
        difference: mean of the metric of ``better`` minus that of ``worse``.
        low, high: confidence interval of the difference, of this pair alone, by Student's t; NaN for one seed.
        p: of the paired test that there is no difference, two-sided; NaN for one seed.
        corrected: ``p`` after Holm's correction for all comparisons of the study.
        settled: whether ``corrected`` is below one minus the confidence.
    """

    level: str
    better: str
    worse: str
    seeds: int
    difference: float
    low: float
    high: float
    p: float
    corrected: float
    settled: bool


def compare(results: Results) -> list[Comparison]:
    """Every pair of methods at every level at which both have a seed in common, corrected all together."""
    rows = results.rows()
    pairs = [
        _ordered(one, other, results.lower_is_better)
        for level in dict.fromkeys(row.level for row in rows)
        for one, other in combinations([row for row in rows if row.level == level], 2)
        if one.values.keys() & other.values.keys()
    ]
    differences = [_differences(better, worse) for better, worse in pairs]
    probabilities = [paired(found, results.test) for found in differences]
    corrected = holm(probabilities)
    return [
        _comparison(better, worse, found, p, adjusted, results.confidence)
        for (better, worse), found, p, adjusted in zip(pairs, differences, probabilities, corrected, strict=True)
    ]


def paired(differences: Sequence[float], test: Test) -> float:
    """The two-sided p-value that ``differences``, one for each seed, have no preferred sign; NaN for fewer than two.

    Where all differences are equal there is no spread to hold them against, and only their signs count, as in the sign
    test: k seeds reach 2^(1−k).
    """
    from scipy import stats

    count, varied = len(differences), len(set(differences)) > 1
    if count < 2:
        return math.nan
    if not any(differences):
        return 1.0
    if test == "t" and varied:
        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    if test == "wilcoxon" and varied:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ties, for which it takes the normal approximation
            return float(stats.wilcoxon(differences).pvalue)
    positive, negative = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    return float(stats.binomtest(positive, positive + negative).pvalue)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values such that comparing each with α errs anywhere with probability ≤ α.

    NaN, of pairs that were not tested, is passed on and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(probabilities) if not math.isnan(p))
    corrected, largest = [math.nan] * len(probabilities), 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        corrected[place] = largest
    return corrected


def sentences(results: Results, comparisons: Sequence[Comparison] | None = None) -> list[str]:
    """Each comparison in a sentence, and what the words rest on."""
    found = compare(results) if comparisons is None else comparisons
    if not found:
        return ["No two methods share a level and a seed, so there is nothing to compare."]
    said = [in_words(one, results.metric) for one in found]
    tested = sum(not math.isnan(one.p) for one in found)
    names = {"t": "Student's t of the paired differences", "wilcoxon": "Wilcoxon's signed ranks", "sign": "signs"}
    said.append(
        f"Settled means p < {1 - results.confidence:.3g} by {names[results.test]}, after Holm's correction for all "
        f"{tested} comparisons; seeds stand for other deals of the data and other noise, not for other data."
    )
    return said


def in_words(one: Comparison, metric: str) -> str:
    """One comparison in a sentence."""
    if one.difference == 0:
        start = f"At {one.level}, {one.better} and {one.worse} have the same mean {metric}"
    else:
        start = f"At {one.level}, {one.better} is ahead of {one.worse} by {abs(one.difference):.3g} in {metric}"
    if math.isnan(one.p):
        return f"{start}; one seed in common settles nothing."
    sign = -1 if one.difference < 0 else 1  # less may be better; told is by how much the better one is ahead
    low, high = sorted((sign * one.low, sign * one.high))
    interval = f"interval [{low:.3g}, {high:.3g}], {one.seeds} seeds, corrected p = {one.corrected:.2g}"
    return f"{start} ({interval}): {'settled' if one.settled else 'not settled'} by these seeds."


def _ordered(one: Row, other: Row, lower: bool) -> tuple[Row, Row]:
    ahead = sum(_differences(one, other)) >= 0
    return (other, one) if ahead is lower else (one, other)


def _differences(one: Row, other: Row) -> list[float]:
    return [one.values[seed] - other.values[seed] for seed in sorted(one.values.keys() & other.values.keys())]


def _comparison(
    better: Row, worse: Row, found: Sequence[float], p: float, corrected: float, confidence: float
) -> Comparison:
    count, mean, low, high = len(found), math.fsum(found) / len(found), math.nan, math.nan
    if count > 1:
        spread = math.sqrt(math.fsum((one - mean) ** 2 for one in found) / (count - 1))
        half = student(confidence, count - 1) * spread / math.sqrt(count)
        low, high = mean - half, mean + half
    settled = corrected < 1 - confidence
    return Comparison(better.level, better.method, worse.method, count, mean, low, high, p, corrected, settled)
