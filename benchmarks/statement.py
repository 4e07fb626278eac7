"""Seconds for a statement of 1,000 clients with different rates over 1,000 rounds."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from privfl.privacy.accounting import composition, loss
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Cost, everywhere


def clear_caches() -> None:
    """Forget every loss computed so far, so that each case starts cold."""
    for module in (loss, composition):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def run(repeats: int) -> list[dict[str, Any]]:
    """Two cases: a rate of its own for every client, and a rate of its own for every round."""
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
    return rows
