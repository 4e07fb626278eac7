"""Many clients at once: one certified ε each, and the worst client exactly.

Each client is accounted by its own history. Where there are too many different ones, histories are rounded *up*
(rates to a grid of 1 %, counts to 1 %, then neighbours joined into a history that dominates them), so every ε remains
an upper bound; the worst client is found by branch and bound on histories as they were.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import dp_accounting as dp
import numpy as np
from scipy import sparse

from privfl.privacy.accounting.accountant import Bound, epsilon
from privfl.privacy.accounting.events import Kind
from privfl.privacy.accounting.grouping import (
    Integers,
    distinct_rows,
    dominating_history,
    fewer_rates,
    rate,
    same_mechanism_key,
)
from privfl.privacy.accounting.loss import Array, variance_guess

_MOST_HISTORIES = 512
"""More distinct histories than this are rounded and joined."""

_SHARED_RATES = 64
"""Rates per noise that clients share once their histories mix many rates each."""

_MOST_SPLITS = 64
"""How often the search for the worst client splits a group of clients before it takes the group's bound."""

_QUICK = 3e-3
"""Relative looseness of the ε of clients that are not the worst one."""


@dataclass(frozen=True)
class Population:
    """``epsilons[i]`` bounds history i from above; history ``worst`` has the largest one, which is ``bound``."""

    epsilons: Array
    worst: int
    bound: Bound
    note: str


def account(kinds: Sequence[Kind], counts: sparse.csr_array, delta: float, *, interval: bool = True) -> Population:
    """Account the histories in the rows of ``counts`` (histories x elementary kinds) at ``delta``.

    Without ``interval`` the claim comes alone, without the interval around the exact ε of the worst history.
    """
    listed, rows, first, inverse, note = _distinct(kinds, counts)
    notes = [note] if note else []
    if rows.shape[0] <= _MOST_HISTORIES:
        histories = (_history(listed, rows, row) for row in range(rows.shape[0]))
        uppers = _quick_each(list(histories), delta)
    else:
        uppers = _rounded(listed, rows, delta)
        notes.append("ε of clients other than the worst rounded up")
    worst, claim = _worst(listed, rows, delta)
    bound = epsilon(_history(listed, rows, worst), delta, interval=interval)
    if claim > bound.epsilon:
        bound = replace(bound, epsilon=claim, upper=max(bound.upper, claim))
        notes.append("many clients are close to the worst, bounded together")
    uppers = np.minimum(uppers, bound.epsilon)
    uppers[worst] = bound.epsilon
    return Population(uppers[inverse], int(first[worst]), bound, "; ".join(notes))


def exceeds(kinds: Sequence[Kind], counts: sparse.csr_array, delta: float, limit: float) -> bool:
    """Whether the claim that :func:`account` would make is above ``limit``; seldom needs more than a few ε."""
    listed, rows, *_ = _distinct(kinds, counts)
    return _worst(listed, rows, delta, limit)[1] > limit


def _distinct(
    kinds: Sequence[Kind], counts: sparse.csr_array
) -> tuple[list[Kind], sparse.csr_array, Integers, Integers, str]:
    """Kinds and distinct rows, where each came from, where each went, and a note if rates were rounded up."""
    first, inverse = distinct_rows(counts)
    rows, listed = counts[first], list(kinds)
    if rows.shape[0] <= 8 or rows.nnz <= 4 * rows.shape[0] + _SHARED_RATES:
        return listed, rows, first, inverse, ""
    pooled = dict(zip(listed, np.asarray(rows.sum(axis=0)).reshape(-1).tolist(), strict=True))
    kept = list(fewer_rates(pooled, _SHARED_RATES))
    heads = [
        min(
            (
                head
                for head in kept
                if same_mechanism_key(head) == same_mechanism_key(kind) and rate(head) >= rate(kind)
            ),
            key=rate,
        )
        for kind in listed
    ]
    merged, rows = merge_columns(listed, heads, rows)
    return merged, rows, first, inverse, "sampling rates rounded up to a shared grid" if merged != listed else ""


def _worst(kinds: list[Kind], rows: sparse.csr_array, delta: float, limit: float = math.inf) -> tuple[int, float]:
    """(row with the largest ε, upper bound on every row's ε), best first: groups of rows are bounded by their join.

    With a finite ``limit`` the search ends as soon as it is known on which side of it the largest ε lies.
    """
    order = np.argsort(-(rows @ np.array([variance_guess(kind) for kind in kinds])), kind="stable")

    def bounded(group: Integers) -> tuple[float, int, Integers]:
        if len(group) == 1:
            exact = epsilon(_history(kinds, rows, int(group[0])), delta, interval=False).epsilon
            return -exact, int(group[0]), group
        return -_quick(dominating_history(rows[group], kinds), delta), int(group[0]), group

    heap = [bounded(order)]
    for _ in range(_MOST_SPLITS):
        bound, row, group = heap[0]
        if len(group) == 1 or (math.isfinite(limit) and -bound <= limit):
            break
        heapq.heappop(heap)
        middle = max(1, len(group) // 4)
        heapq.heappush(heap, bounded(group[:middle]))
        heapq.heappush(heap, bounded(group[middle:]))
    bound, row, _ = heap[0]
    return row, -bound


def _quick(history: dict[Kind, int], delta: float) -> float:
    return epsilon(history, delta, interval=False, tolerance=_QUICK).epsilon


def _quick_each(histories: list[dict[Kind, int]], delta: float) -> Array:
    """ε of each history, on all cores where there are many: the transforms leave Python's lock to others."""
    threads = min(len(histories) // 16, os.cpu_count() or 1)
    if threads < 2:
        return np.array([_quick(history, delta) for history in histories])
    with ThreadPoolExecutor(threads) as pool:
        return np.array(list(pool.map(_quick, histories, repeat(delta))))


def _history(kinds: list[Kind], rows: sparse.csr_array, row: int) -> dict[Kind, int]:
    start, stop = rows.indptr[row : row + 2]
    pairs = zip(rows.indices[start:stop], rows.data[start:stop], strict=True)
    return {kinds[column]: int(number) for column, number in pairs if number}


def merge_columns(kinds: list[Kind], heads: list[Kind], rows: sparse.csr_array) -> tuple[list[Kind], sparse.csr_array]:
    """The same rows with kind i counted as ``heads[i]``."""
    merged = list(dict.fromkeys(heads))
    place = {kind: column for column, kind in enumerate(merged)}
    into = sparse.csr_array(
        (np.ones(len(kinds), np.int64), (np.arange(len(kinds)), [place[head] for head in heads])),
        shape=(len(kinds), len(merged)),
    )
    return merged, (rows @ into).tocsr()


def _rounded(kinds: list[Kind], rows: sparse.csr_array, delta: float) -> Array:
    """Upper bounds for many distinct histories: round up, join neighbours, account what is left."""
    coarse, rounded = merge_columns(kinds, [rounded_up(kind) for kind in kinds], rows)
    rounded.data = _round_counts(rounded.data)
    first, inverse = distinct_rows(rounded)
    distinct = rounded[first]
    order = np.argsort(distinct @ np.array([variance_guess(kind) for kind in coarse]), kind="stable")
    blocks = np.array_split(order, min(len(order), _MOST_HISTORIES))
    found = _quick_each([dominating_history(distinct[block], coarse) for block in blocks], delta)
    uppers = np.empty(len(first))
    uppers[order] = np.repeat(found, [len(block) for block in blocks])
    return np.asarray(uppers[inverse])


def rounded_up(kind: Kind) -> Kind:
    """The kind with its Poisson rate rounded up to a grid of 1 %."""
    event, relation = kind
    if not isinstance(event, dp.PoissonSampledDpEvent):
        return kind
    up = 1.01 ** math.ceil(math.log(event.sampling_probability) / math.log(1.01) - 1e-9)
    return (dp.PoissonSampledDpEvent(max(up, event.sampling_probability), event.event), relation) if up < 1 else kind


def _round_counts(counts: Integers) -> Integers:
    """Counts above 200 rounded up by at most 1 %."""
    unit = np.maximum(1, 2 ** np.floor(np.log2(np.maximum(counts, 1) / 100))).astype(np.int64)
    return np.asarray(-(-counts // unit) * unit)
