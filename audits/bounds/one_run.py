"""A certified ε from one run: many canaries, each put in by the toss of a fair coin, and guesses at the coins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.stats import binom

from attacks.metrics.distinguishing import as_mask
from audits.bounds.bound import LowerBound, error_level, shared_confidence
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.one_run_f_dp import epsilon_one_run_f_dp
from audits.bounds.one_run_search import check_guesses, largest_refuted
from audits.bounds.rates import as_scores
from privfl.errors import ConfigError
from privfl.randomness import numpy_stream

Method = Literal["best", "steinke", "f-dp"]
METHODS = ("best", "steinke", "f-dp")

FEW = 32
"""Of fewer canaries all are guessed about."""

_ROUNDING = 1e-9
"""A probability is taken larger by this share of itself before it is compared: more than its rounding."""


def one_run_p_value(canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """How probable ``correct`` or more right guesses are at most, under (``epsilon``, ``delta``)-DP: in [0, 1].

    With m = ``canaries``, each included independently with probability ½, r = ``guesses``, v = ``correct`` and
    X ~ Binomial(r, e^ε/(1 + e^ε)): P[X ≥ v] + 2mδ·max_{1≤i≤v} P[v−i ≤ X < v]/i. The relation is adding or removing a
    record, and r was fixed in advance; which canaries are guessed about may depend on the run.

    Raises:
        ConfigError: not 0 ≤ v ≤ r ≤ m with m ≥ 1, ε < 0, or δ not in [0, 1).

    Source: Steinke, Nasr & Jagielski, NeurIPS 2023, theorem 5.2.
    """
    check_guesses(canaries, guesses, correct)
    if not epsilon >= 0 or not 0 <= delta < 1:
        raise ConfigError(f"the claim is ε = {epsilon!r}, δ = {delta!r}; give ε ≥ 0 and δ in [0, 1)")
    wrong = guesses - correct
    miss = float(special.expit(-epsilon))  # wrong guesses are counted: their probability keeps its digits for large ε
    beta = float(binom.cdf(wrong, guesses, miss))
    if delta == 0 or correct == 0:
        return min(1.0, beta)
    below = np.cumsum(binom.pmf(np.arange(wrong + 1, guesses + 1), guesses, miss))
    slope = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * slope)


def epsilon_one_run(canaries: int, guesses: int, correct: int, *, delta: float, confidence: float) -> LowerBound:
    """The largest ε that ``correct`` of ``guesses`` guesses about ``canaries`` coins refute, with ``confidence``.

    The supremum of the ε with :func:`one_run_p_value` below 1 − confidence, found by bisection and rounded down. No
    assumption on the mechanism; loose where m·δ is not small, and far from tight for large ε, because canaries share
    one run.

    Raises:
        ConfigError: not 0 ≤ correct ≤ guesses ≤ canaries with a canary, or ``delta`` or ``confidence`` out of range.

    Source: Steinke, Nasr & Jagielski, NeurIPS 2023.
    """
    level = error_level(delta, confidence)
    check_guesses(canaries, guesses, correct)

    def refuted(epsilon: float) -> bool:
        p_value = one_run_p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta)
        return p_value * (1 + _ROUNDING) < level

    return LowerBound(
        epsilon=largest_refuted(refuted),
        delta=delta,
        confidence=confidence,
        method="one run",
        details={"canaries": int(canaries), "guesses": int(guesses), "correct": int(correct)},
    )


def epsilon_one_run_from_scores(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float,
    guesses: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
    method: Method = "best",
    family: GaussianFamily | None = None,
    seed: int = 0,
) -> LowerBound:
    """The largest ε certified by ``scores`` [m] of the canaries, larger for ``included`` [m] ones, after one run.

    The (k₊, k₋) canaries of largest and smallest score are guessed "in" and "out", the others not guessed about. A pair
    must have been fixed before the scores were seen. Of several pairs the best is kept, and each is tested at
    (1 − confidence) / (number of pairs), whatever the scores are: by default those of :func:`guess_pairs`.

    Args:
        included: which canaries took part, True or False for each; tossed independently with probability ½ each.
            Exactly half of them, drawn at random, is another law, for which the bound is not proved.
        method: ``steinke`` (:func:`epsilon_one_run`), ``f-dp``
            (:func:`audits.bounds.one_run_f_dp.epsilon_one_run_f_dp`), or the larger of both, ``best``. That choice
            costs nothing: both refute a claim if and only if the number of right guesses reaches a limit, and each
            limit alone is reached with probability below 1 − confidence.
        family: the family of trade-off curves to read ε from; then the method is ``f-dp``.
        seed: which of several canaries of one score is guessed about.

    Raises:
        ConfigError: the lengths differ, a score is NaN, ``included`` holds more than True and False (or 1 and 0),
            pairs are impossible, or an argument is not as said.
    """
    error_level(delta, confidence)
    inside = as_mask("included", included, "canary").reshape(-1)
    found = as_scores("scores", scores)
    if len(found) != len(inside) or not len(found):
        raise ConfigError(f"there are {len(found)} scores for {len(inside)} canaries; give one each, and at least one")
    if method not in METHODS:
        raise ConfigError(f"the method is {method!r}; choose one of {', '.join(METHODS)}")
    if family is not None and method == "steinke":
        raise ConfigError("the method 'steinke' knows no family of trade-off curves; choose 'f-dp' or give no family")
    pairs = _checked_pairs(guesses, len(found))
    ascending = _ascending(found, seed)
    one_confidence = shared_confidence(confidence, len(pairs))
    best: LowerBound | None = None
    for above, below in pairs:
        correct = int(inside[ascending[len(found) - above :]].sum() + (~inside[ascending[:below]]).sum())
        one = _one_bound(len(found), above + below, correct, delta, one_confidence, method, family)
        if best is None or one.epsilon > best.epsilon:
            best = LowerBound(
                epsilon=one.epsilon,
                delta=delta,
                confidence=confidence,
                method=f"{one.method}, guesses fixed in advance" if len(pairs) == 1 else f"{one.method}, Bonferroni",
                assumes=one.assumes,
                details={**one.details, "guessed_in": above, "guessed_out": below, "pairs": len(pairs)},
            )
    assert best is not None
    return best


def _one_bound(
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float,
    method: Method,
    family: GaussianFamily | None,
) -> LowerBound:
    bounds = []
    if method != "f-dp" and family is None:
        bounds.append(epsilon_one_run(canaries, guesses, correct, delta=delta, confidence=confidence))
    if method != "steinke":
        bounds.append(
            epsilon_one_run_f_dp(canaries, guesses, correct, delta=delta, confidence=confidence, family=family)
        )
    return max(bounds, key=lambda bound: bound.epsilon)


def guess_pairs(canaries: int) -> tuple[tuple[int, int], ...]:
    """The numbers of guesses (k, k) that are tried by default: m/2, m/4, … down to 8; of few canaries all are guessed.

    They depend on the number m of canaries alone.
    """
    if canaries < FEW:
        return ((canaries - canaries // 2, canaries // 2),)
    sizes = [canaries >> halvings for halvings in range(1, canaries.bit_length()) if canaries >> halvings >= 8]
    return tuple((size, size) for size in sizes)


def _checked_pairs(
    guesses: tuple[int, int] | Sequence[tuple[int, int]] | None, canaries: int
) -> tuple[tuple[int, int], ...]:
    if guesses is None:
        return guess_pairs(canaries)
    rows = np.atleast_2d(np.asarray(guesses))
    if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows) or not np.issubdtype(rows.dtype, np.integer):
        raise ConfigError(f"guesses is {guesses!r}; give a pair of whole numbers (in, out), or several pairs")
    if (rows < 0).any() or (rows.sum(axis=1) > canaries).any() or (rows.sum(axis=1) == 0).any():
        raise ConfigError(f"guesses is {guesses!r} for {canaries} canaries; guess about at least one and at most all")
    return tuple((int(above), int(below)) for above, below in rows)


def _ascending(scores: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """The order of the scores; equal ones in an order that owes nothing to how the canaries were listed."""
    shuffled = numpy_stream(seed, "audit-ties").permutation(len(scores))
    return np.asarray(shuffled[np.argsort(scores[shuffled], kind="stable")])
