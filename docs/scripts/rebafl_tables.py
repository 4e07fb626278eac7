"""The tables of `docs/results/rebafl-figures.md`, from the curves of `examples/papers/rebafl_figures.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

from tables import spread, table
from verdict_intervals import BySeed, interval, raw

TAIL = 10
"""Rounds at the end over which accuracy is averaged."""
REFERENCE, BALANCED, BOTH = "FedAvg", "R-BSM only, epsilon = 0.01", "ReBaFL, μ = 0.1"
ORDER = (REFERENCE, "F-Aug only", BALANCED, BOTH)


def figure(variant: str, name: str) -> BySeed:
    """Of one variant by seed: ``last`` and ``change`` in points, ``diversity`` as a mean over the second half."""
    found: dict[int, float] = {}
    for row in raw("rebafl-figures")["rows"]:
        if row["variant"] == variant:
            accuracy, diversity = row["accuracy"], row["diversity"]
            changes = [after - before for before, after in pairwise(accuracy[len(accuracy) // 2 :])]
            found[row["seed"]] = {
                "last": 100 * statistics.mean(accuracy[-TAIL:]),
                "change": 100 * statistics.pstdev(changes),
                "diversity": statistics.mean(diversity[len(diversity) // 2 :]),
            }[name]
    return found


def diversity() -> str:
    """Figure 7 as numbers: Λ in the second half of the run."""
    rows = []
    for variant in ORDER:
        own = figure(variant, "diversity")
        others = [interval(own, figure(other, "diversity"), 3) for other in (REFERENCE, BALANCED)]
        shown = [text if variant != other else "–" for text, other in zip(others, (REFERENCE, BALANCED), strict=True)]
        rows.append([variant, spread(own, 3), *shown, spread(figure(variant, "last"), 1)])
    return table(["", "Λ, rounds 11 to 20", "− FedAvg", "− R-BSM only", "accuracy, last ten rounds"], rows)


def settings() -> str:
    """Figure 8 as numbers: accuracy and its change from round to round."""
    variants = dict.fromkeys(row["variant"] for row in raw("rebafl-figures")["rows"])
    rows = []
    for variant in variants:
        own = [figure(variant, name) for name in ("last", "change")]
        base = BALANCED if variant.startswith(("R-BSM", "ReBaFL")) else REFERENCE
        less = "–" if variant == base else interval(own[0], figure(base, "last"))
        rows.append([variant, spread(own[0], 1), spread(own[1], 1), less])
    return table(
        ["", "accuracy, last ten rounds", "change from round to round", "− R-BSM only at 0.01 (F-Aug: − FedAvg)"], rows
    )


TABLES: dict[str, dict[str, Callable[[], str]]] = {"rebafl-figures": {"diversity": diversity, "settings": settings}}
