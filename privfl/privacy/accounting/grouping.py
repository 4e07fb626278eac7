"""Fewer kinds and fewer histories, always upwards: rounding that can only make a claim larger.

A Poisson sample at rate q' <= q is a subsample of one at rate q, so replacing a rate by a larger one (noise and count
unchanged) dominates it in both directions: the hockey-stick divergence is jointly convex.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
from scipy import sparse

from privfl.privacy.accounting.events import Kind
from privfl.privacy.accounting.loss import variance_guess

Integers = npt.NDArray[np.int64]


def same_mechanism_key(kind: Kind) -> Kind:
    """What kinds share that differ in the Poisson sampling rate alone, to group them by."""
    event, relation = kind
    return (event.event, relation) if isinstance(event, dp.PoissonSampledDpEvent) else kind


def rate(kind: Kind) -> float:
    """The Poisson sampling rate of a kind, 1 where nothing is sampled."""
    event = kind[0]
    return float(event.sampling_probability) if isinstance(event, dp.PoissonSampledDpEvent) else 1.0


def fewer_rates(kinds: Mapping[Kind, int], most: int) -> dict[Kind, int]:
    """The same history with at most ``most`` different Poisson rates per noise, the others rounded up.

    Neighbouring rates share the largest among them; where to cut is chosen by bisection on the loss variance that one
    shared rate may add.
    """
    families: dict[Kind, list[Kind]] = {}
    for kind in kinds:
        families.setdefault(same_mechanism_key(kind), []).append(kind)
    result: dict[Kind, int] = {}
    for members in families.values():
        members.sort(key=rate, reverse=True)
        for head, kind in zip(_heads(members, kinds, most), members, strict=True):
            result[head] = result.get(head, 0) + kinds[kind]
    return result


def _heads(members: list[Kind], kinds: Mapping[Kind, int], most: int) -> list[Kind]:
    """For each of the ``members``, falling in rate, the one whose rate it takes."""
    if len(members) <= most:
        return members
    weights = np.array([variance_guess(kind) for kind in members])
    counts = np.array([kinds[kind] for kind in members], dtype=np.float64)

    def cut(allowance: float) -> list[int]:
        heads, added = [0], 0.0
        for index in range(1, len(members)):
            added += counts[index] * (weights[heads[-1]] - weights[index])
            new = added > allowance
            heads.append(index if new else heads[-1])
            added = 0.0 if new else added
        return heads

    low, high = 0.0, float(counts @ (weights[0] - weights)) + 1e-300
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if len(set(cut(middle))) <= most else (middle, high)
    return [members[head] for head in cut(high)]


def distinct_rows(counts: sparse.csr_array) -> tuple[Integers, Integers]:
    """(indices of the first row of each distinct content, for each row the number of its content).

    Rows are compared by a 128-bit linear fingerprint: two different rows agree with probability about 2^-128.
    """
    weights = np.random.default_rng(0).integers(2**64, size=(counts.shape[1], 2), dtype=np.uint64)
    prints = counts.astype(np.uint64) @ weights
    _, first, inverse = np.unique(prints[:, 0], return_index=True, return_inverse=True)
    if not np.array_equal(prints[first[inverse], 1], prints[:, 1]):  # only where half a fingerprint does not tell apart
        _, first, inverse = np.unique(prints, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def dominating_history(rows: sparse.csr_array, kinds: Sequence[Kind]) -> dict[Kind, int]:
    """One history that dominates every row (histories x kinds): for each noise and each rate x, it holds as many
    events with a rate of at least x as the row that holds most."""
    present = np.unique(rows.indices[rows.data > 0])
    family = {column: same_mechanism_key(kinds[column]) for column in present.tolist()}
    named = {head: repr(head) for head in dict.fromkeys(family.values())}
    order = sorted(family, key=lambda column: (named[family[column]], -rate(kinds[column])))
    if not order:
        return {}
    families = [family[column] for column in order]
    starts = [place for place in range(len(order)) if place == 0 or families[place] != families[place - 1]]
    ordered = sparse.csr_array(rows[:, order])
    ordered.sort_indices()
    reached = np.cumsum(ordered.data)
    family_of = np.repeat(np.arange(len(starts)), np.diff([*starts, len(order)]))[ordered.indices]
    # Entries of one row and family are neighbours: what was reached before the first of them is taken off.
    run = np.repeat(np.arange(rows.shape[0]), np.diff(ordered.indptr)) * len(starts) + family_of
    fresh = np.flatnonzero(np.diff(run, prepend=-1))
    before = np.repeat((reached - ordered.data)[fresh], np.diff([*fresh, len(run)]))
    most = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(most, ordered.indices, reached - before)
    for left, right in zip(starts, [*starts[1:], len(order)], strict=True):
        np.maximum.accumulate(most[left:right], out=most[left:right])
    joined = np.diff(most, prepend=0)
    joined[starts] = most[starts]
    return {kinds[column]: int(number) for column, number in zip(order, joined, strict=True) if number}
