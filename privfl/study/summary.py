"""The runs of a study as its page and figures show them, and what they are over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from privfl.study.store import CELLS


@dataclass(frozen=True)
class Result:
    """One finished run.

    Args:
        method, level, seed: where it stands on the study's axes.
        value: the metric that the study is judged by, at the end of the run.
        epsilons: by cell of the statement, what tuning had spent before the run included; ``None`` for ∞.
        folder: name of the run's directory.
    """

    method: str
    level: str
    seed: int
    value: float
    epsilons: dict[str, float | None]
    folder: str


@dataclass(frozen=True)
class Summary:
    """The runs of one method at one level.

    Args:
        method, level: where they stand on the study's axes.
        seeds: how many there are.
        value: mean of the metric that the study is judged by.
        deviation: its sample standard deviation over the seeds, NaN for one.
        epsilons: by cell of the statement, the largest over the seeds; ``None`` for ∞.
    """

    method: str
    level: str
    seeds: int
    value: float
    deviation: float
    epsilons: dict[str, float | None]


def summarise(results: Sequence[Result]) -> list[Summary]:
    """One row for each method and level, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.method, result.level), []).append(result)
    rows = []
    for (method, level), members in groups.items():
        values = [member.value for member in members]
        spread = statistics.stdev(values) if len(values) > 1 else math.nan
        worst: dict[str, float | None] = {}
        for cell in CELLS:
            claims = [member.epsilons[cell] for member in members]
            finite = [claim for claim in claims if claim is not None]
            worst[cell] = max(finite) if len(finite) == len(claims) else None
        rows.append(Summary(method, level, len(members), statistics.mean(values), spread, worst))
    return rows


def slug(name: str) -> str:
    """``name`` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.replace("ε", "epsilon"))
