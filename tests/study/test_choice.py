"""A value is picked once: the best outright, or by noise that hides one validation row."""

import json
import math
from collections import Counter

import pytest

from privfl.errors import DataError
from privfl.privacy.noise.source import NoiseSource
from privfl.study.choice import Score, filed, pick, pick_noisily, release, two_sided_geometric

SCORES = [Score(0.5, 5), Score(math.nan, 0), Score(0.9, 9), Score(0.7, 7)]
HOW = {"lower": False, "epsilon": 1.0, "seeds": 1, "noise_key": None}


def test_the_best_comes_first_and_what_failed_last():
    assert pick(SCORES, 4, lower=False) == [2, 3, 0, 1]
    assert pick(SCORES, 4, lower=True) == [0, 3, 2, 1]


def test_noise_is_two_sided_geometric():
    """Chi-squared with 8 degrees of freedom exceeds 47 with probability below 1e-6."""
    stream, epsilon, number = NoiseSource.from_key(7).stream("test"), 0.7, 20_000
    counts = Counter(max(-4, min(4, two_sided_geometric(stream, epsilon))) for _ in range(number))
    alpha = math.exp(-epsilon)
    mass = {k: (1 - alpha) / (1 + alpha) * alpha ** abs(k) for k in range(-3, 4)}
    tail = (1 - math.fsum(mass.values())) / 2
    expected = {**mass, -4: tail, 4: tail}
    assert sum((counts[k] - number * p) ** 2 / (number * p) for k, p in expected.items()) < 47


def test_a_pick_hides_one_row():
    """How often a value wins differs by at most exp(ε) where one row more adds to its count alone.

    Frequencies p of 20,000 draws each are within 6 standard errors of their means but with probability 4e-9.
    """
    epsilon, number, wins = 0.5, 20_000, []
    for extra in (0, 1):
        stream = NoiseSource.from_key(extra).stream("test")
        scores = [Score(0.5, 10 + extra), Score(0.5, 10), Score(0.5, 9)]
        picks = [pick_noisily(scores, 1, epsilon=epsilon, seeds=1, stream=stream)[0] for _ in range(number)]
        wins.append(picks.count(0) / number)
    error = 6 * math.sqrt(0.25 / number)
    assert wins[0] < wins[1] + error
    assert wins[1] - error <= math.exp(epsilon) * (wins[0] + error)


def test_a_pick_is_made_once(tmp_path):
    close = [Score(0.5, 10)] * 50
    first = filed(tmp_path, {"trials": ["a"]}, close, 3, **HOW)
    assert len(set(first)) == 3
    assert all(filed(tmp_path, {"trials": ["a"]}, close, 3, **HOW) == first for _ in range(5))
    others = [filed(tmp_path, {"trials": [str(n)]}, close, 3, **HOW) for n in range(8)]
    assert any(other != first for other in others)  # all alike with probability below 1e-30
    fixed = {**HOW, "noise_key": 1}
    assert filed(tmp_path / "x", {"trials": ["a"]}, close, 3, **fixed) == filed(
        tmp_path / "y", {"trials": ["a"]}, close, 3, **fixed
    )
    for path in (tmp_path / "choices").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "places": [0]}))
    with pytest.raises(DataError, match="picks anew: that is one more release"):
        filed(tmp_path, {"trials": ["a"]}, close, 3, **HOW)


def test_what_a_pick_costs():
    exact = release("training.learning_rate", None, 3)
    assert all(cost.event is None for _, cost in exact.costs)
    noisy = dict(release("training.learning_rate", 0.5, 3).costs)
    assert noisy["sample", "public"].event is not None
    assert {cell for cell, cost in noisy.items() if cost.event is None} == set(noisy) - {("sample", "public")}
