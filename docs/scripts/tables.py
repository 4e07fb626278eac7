"""Markdown tables, and what stands in their cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from verdict_intervals import BySeed


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def spread(values: BySeed, digits: int = 2) -> str:
    """``mean ± standard deviation`` over the seeds."""
    each = list(values.values())
    deviation = f" ± {statistics.stdev(each):.{digits}f}" if len(each) > 1 else ""
    return f"{statistics.mean(each):.{digits}f}{deviation}"
