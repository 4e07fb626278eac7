"""Audits of local randomisers: is one answer about a client's size, or a series of them, as private as it costs?

Inputs are sizes inside the mechanism's range and beyond it, because a truth that is not clipped shows only there. Every
mechanism is called as a run calls it, so what is audited is the code that runs, coins included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audits.bounds.bound import LowerBound, error_level, shared_confidence
from audits.bounds.counts import log_ratio
from audits.bounds.output_events import epsilon_from_answers
from audits.bounds.rates import clopper_pearson_lower, clopper_pearson_upper
from audits.result import AuditResult
from privfl.errors import ConfigError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.release import Unit
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS, DuchiSize
from privfl.privacy.sizes.mechanism import SizeMechanism, size_release
from privfl.privacy.sizes.randomized_response import RandomizedResponse
from privfl.privacy.sizes.responses import SizeResponses
from privfl.schema import plain
from privfl.validation import checked

Counts = NDArray[np.int64]
Pairs = NDArray[np.bool_]
AT_MOST_TRIALS = 1 << 22
"""Answers drawn at once."""
LARGEST_TABLE = 1024
"""Randomised response over a larger range is asked about some sizes instead of all, and audited by events: its answers
are too many to have a cell each."""


def epsilon_from_table(counts: Counts, pairs: Pairs | None = None, *, confidence: float) -> LowerBound:
    """The ε (at δ = 0) that ``counts`` [inputs, outputs] of independent answers certify.

    The worst event over all ordered pairs of inputs (those in ``pairs`` [inputs, inputs], if given) and all single
    outputs. Every cell's probability is bounded from both sides by Clopper and Pearson at (1 − confidence)/(2·cells):
    dividing by the number of outputs alone would be wrong, because any cell may be the one that is picked.

    Raises:
        ConfigError: the table is not of whole numbers ≥ 0 with two inputs, two outputs and an answer for every input.
    """
    error = error_level(0.0, confidence)
    if counts.ndim != 2 or min(counts.shape) < 2 or counts.min() < 0 or not counts.sum(1).all():
        raise ConfigError(
            f"a table of shape {counts.shape} certifies nothing; give counts of at least two outputs for at least two "
            "inputs, each of which was asked"
        )
    trials = np.broadcast_to(counts.sum(1, keepdims=True), counts.shape)
    level = error / (2 * counts.size)
    low, high = clopper_pearson_lower(counts, trials, level), clopper_pearson_upper(counts, trials, level)
    everyone = ~np.eye(len(counts), dtype=np.bool_)
    if pairs is None or np.array_equal(pairs, everyone):
        # an input compared with itself gives a ratio of at most 1, which certifies nothing
        output = int((low.max(0) / high.min(0)).argmax())
        first, second = int(low[:, output].argmax()), int(high[:, output].argmin())
    else:
        found = [(low[a] / high[b]).max() for a, b in np.argwhere(pairs)]
        first, second = (int(place) for place in np.argwhere(pairs)[int(np.argmax(found))])
        output = int((low[first] / high[second]).argmax())
    likely, unlikely = float(low[first, output]), float(high[second, output])
    return LowerBound(
        epsilon=log_ratio(likely, unlikely, 0.0),
        delta=0.0,
        confidence=confidence,
        method="all pairs and outputs, Bonferroni over all cells",
        details={"inputs": [first, second], "output": output, "cells": int(counts.size)},
    )


def epsilon_from_support(counts: Counts, *, least_probability: float, confidence: float) -> LowerBound:
    """∞ if an output was seen under one input and never under another, of ``counts`` [inputs, outputs]; 0 otherwise.

    An empty cell is evidence only once there were n ≥ ln(cells/(1 − confidence))/``least_probability`` answers to its
    input, ``least_probability`` being the smallest probability that the mechanism under audit gives any output.

    Raises:
        ConfigError: ``least_probability`` is not in (0, 1].
    """
    error = error_level(0.0, confidence)
    if not 0 < least_probability <= 1:
        raise ConfigError(f"the least probability of an output is {least_probability!r}; give a number in (0, 1]")
    needed = math.ceil(math.log(counts.size / error) / least_probability)
    enough = counts.sum(1) >= needed
    missing = np.argwhere((counts == 0) & enough[:, None] & (counts.sum(0) > 0))
    return LowerBound(
        epsilon=math.inf if len(missing) else 0.0,
        delta=0.0,
        confidence=confidence,
        method="outputs that one input gives and another never",
        assumes="every output has its claimed least probability under an input, or none",
        details={"trials_needed": needed, "missing": missing[:5].tolist()},
    )


def claimed_epsilon(mechanism: SizeMechanism, unit: Unit, answers: int = 1, delta: float = 0.0) -> float:
    """What ``answers`` fresh answers cost the ``unit`` before the server, as the ledger prices them at ``delta``."""
    cost = size_release(mechanism).cost(unit, "server")  # as a statement says
    assert cost is not None
    if cost.event is None:
        return math.inf
    return epsilon([((cost.event, cost.relation), answers)], delta, interval=False).epsilon


@checked
def audit_size_mechanism(
    mechanism: SizeMechanism,
    *,
    answers: int = 20_000,
    unit: Unit = "client",
    confidence: float = 0.95,
    source: NoiseSource | None = None,
) -> AuditResult:
    """Audit one answer of ``mechanism``, from ``answers`` fresh ones to each of many sizes.

    ``unit`` says which sizes are neighbours: all of them for ``"client"``, those that differ by one for ``"sample"``.
    Mechanisms with few outputs (randomised response over at most :data:`LARGEST_TABLE` sizes, Duchi's bit) are audited
    cell by cell over all inputs and by their support, half the error each; the others on events that an independent
    half of the answers chose.

    ``source`` gives the mechanism's coins, by default the operating system.

    Raises:
        ConfigError: fewer than four answers, or an argument is not as said.
    """
    began = time.perf_counter()
    error_level(0.0, confidence)
    if answers < 4:
        raise ConfigError(f"an audit with {answers} answers for an input certifies nothing; ask for thousands")
    source = source or NoiseSource.from_os()
    outputs = _outputs(mechanism)
    half = confidence if outputs is None else shared_confidence(confidence, 2)
    sizes = _inputs(mechanism, unit, every=outputs is not None and isinstance(mechanism, RandomizedResponse))
    pairs = neighbours(sizes, unit)
    if outputs is None:
        drawn = np.stack([_answers(mechanism, size, answers, source) for size in sizes])
        bounds: tuple[LowerBound, ...] = (epsilon_from_answers(drawn, pairs, delta=0.0, confidence=confidence),)
    else:
        tables = [_counted(_answers(mechanism, size, answers, source), outputs) for size in sizes]
        counts = np.stack(tables)
        # the last column is of answers that the mechanism should never give
        support = epsilon_from_support(counts[:, :-1], least_probability=_least(mechanism), confidence=half)
        bounds = (epsilon_from_table(counts, pairs, confidence=half), support)
    return AuditResult(
        audit="size-response",
        unit=unit,
        observer="server",
        claim=claimed_epsilon(mechanism, unit),
        delta=0.0,
        confidence=confidence,
        bounds=bounds,
        settings={
            "mechanism": plain(mechanism, {SizeMechanism: SIZE_MECHANISMS}, SizeMechanism),
            "answers": answers,
            "sizes": [int(size) for size in sizes],
        },
        seconds=time.perf_counter() - began,
    )


@checked
def audit_repeated_answers(
    mechanism: SizeMechanism,
    *,
    rounds: int,
    clients: int = 20_000,
    delta: float = 0.0,
    confidence: float = 0.95,
    source: NoiseSource | None = None,
) -> AuditResult:
    """Audit what the server learns from ``rounds`` rounds of answers about one client's size.

    Half of the ``clients`` hold the smallest size of the range, half the largest; all are asked in every round through
    the table of answers that a run uses, so a memoised mechanism replays. The server decides by the mode of a client's
    answers (discrete mechanisms) or their mean, on an event that an independent half of the clients chose. The claim is
    what the ledger charges for the answers that were fresh.

    Source: LDP-Auditor (Arcolezi and Gambs, PoPETs 2024), whose longitudinal audit fixes the event in advance.

    Raises:
        ConfigError: fewer than one round or eight clients, or an argument is not as said.
    """
    began = time.perf_counter()
    error_level(delta, confidence)
    if rounds < 1 or clients < 8:
        raise ConfigError(f"{rounds} rounds of {clients} clients certify nothing; give at least 1 round and 8 clients")
    source, table = source or NoiseSource.from_os(), SizeResponses()
    half = clients // 2
    sizes = np.repeat([mechanism.range.lo, mechanism.range.hi], half)
    series, fresh = [], 0
    for number in range(rounds):
        series.append(np.asarray(table.answers(number, range(2 * half), sizes, mechanism, source), dtype=np.float64))
        fresh += bool(table.fresh)
    told = np.stack(series)
    decided = _modes(told) if isinstance(mechanism, RandomizedResponse | DuchiSize) else told.mean(0)
    everyone = ~np.eye(2, dtype=np.bool_)
    bound = epsilon_from_answers(decided.reshape(2, half), everyone, delta=delta, confidence=confidence)
    return AuditResult(
        audit="repeated-size-responses",
        unit="client",
        observer="server",
        claim=claimed_epsilon(mechanism, "client", fresh, delta),
        delta=delta,
        confidence=confidence,
        bounds=(bound,),
        settings={
            "mechanism": plain(mechanism, {SizeMechanism: SIZE_MECHANISMS}, SizeMechanism),
            "rounds": rounds,
            "fresh": fresh,
            "clients": 2 * half,
        },
        seconds=time.perf_counter() - began,
    )


def neighbours(sizes: Sequence[int], unit: Unit) -> Pairs:
    """Which of ``sizes`` are neighbours, bool [inputs, inputs]: all unlike ones, or those that differ by one."""
    values = np.asarray(sizes)
    apart = np.abs(values[:, None] - values[None, :])
    return np.asarray(apart == 1 if unit == "sample" else apart > 0)


def _inputs(mechanism: SizeMechanism, unit: Unit, *, every: bool) -> list[int]:
    """Sizes to ask about: all of the range or some, and sizes beyond both ends."""
    low, high = mechanism.range.lo, mechanism.range.hi
    some = range(low, high + 1) if every else [low, (3 * low + high) // 4, (low + high) // 2, (low + 3 * high) // 4]
    found = {*some, high, max(low - 1, 0), 0, high + 1, 4 * high + 1}
    if unit == "sample":
        found |= {size + 1 for size in found}
    return sorted(found)


def _outputs(mechanism: SizeMechanism) -> NDArray[np.float64] | None:
    """The answers that a mechanism with few of them may give, ascending; ``None`` for one with many."""
    if isinstance(mechanism, RandomizedResponse) and mechanism.range.domain <= LARGEST_TABLE:
        return np.arange(mechanism.range.lo, mechanism.range.hi + 1, dtype=np.float64)
    if isinstance(mechanism, DuchiSize):
        reach = mechanism.range.half_width * mechanism.magnitude
        return np.array([mechanism.range.centre - reach, mechanism.range.centre + reach])
    return None


def _least(mechanism: SizeMechanism) -> float:
    """The smallest probability that randomised response or Duchi's bit gives any answer."""
    if isinstance(mechanism, RandomizedResponse):
        return mechanism.lie_probability / mechanism.range.domain or 1.0
    return math.exp(-mechanism.epsilon) / (1 + math.exp(-mechanism.epsilon)) or 1.0


def _answers(mechanism: SizeMechanism, size: int, answers: int, source: NoiseSource) -> NDArray[np.float64]:
    """``answers`` fresh answers to ``size``, in pieces, each from a stream of its own."""
    parts = []
    for begin in range(0, answers, AT_MOST_TRIALS):
        stream = source.stream("audit size", int(size), begin)
        parts.append(mechanism.respond(np.full(min(AT_MOST_TRIALS, answers - begin), size), stream))
    return np.concatenate(parts).astype(np.float64)


def _counted(answers: NDArray[np.float64], outputs: NDArray[np.float64]) -> Counts:
    """How often each of the ``outputs`` was given, and, last, anything else."""
    place = np.searchsorted(outputs, answers).clip(max=len(outputs) - 1)
    place[outputs[place] != answers] = len(outputs)
    return np.bincount(place, minlength=len(outputs) + 1)


def _modes(series: NDArray[Any]) -> NDArray[np.float64]:
    """The most frequent answer of every client of ``series`` [rounds, clients]; the smallest of several."""
    values, places = np.unique(series, return_inverse=True)
    places = places.reshape(series.shape)
    best, most = np.zeros(series.shape[1], dtype=np.int64), np.zeros(series.shape[1], dtype=np.int64)
    for own in places:  # a client's mode is one of its answers
        times = (places == own).sum(0)
        better = (times > most) | ((times == most) & (own < best))
        best, most = np.where(better, own, best), np.maximum(times, most)
    return values[best]
