"""How often audits refute claims that are true: every auditor at 95 % confidence, over many seeds.

    python benchmarks/false_alarms.py --seeds 2000 --out docs/results/audit-false-alarms.json

About three minutes of one core. The mechanisms are as private as claimed and no more, so a false alarm is a certified ε
above the claim; 5 % of the seeds may have one. Two rows that correct nothing stand beside them to show what it costs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import audits
from audits.bounds.one_run import guess_pairs
from audits.bounds.output_events import epsilon_from_answers
from audits.bounds.rates import clopper_pearson_lower, clopper_pearson_upper
from audits.mechanisms.local_randomizers import epsilon_from_table
from privfl.randomness import numpy_stream

CONFIDENCE, TRIALS, CANARIES, ANSWERS, DOMAIN = 0.95, 200, 200, 2000, 20
GAUSSIAN = 4.3771781
"""ε at δ = 1e-5 of one noisy sum with σ = 1, from dp-accounting 0.6.0, rounded up."""

Scores = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator], Scores]
Found = Callable[[np.ndarray, np.ndarray, int], float]


def two_worlds(law: str, epsilon: float, delta: float) -> Draw:
    """Scores of :data:`TRIALS` trials in each world of the mechanism that is (ε, δ)-DP and no better."""

    def draw(generator: np.random.Generator) -> Scores:
        if law == "normal":
            return generator.normal(1, 1, TRIALS), generator.normal(0, 1, TRIALS)
        if law == "laplace":
            return generator.laplace(epsilon, 1, TRIALS), generator.laplace(0, 1, TRIALS)
        return tuple(answers(generator, np.full(TRIALS, world), epsilon, delta) for world in (True, False))  # type: ignore[return-value]

    return draw


def coins(law: str, epsilon: float, delta: float) -> Draw:
    """Scores of :data:`CANARIES` canaries of one run, and which of them took part."""

    def draw(generator: np.random.Generator) -> Scores:
        included = generator.random(CANARIES) < 0.5
        if law == "normal":
            return generator.normal(included.astype(float), 1), included
        if law == "laplace":
            return generator.laplace(epsilon * included, 1), included
        return answers(generator, included, epsilon, delta), included

    return draw


def answers(generator: np.random.Generator, truth: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """Randomised response that shows the truth with probability δ: ±2 shown, ±1 randomised."""
    shown = generator.random(len(truth)) < delta
    honest = generator.random(len(truth)) < expit(epsilon)
    return np.where(truth == (shown | honest), 1.0, -1.0) * np.where(shown, 2.0, 1.0)


def of_scores(delta: float, **options: Any) -> Found:
    """An auditor of two worlds."""

    def found(ins: np.ndarray, outs: np.ndarray, seed: int) -> float:
        return audits.epsilon_from_scores(ins, outs, delta=delta, confidence=CONFIDENCE, seed=seed, **options).epsilon

    return found


def of_coins(delta: float, **options: Any) -> Found:
    """An auditor of one run."""

    def found(scores: np.ndarray, included: np.ndarray, seed: int) -> float:
        return audits.epsilon_one_run_from_scores(
            scores, included, delta=delta, confidence=CONFIDENCE, seed=seed, **options
        ).epsilon

    return found


def largest_over_thresholds(delta: float) -> Found:
    """What must not be done: the best of all thresholds, as if each had been fixed in advance."""

    def found(ins: np.ndarray, outs: np.ndarray, seed: int) -> float:
        tried = np.unique(np.concatenate([ins, outs]))
        hits, alarms = ((scores[:, None] >= tried).sum(0) for scores in (ins, outs))
        tpr, fpr = (
            bound(count, TRIALS, 0.025)
            for bound, count in ((clopper_pearson_lower, hits), (clopper_pearson_upper, alarms))
        )
        return float(max(0.0, np.log(np.maximum(tpr - delta, 1e-300) / fpr).max()))

    return found


def largest_over_guesses(delta: float) -> Found:
    """What must not be done: the best of all numbers of guesses, as if each had been fixed in advance."""

    def found(scores: np.ndarray, included: np.ndarray, seed: int) -> float:
        order = included[np.argsort(scores)]
        best = 0.0
        for k in range(4, CANARIES // 2 + 1, 4):
            correct = int(order[-k:].sum() + (~order[:k]).sum())
            if correct > k:
                best = max(
                    best, audits.epsilon_one_run(CANARIES, 2 * k, correct, delta=delta, confidence=CONFIDENCE).epsilon
                )
        return best

    return found


def poisoned(poisons: int, epsilon: float) -> tuple[Draw, Found]:
    """Worlds that differ in k records, each of which moves a Laplace mechanism by ε; decided in the middle."""

    def draw(generator: np.random.Generator) -> Scores:
        return generator.laplace(poisons * epsilon, 1, TRIALS), generator.laplace(0, 1, TRIALS)

    def found(ins: np.ndarray, outs: np.ndarray, seed: int) -> float:
        hits, alarms = (int((scores >= poisons * epsilon).sum()) for scores in (ins, outs))
        return audits.epsilon_from_poisoning(
            hits, TRIALS, alarms, TRIALS, poisons=poisons, delta=0.0, confidence=CONFIDENCE
        ).epsilon

    return draw, found


def table(epsilon: float) -> tuple[Draw, Found]:
    """k-ary randomised response: a table of answers to every input."""
    laws = np.full((DOMAIN, DOMAIN), 1.0) + (math.exp(epsilon) - 1) * np.eye(DOMAIN)

    def draw(generator: np.random.Generator) -> Scores:
        counts = generator.multinomial(ANSWERS, laws / laws.sum(1, keepdims=True))
        return counts, counts

    return draw, lambda counts, _, seed: epsilon_from_table(counts, confidence=CONFIDENCE).epsilon


def events(epsilon: float) -> tuple[Draw, Found]:
    """Laplace answers to two inputs, the event chosen on one half of them."""

    def draw(generator: np.random.Generator) -> Scores:
        both = generator.laplace([[0.0], [epsilon]], 1, (2, ANSWERS))
        return both, both

    pairs = ~np.eye(2, dtype=np.bool_)
    return draw, lambda both, _, seed: epsilon_from_answers(both, pairs, delta=0.0, confidence=CONFIDENCE).epsilon


def cases() -> list[tuple[str, str, float, Draw, Found]]:
    """(auditor, mechanism, what is true, draw, audit)."""
    rows: list[tuple[str, str, float, Draw, Found]] = []
    pure = {"nothing leaks": ("laplace", 0.0, 0.0), "Laplace, ε = 1": ("laplace", 1.0, 0.0)}
    shown = {"randomised response, ε = 1, δ = 0.05": ("answers", 1.0, 0.05)}
    normal = ("normal", GAUSSIAN, 1e-5)
    for name, (law, epsilon, delta) in (pure | shown).items():
        middle = epsilon if law == "laplace" else 1.0
        for what, options in {
            "two worlds, threshold fixed": {"threshold": middle},
            "two worlds, split": {"choice": "split"},
            "two worlds, Bonferroni": {"choice": "bonferroni"},
            "two worlds, DKW": {"choice": "dkw"},
        }.items():
            rows.append((what, name, epsilon, two_worlds(law, epsilon, delta), of_scores(delta, **options)))
    for name, (law, epsilon, delta) in (
        {"nothing leaks": ("laplace", 0.0, 0.0), "randomised response, ε = 1": ("answers", 1.0, 0.0)} | shown
    ).items():
        for what, options in {
            "one run, all guessed": {"guesses": (CANARIES // 2, CANARIES // 2), "method": "steinke"},
            "one run, Bonferroni": {"method": "steinke"},
            "one run, f-DP": {"guesses": (CANARIES // 2, CANARIES // 2), "method": "f-dp"},
            "one run, best of both, Bonferroni": {"method": "best"},
        }.items():
            rows.append((what, name, epsilon, coins(law, epsilon, delta), of_coins(delta, **options)))
    family = audits.GaussianFamily()
    gaussian = "Gaussian noise, σ = 1, δ = 1e-5"
    for what, options in {
        "two worlds, Gaussian curve, threshold fixed": {"threshold": 0.5},
        "two worlds, Gaussian curve, split": {"choice": "split"},
        "two worlds, Gaussian curve, Bonferroni": {"choice": "bonferroni"},
        "two worlds, Gaussian curve, DKW": {"choice": "dkw"},
    }.items():
        rows.append((what, gaussian, GAUSSIAN, two_worlds(*normal), of_scores(1e-5, family=family, **options)))
    for what, pair in {"all guessed": guess_pairs(CANARIES)[0], "Bonferroni": None}.items():
        audit = of_coins(1e-5, family=family, guesses=pair)
        rows.append((f"one run, Gaussian curve, {what}", gaussian, GAUSSIAN, coins(*normal), audit))
    rows.append(("4 poisons, threshold fixed", "Laplace, ε = 0.25", 0.25, *poisoned(4, 0.25)))
    rows.append(("all pairs and answers", f"randomised response, ε = 3, {DOMAIN} answers", 3.0, *table(3.0)))
    rows.append(("events, split", "Laplace, ε = 1", 1.0, *events(1.0)))
    for name, (law, epsilon, delta) in pure.items():
        rows.append(
            (
                "not corrected: best threshold",
                name,
                epsilon,
                two_worlds(law, epsilon, delta),
                largest_over_thresholds(delta),
            )
        )
    rows.append(
        (
            "not corrected: best number of guesses",
            "nothing leaks",
            0.0,
            coins("laplace", 0.0, 0.0),
            largest_over_guesses(0.0),
        )
    )
    return rows


def measured(draw: Draw, found: Found, truth: float, seeds: int, name: str) -> dict[str, Any]:
    """The share of false alarms with its exact 95 % interval, and what was certified on average."""
    began = time.perf_counter()
    bounds = np.array([found(*draw(numpy_stream(seed, name)), seed) for seed in range(seeds)])
    wrong = int((bounds > truth).sum())
    return {
        "seeds": seeds,
        "false_alarms": wrong,
        "rate": wrong / seeds,
        "low": float(clopper_pearson_lower(wrong, seeds, 0.025)),
        "high": float(clopper_pearson_upper(wrong, seeds, 0.025)),
        "mean_bound": float(bounds.mean()),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Measure all cases, writing after each; cases that the file holds already are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    record = (
        json.loads(arguments.out.read_text(encoding="utf-8"))
        if arguments.out.exists()
        else {"confidence": CONFIDENCE, "rows": []}
    )
    done = {(row["auditor"], row["mechanism"]) for row in record["rows"]}
    for auditor, mechanism, truth, draw, found in cases():
        if (auditor, mechanism) in done:
            continue
        row = {"auditor": auditor, "mechanism": mechanism, "epsilon": truth}
        record["rows"].append(row | measured(draw, found, truth, arguments.seeds, f"{auditor}, {mechanism}"))
        arguments.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
