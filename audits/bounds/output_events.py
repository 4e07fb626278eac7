"""Events chosen on one half of the answers and certified on the other: for answers on a line, with or without atoms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audits.bounds.bound import LowerBound, error_level
from audits.bounds.counts import epsilon_from_counts
from audits.bounds.rates import clopper_pearson_lower, clopper_pearson_upper
from privfl.errors import ConfigError

Answers = NDArray[np.float64]
MOST_ATOMS = 64
"""Values that repeat get a bin of their own, the most frequent first."""
CAUTION = 60
"""Events are chosen by bounds at this fraction of the error level, or luck in the far tails would win."""


@dataclass(frozen=True)
class Event:
    """A set of real numbers: the bins between ascending ``edges`` [k] that are ``inside`` [k + 1]."""

    edges: Answers
    inside: NDArray[np.bool_]

    def count(self, answers: Answers) -> int:
        """How many of ``answers`` [n] it holds."""
        return int(self.inside[_places(self.edges, answers)].sum())


def likely_event(likely: Answers, unlikely: Answers, *, delta: float, level: float, bins: int = 64) -> Event:
    """The event that certifies most on these answers: the bins in which ``likely`` [n] outweighs ``unlikely`` [m] most.

    Bins are quantiles of both together, values that repeat get one of their own, and sets of bins are tried in the
    order of their likelihood ratios (Neyman and Pearson). The event is as good as the answers tell, and says nothing
    about them: certify it on others.
    """
    edges = _edges(np.concatenate([likely, unlikely]), bins)
    ours, theirs = (np.bincount(_places(edges, side), minlength=len(edges) + 1) for side in (likely, unlikely))
    order = np.argsort(-(ours + 0.5) / (theirs + 0.5), kind="stable")
    hits, alarms = np.cumsum(ours[order]), np.cumsum(theirs[order])
    low = clopper_pearson_lower(hits, len(likely), level) - delta
    ratio = np.where(low > 0, low, 0) / clopper_pearson_upper(alarms, len(unlikely), level)
    inside = np.zeros(len(edges) + 1, dtype=np.bool_)
    inside[order[: int(np.argmax(ratio)) + 1]] = True
    return Event(edges, inside)


def epsilon_from_answers(
    answers: Answers, pairs: NDArray[np.bool_], *, delta: float, confidence: float, bins: int = 64
) -> LowerBound:
    """The ε that answers to several inputs certify: ``answers`` [inputs, n], the ``pairs`` [inputs, inputs] to compare.

    Pair and event are chosen on the first half of every input's answers and certified on the second half, which decided
    nothing, by Clopper and Pearson. ``pairs[a, b]`` says that a and b are neighbours, and a ≠ b. The answers must be
    independent.

    Raises:
        ConfigError: there are fewer than four answers for an input, or no pair.
    """
    level = error_level(delta, confidence) / 2
    if answers.ndim != 2 or answers.shape[1] < 4:
        raise ConfigError(f"answers of shape {answers.shape} are too few; give at least four for every input")
    if not pairs.any():
        raise ConfigError("no pair of inputs is to be compared; mark at least one")
    half = answers.shape[1] // 2
    chosen, best, cautious = None, -1.0, level / CAUTION
    for first, second in np.argwhere(pairs):
        likely, unlikely = answers[first, :half], answers[second, :half]
        event = likely_event(likely, unlikely, delta=delta, level=cautious, bins=bins)
        hits, alarms = event.count(likely), event.count(unlikely)
        low = float(clopper_pearson_lower(hits, half, cautious)) - delta
        score = low / float(clopper_pearson_upper(alarms, half, cautious))
        if score > best:
            chosen, best = (int(first), int(second), event), score
    assert chosen is not None
    first, second, event = chosen
    rest = answers.shape[1] - half
    found = epsilon_from_counts(
        event.count(answers[first, half:]),
        rest,
        event.count(answers[second, half:]),
        rest,
        delta=delta,
        confidence=confidence,
        sides="tpr_only",
    )
    return LowerBound(
        epsilon=found.epsilon,
        delta=delta,
        confidence=confidence,
        method="event chosen on one half, certified on the other",
        details={**found.details, "inputs": [first, second], "bins": int(event.inside.sum())},
    )


def _edges(pooled: Answers, bins: int) -> Answers:
    """Ascending edges [k]: bin i holds edges[i−1] ≤ x < edges[i]."""
    values, counts = np.unique(pooled, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:MOST_ATOMS]
    atoms = values[common][counts[common] > len(pooled) / 1000]
    quantiles = np.quantile(pooled, np.linspace(0, 1, bins + 1)[1:-1])
    return np.unique(np.concatenate([quantiles, atoms, np.nextafter(atoms, np.inf)]))


def _places(edges: Answers, answers: Answers) -> NDArray[np.int64]:
    return np.searchsorted(edges, answers, side="right")
