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
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import dp_accounting as dp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from audits.fuzz.experiment import Experiment
from audits.fuzz.tape import Coins, Noised, Tape
from audits.fuzz.worlds import Trained, train
from privfl.privacy.accounting.claims import price
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Unit

SLACK = 1e-6
"""Relative slack for sums in float32, an order below what clipping keeps free for their rounding."""
ROUNDING = 1e-5
"""What moves by less than this share of a charge moves by the rounding of float32: padding changes how sums are formed
and the last bits of clients that the worlds do not differ in. It adds 1e-10 of a charge to the sum of squares."""
RARE = 12 * math.log(10)
"""Random numbers are found fault with once in 10¹² experiments at most."""
DOOR = frozenset({"door", "totals"})
UPDATES = frozenset({"channel", "server", "correlated", "share"})
ALWAYS = frozenset({"size", "report"})


@dataclass(frozen=True)
class Violation:
    """One claim that does not hold: what ``kind`` of defect, in which cell, where, and how far it is off."""

    kind: str
    cell: str
    what: str


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


@dataclass
class _Found:
    violations: list[Violation] = field(default_factory=list)
    noised: int = 0
    moved: int = 0
    seen: int = 0
    closest: float = 0.0


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
    found = _Found()
    if second.run is None:
        found.violations.append(Violation("one world", f"{unit}/server", second.refusal or second.crash))
    else:
        for observer in observers:
            _compare(experiment, first.tape, second.tape, unit, observer, forced, found)
        _streams(first.tape, unit, found)
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
    logs = [log for (_, who, _), log in tape.logs.items() if who == client]
    if any(log.bare for log in logs):
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
    found: _Found,
) -> None:
    cell = f"{unit}/{observer}"
    found.violations += [Violation("structure", cell, what) for what in other.strange]
    leaks = list(_leaks(one, other, observer, cell))
    found.violations += leaks
    found.seen += sum(observer in seen.observers for seen in one.seen)
    gaussian, others = charges(one, unit, observer, experiment.data.client)
    least = ROUNDING * min((distance for _, distance in gaussian), default=0.0)
    used = list(_used(experiment, one, other, unit, observer, forced, cell, found, least))
    if not leaks:  # after a leak the pasts of the worlds differ, and so does everything that follows
        _charged(experiment, one, gaussian, others, used, cell, found)
    if one.ledger is not None and other.ledger is not None and one.ledger.state() != other.ledger.state():
        found.violations.append(Violation("statement", cell, "the ledgers of the two worlds differ"))
    if one.caveats != other.caveats:
        found.violations.append(Violation("statement", cell, "the caveats of the two worlds differ"))


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


@dataclass(frozen=True)
class _Use:
    """One Gaussian release: the rate of the coins that it may claim, and how far the worlds are apart in deviations."""

    rate: float
    distance: float
    where: str


def _used(
    experiment: Experiment,
    one: Tape,
    other: Tape,
    unit: Unit,
    observer: Observer,
    forced: frozenset[str],
    cell: str,
    found: _Found,
    least: float,
) -> Iterator[_Use]:
    """The releases that concern the client, as the worlds show them; what is not Gaussian is checked on the way.

    Distances below ``least`` are rounding and count as none.
    """
    client = experiment.data.client
    last = experiment.data.rows[client] - 1
    together: dict[tuple[object, ...], list[tuple[Noised, float]]] = defaultdict(list)
    spent: set[object] = set()
    repeated: dict[tuple[bytes, int], Noised] = {}
    for place, mine in one.noised.items():
        theirs = other.noised.get(place)
        if mine.kind not in forced or (mine.kind == "server" and observer == "server"):
            continue
        if theirs is None or theirs.value.shape != mine.value.shape:
            found.violations.append(Violation("structure", cell, f"{place} is noised in one world only"))
            continue
        before = repeated.setdefault((mine.key, place[2]), mine)
        if before is not mine and np.array_equal(before.released, mine.released):
            continue  # a round that is repeated bit by bit after an interruption gives nothing new away
        found.noised += 1
        if mine.kind in ("size", "report"):
            continue
        with np.errstate(all="ignore"):
            moved = float(np.linalg.norm(mine.value - theirs.value))
        if mine.deviation != theirs.deviation:
            what = f"{place}: noise of {mine.deviation:.6g} and of {theirs.deviation:.6g}"
            found.violations.append(Violation("deviation", cell, what))
        if math.isnan(moved):
            found.violations.append(Violation("sensitivity", cell, f"{place}: not finite before the noise"))
            continue
        if mine.deviation and moved <= least * mine.deviation:
            moved = 0.0
        found.moved += moved > 0
        if mine.kind == "share":
            _share(mine, moved, unit, cell, found)
            continue
        if not moved and not _concerns(mine, client, one):
            continue
        group: tuple[object, ...] = place[:2] if mine.kind in ("channel", "server") else place
        together[group].append((mine, moved))
    for group, members in together.items():
        mine = members[0][0]
        squares = sum(_ratio(noised, moved) ** 2 for noised, moved in members)
        coins = _coins(one, mine, client, unit, observer)
        rate = 1.0
        if coins is not None and coins.place not in spent:
            spent.add(coins.place)
            index = last if unit == "sample" else None
            if not squares or index is None or index in coins.drawn:
                rate = coins.rate
        yield _Use(rate, math.sqrt(squares), str(group))


def _concerns(noised: Noised, client: int, tape: Tape) -> bool:
    """Whether a release that does not move in these two worlds is one that ``client`` had a part in."""
    labels = noised.labels
    if noised.kind in ("server", "correlated"):
        return (labels[-1], client) in tape.senders
    return labels[-1] == client


def _ratio(noised: Noised, moved: float) -> float:
    if moved == 0:
        return 0.0
    if noised.deviation == 0:
        return math.inf
    return moved / noised.deviation * math.sqrt(noised.facts.get("column", 1.0))


def _coins(tape: Tape, noised: Noised, client: int, unit: Unit, observer: Observer) -> Coins | None:
    """The draw that may amplify a release: of rows for the unit ``sample``, of the cohort for ``client``."""
    session, labels, _ = noised.place
    if unit == "client":
        where = ("coins", "cohort", labels[1] if noised.kind == "server" else labels[-2] if len(labels) > 1 else 0)
        return tape.coins.get((session, where, 0)) if noised.kind == "server" and observer == "public" else None
    if noised.kind == "door":
        return noised.coins
    if noised.kind == "server":
        label = str(labels[0]).removeprefix("server")
        return tape.coins.get((session, ("coins", "door" + label, labels[1], client), 0))
    return None


def _share(mine: Noised, moved: float, unit: Unit, cell: str, found: _Found) -> None:
    """Noise in shares: the integers keep to the bound, and the shares to the variance that is claimed of their sum."""
    allowed = mine.facts["bound"] * (2 if unit == "sample" else 1)
    found.closest = max(found.closest, moved / allowed)
    if moved > allowed:
        found.violations.append(
            Violation("sensitivity", cell, f"{mine.place}: {moved:.6g} steps, {allowed:.6g} charged")
        )
    if mine.facts["total"] < mine.facts["claimed"] * (1 - 1e-12):
        what = f"{mine.place}: variance {mine.facts['total']:.6g} of a sum, {mine.facts['claimed']:.6g} claimed"
        found.violations.append(Violation("too little noise", cell, what))


def _charged(
    experiment: Experiment,
    tape: Tape,
    gaussian: list[tuple[float, float]],
    others: int,
    used: list[_Use],
    cell: str,
    found: _Found,
) -> None:
    """Whether every use finds a charge of its own that covers it."""
    answers = _answers(tape, experiment.data.client)
    if answers > others:
        found.violations.append(
            Violation("uncharged", cell, f"{answers} randomised answers or shares, {others} charged")
        )
    if not used:
        return
    allowed = [[_covers(use, charge) for charge in gaussian] for use in used]
    if gaussian:
        matched = maximum_bipartite_matching(csr_array(np.array(allowed, dtype=np.int8)), perm_type="column")
        missing = [use for use, place in zip(used, matched, strict=True) if place < 0]
    else:
        missing = used
    best = max((distance for _, distance in gaussian), default=0.0)
    if best > 0:
        found.closest = max([found.closest, *(use.distance / best for use in used if math.isfinite(use.distance))])
    if len(used) > len(gaussian):
        what = f"{len(used)} noisy releases, {len(gaussian)} charged"
        found.violations.append(Violation("uncharged", cell, what))
    elif missing:
        worst = max(missing, key=lambda use: (use.distance, use.rate))
        told = ", ".join(f"rate {rate:g} distance {distance:.6g}" for rate, distance in sorted(set(gaussian))[-3:])
        what = f"{worst.where}: rate {worst.rate:g}, distance {worst.distance:.6g}; charged {told}"
        found.violations.append(Violation("sensitivity", cell, what))


def _covers(use: _Use, charge: tuple[float, float]) -> bool:
    rate, distance = charge
    return use.rate <= rate * (1 + 1e-9) and use.distance <= distance * (1 + SLACK)


def charges(tape: Tape, unit: Unit, observer: Observer, client: int) -> tuple[list[tuple[float, float]], int]:
    """What the ledger charges ``client`` in one cell: (rate, distance) of its Gaussians, and how many other events."""
    assert tape.ledger is not None
    histories = tape.ledger.histories(unit, observer)
    gaussian: list[tuple[float, float]] = []
    others = 0
    for release, count in histories.row(int(histories.group[client])).items():
        kinds = price(release, unit, observer)
        assert isinstance(kinds, dict)
        for (event, relation), number in kinds.items():
            match event:
                case dp.GaussianDpEvent(noise_multiplier=noise):
                    gaussian += [(1.0, 1 / noise)] * (number * count)
                case dp.PoissonSampledDpEvent(
                    sampling_probability=rate, event=dp.GaussianDpEvent(noise_multiplier=noise)
                ):
                    times = 2.0 if relation is dp.NeighboringRelation.REPLACE_ONE else 1.0
                    gaussian += [(rate, times / noise)] * (number * count)
                case _:
                    others += number * count
    return gaussian, others


def _answers(tape: Tape, client: int) -> int:
    """Fresh randomised answers of ``client``, and its shares of noise."""
    keys = {
        (noised.key, noised.place[2])
        for noised in tape.noised.values()
        if noised.kind in ("report", "share") and noised.labels[-1] == client
    }
    return len(keys) + sum(who == client for who, _, _ in tape.answered)


def _streams(tape: Tape, unit: Unit, found: _Found) -> None:
    """No noise is used twice for different values, none is shared, and a fixed key is admitted."""
    cell = f"{unit}/*"
    by_key: dict[tuple[bytes, str, int], Noised] = {}
    residuals: dict[bytes, Noised] = {}
    squares, numbers = 0.0, 0
    for noised in tape.noised.values():
        if noised.kind in ("size", "report", "share") or noised.deviation == 0:
            continue
        first = by_key.setdefault((noised.key, noised.kind, noised.place[2]), noised)
        if first is not noised:
            if not _same(first, noised):
                what = f"{noised.place} and {first.place} share a stream and hide different values"
                found.violations.append(Violation("noise used twice", cell, what))
            continue
        if noised.kind == "correlated" or not np.isfinite(noised.value).all():
            continue
        # Values beyond 2^20 deviations leave too few digits of float32 to see the noise.
        small = np.abs(noised.value) < noised.deviation * 2.0**20
        if not small.all():
            continue
        residual = (noised.released - noised.value) / noised.deviation
        squares, numbers = squares + float(residual @ residual), numbers + residual.size
        if residual.size >= 6:
            twin = residuals.setdefault(np.round(residual[:6], 1).tobytes(), noised)
            if twin is not noised and _noise_is_shared(twin, noised):
                what = f"{noised.place} and {twin.place} carry the same noise"
                found.violations.append(Violation("noise used twice", cell, what))
    if numbers and not _plausible(squares, numbers):
        what = f"the mean square of {numbers} numbers of noise is {squares / numbers:.4g} of the deviation's"
        found.violations.append(Violation("noise is not as stated", cell, what))
    drawn = sum(len(coins.drawn) for coins in tape.coins.values())
    expected = sum(coins.count * coins.rate for coins in tape.coins.values())
    variance = sum(coins.count * coins.rate * (1 - coins.rate) for coins in tape.coins.values())
    if abs(drawn - expected) > math.sqrt(2 * variance * RARE) + RARE / 3 * 2:
        found.violations.append(Violation("coins are not as stated", cell, f"{drawn} drawn, {expected:.6g} expected"))
    if tape.fixed_key_used and tape.reproducible is False and tape.noised:
        found.violations.append(Violation("fixed key", cell, "noise came from a fixed key, and nothing says so"))


def _same(one: Noised, other: Noised) -> bool:
    return one.deviation == other.deviation and np.array_equal(one.value, other.value, equal_nan=True)


def _noise_is_shared(one: Noised, other: Noised) -> bool:
    mine, theirs = ((noised.released - noised.value) / noised.deviation for noised in (one, other))
    return mine.shape == theirs.shape and float(np.abs(mine - theirs).max()) < 1e-3


def _plausible(squares: float, numbers: int) -> bool:
    """Whether a sum of squares of normal numbers is one, but for one case in 10¹² (Laurent and Massart 2000)."""
    x = RARE
    return numbers - 2 * math.sqrt(numbers * x) <= squares <= numbers + 2 * math.sqrt(numbers * x) + 2 * x
