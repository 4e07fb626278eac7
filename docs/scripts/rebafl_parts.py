"""ReBaFL's parts, each alone, over all 200 rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tables import spread, table
from verdict_intervals import BySeed, interval, of_curve, raw

FIFTY_ALL, PARTS = "rebafl-fifty-all-images", "rebafl-parts"
BOTH_FIGURES = ("last", "change")
METHODS = ("FedAvg", "F-Aug only", "R-BSM only", "ReBaFL")


def _rows_of_parts() -> list[Any]:
    """Curves of FedAvg, ReBaFL and its two parts, 20 clients of 250 images, all 200 rounds."""
    return [{**row, "method": row["variant"].partition(",")[0]} for row in raw(PARTS)["rows"]]


def of_part(method: str, figure: str) -> BySeed:
    """*last* or *change* of a method over all rounds by seed, in points."""
    rows = _rows_of_parts()
    return of_curve(rows, min(len(row["accuracy"]) for row in rows), method, figure)


WITH_FIFTY = partial(of_curve, raw(FIFTY_ALL)["rows"], 200)  # the same with 50 clients, all images


def parts(of: Callable[[str, str], BySeed] = of_part, methods: Sequence[str] = METHODS) -> str:
    """ReBaFL's parts over all rounds; no interval of a single seed."""
    made = []
    for method in methods:
        found = [of(method, figure) for figure in BOTH_FIGURES]
        less = [
            "–" if method == other or len(set(own) & set(of(other, figure))) < 2 else interval(own, of(other, figure))
            for other in ("FedAvg", "R-BSM only")
            for figure, own in zip(BOTH_FIGURES, found, strict=True)
        ]
        made.append([method, *(spread(own, 1) for own in found), *less])
    return table(["", "last ten rounds", "change", "− FedAvg", "change", "− R-BSM only", "change"], made)
