"""The noise-free check: given the same released past, what moves between the worlds, and is every bit of it noised?

Both worlds are trained with the same seeds and coins. The second one is handed what the first one released, so its past
is the first one's, and at every noise stands exactly what one example (or one client's contribution) moves. Three
things must hold for each finite cell of the statement:

* what moves, over the deviation of its noise, is at most what the ledger charged, release by release;
* every noise comes from a stream of its own, and is drawn as claimed;
* nothing else that reaches the observer differs by a single bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from audits.fuzz.charged import charges, compare_charges
from audits.fuzz.experiment import Experiment
from audits.fuzz.found import Found, Violation
from audits.fuzz.streams import check_streams
from audits.fuzz.tape import Tape
from audits.fuzz.worlds import Trained, train
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Unit

DOOR = frozenset({"door", "totals"})
UPDATES = frozenset({"channel", "server", "correlated", "share"})
ALWAYS = frozenset({"size", "report"})


@dataclass(frozen=True)
class Verdict:
    """What came of one experiment.

    ``status`` is ``held``, ``broken``, ``vacuous`` (all four cells are ∞), ``refused`` (the library would not run it)
    or ``crashed``; ``finite`` are the cells that claim something, ``checked`` those that were compared.
    """

    status: str
    violations: tuple[Violation, ...] = ()
    finite: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    reason: str = ""
    noised: int = 0
    moved: int = 0
    seen: int = 0
    closest: float = 0.0
    """The largest share of its charge that any release used."""


def check(experiment: Experiment) -> Verdict:
    """Train both worlds of ``experiment`` and hold them to the statement."""
    first = train(experiment, "with", Tape())
    if first.run is None:
        return Verdict("refused" if first.refusal else "crashed", reason=first.refusal or first.crash)
    finite = cells(first)
    if not finite:
        return Verdict("vacuous")
    unit = experiment.unit if any(one == experiment.unit for one, _ in finite) else finite[0][0]
    if unit != experiment.unit:
        experiment = replace(experiment, unit=unit)
    observers = [observer for one, observer in finite if one == unit]
    forced = kinds_that_count(first.tape, experiment.data.client, unit)
    if not any(any(charges(first.tape, unit, observer, experiment.data.client)) for observer in observers):
        forced = frozenset()  # nothing is charged, so nothing may differ, noise or not
    second = train(experiment, "without", Tape(played=first.tape, forced=forced))
    found = Found()
    if second.run is None:
        found.violations.append(Violation("one world", f"{unit}/server", second.refusal or second.crash))
    else:
        for observer in observers:
            _compare(experiment, first.tape, second.tape, unit, observer, forced, found)
        check_streams(first.tape, unit, found)
    return Verdict(
        "broken" if found.violations else "held",
        tuple(dict.fromkeys(found.violations)),
        tuple(f"{one}/{other}" for one, other in finite),
        tuple(f"{unit}/{observer}" for observer in observers),
        noised=found.noised,
        moved=found.moved,
        seen=found.seen,
        closest=found.closest,
    )


def cells(trained: Trained) -> list[tuple[Unit, Observer]]:
    """The cells of the statement that claim something."""
    assert trained.run is not None
    statement = trained.run.statement
    return [
        (unit, observer)
        for unit in UNITS
        for observer in OBSERVERS
        if math.isfinite(statement.cell(unit, observer).epsilon)
    ]


def kinds_that_count(tape: Tape, client: int, unit: Unit) -> frozenset[str]:
    """The kinds of noise that the claims for ``unit`` rest on."""
    if unit == "client":
        return UPDATES | ALWAYS
    logs = [log for who, log in tape.logs if who == client]
    covered = any(noised.kind in UPDATES for noised in tape.noised.values())
    if covered and any(log.bare for log in logs):  # what a survey takes bare may leave as a randomised report
        return UPDATES | ALWAYS
    if any(log.clipped for log in logs):
        return frozenset({"server"}) | ALWAYS
    return DOOR | ALWAYS


def _compare(
    experiment: Experiment,
    one: Tape,
    other: Tape,
    unit: Unit,
    observer: Observer,
    forced: frozenset[str],
    found: Found,
) -> None:
    cell = f"{unit}/{observer}"
    found.violations += [Violation("structure", cell, what) for what in other.strange]
    leaks = list(_leaks(one, other, observer, cell))
    found.violations += leaks
    found.seen += sum(observer in seen.observers for seen in one.seen)
    compare_charges(experiment, one, other, unit, observer, forced, found, same_past=not leaks)
    if one.ledger is not None and other.ledger is not None and one.ledger.state() != other.ledger.state():
        found.violations.append(Violation("statement", cell, "the ledgers of the two worlds differ"))
    if one.statement is not None and other.statement is not None and str(one.statement) != str(other.statement):
        found.violations.append(Violation("statement", cell, "the statements of the two worlds differ"))


def _leaks(one: Tape, other: Tape, observer: Observer, cell: str) -> Iterator[Violation]:
    """What reaches ``observer`` and differs, although every noised value is the same."""
    mine, theirs = (
        sorted((seen for seen in tape.seen if observer in seen.observers), key=lambda seen: seen.where)
        for tape in (one, other)
    )
    if [seen.where for seen in mine] != [seen.where for seen in theirs]:
        names = {seen.where for seen in mine} ^ {seen.where for seen in theirs}
        yield Violation("leak", cell, f"other messages: {sorted(names)[:3] or 'in another order'}")
        return
    for left, right in zip(mine, theirs, strict=True):
        if len(left.values) != len(right.values):
            yield Violation("leak", cell, f"{left.where}: another number of values")
            return
        for a, b in zip(left.values, right.values, strict=True):
            if a.shape != b.shape:
                yield Violation("leak", cell, f"{left.where}: shapes {a.shape} and {b.shape}")
                return
            if not np.array_equal(a, b, equal_nan=True):
                with np.errstate(all="ignore"):
                    distance = float(np.linalg.norm((a - b).reshape(-1)))
                    scale = float(np.linalg.norm(a.reshape(-1)))
                kind = "rounding" if distance <= 1e-5 * scale else "leak"
                yield Violation(kind, cell, f"{left.where}: differs by {distance:.3g} of {scale:.3g}")
                return
