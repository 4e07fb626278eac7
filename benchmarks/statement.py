"""Seconds for a statement of 1,000 clients with different rates over 1,000 rounds; milliseconds for every round's ε."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from privfl.privacy.accounting import composition, loss
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Cost, everywhere
from privfl.privacy.accounting.tracker import EpsilonTracker


def clear_caches() -> None:
    """Forget every loss computed so far, so that each case starts cold."""
    for module in (loss, composition):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def every_round(event: DpEvent, steps: int, seed: int) -> tuple[float, float]:
    """Mean milliseconds for the ε so far over 100 rounds in which 10 of 100 clients pay ``steps`` times, and that ε."""
    ledger, draws, spent = Ledger(100, ["update"]), np.random.default_rng(seed), 0.0
    tracker, release = EpsilonTracker(ledger, 1e-5), everywhere("update", Cost(event))
    clear_caches()
    for _ in range(100):
        ledger.record(release, draws.choice(100, 10, replace=False), steps)
        began = time.perf_counter()
        bounds = tracker.so_far()
        spent += time.perf_counter() - began
    return 10 * spent, bounds["sample/server"]


def trackers(repeats: int) -> list[dict[str, Any]]:
    """A row for local steps of DP-SGD, and one for noise on whole updates."""
    rows = []
    for name, event, steps in (
        ("DP-SGD, ten steps", PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10),
        ("Gaussian noise", GaussianDpEvent(1.0), 1),
    ):
        found = [every_round(event, steps, seed) for seed in range(repeats)]
        milliseconds = [one for one, _ in found]
        rows.append(
            {
                "what": f"milliseconds for every round's ε, the mean of 100 rounds: {name}",
                "target": 0.3,
                "median": median(milliseconds),
                "min": min(milliseconds),
                "max": max(milliseconds),
                "epsilon": found[0][1],
            }
        )
    return rows


def run(repeats: int) -> list[dict[str, Any]]:
    """A rate of its own for every client, one for every round, and the ε of every round."""
    draws = np.random.default_rng(0)
    rates = np.exp(draws.uniform(np.log(1e-3), np.log(0.3), 1000))
    events = [PoissonSampledDpEvent(float(rate), GaussianDpEvent(1.0)) for rate in rates]
    by_client, by_round = Ledger(1000, ["update"]), Ledger(1000, ["update"])
    for index, event in enumerate(events):
        release = everywhere("update", Cost(event))
        by_client.record(release, [index], 1000)
        by_round.record(release, draws.choice(1000, 300, replace=False))
    rows = []
    for name, ledger in (("client", by_client), ("round", by_round)):
        clear_caches()
        began = time.perf_counter()
        made = make_statement(ledger, 1e-5, reproducible_noise=False)
        seconds = time.perf_counter() - began
        rows.append(
            {
                "what": f"seconds for a statement: 1,000 clients, 1,000 rounds, another rate for every {name}",
                "target": 10.0,
                "median": seconds,
                "min": seconds,
                "max": seconds,
                "epsilon": made.cell("sample", "server").epsilon,
            }
        )
    return [*rows, *trackers(repeats)]
