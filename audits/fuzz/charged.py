"""Whether every noisy release of a client moves by no more than the ledger charged for it, release by release."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from audits.fuzz.experiment import Experiment
from audits.fuzz.found import Found, Violation
from audits.fuzz.tape import Coins, Noised, Tape
from privfl.privacy.accounting.claims import price
from privfl.privacy.accounting.release import Observer, Unit

SLACK = 1e-6
"""Relative slack for sums in float32, an order below what clipping keeps free for their rounding."""


def compare_charges(
    experiment: Experiment,
    one: Tape,
    other: Tape,
    unit: Unit,
    observer: Observer,
    forced: frozenset[str],
    found: Found,
    *,
    same_past: bool,
) -> None:
    """Match what the client released with what it was charged in one cell.

    Without the ``same_past`` in both worlds only what is noised in them is compared: all that follows a leak differs.
    """
    cell = f"{unit}/{observer}"
    gaussian, others = charges(one, unit, observer, experiment.data.client)
    used = list(_used(experiment, one, other, unit, observer, forced, cell, found))
    if same_past:
        _charged(experiment, one, gaussian, others, used, cell, found)


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
    found: Found,
) -> Iterator[_Use]:
    """The releases that concern the client, as the worlds show them; what is not Gaussian is checked on the way."""
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
        if moved and not _concerns(mine, client, one):
            what = f"{place}: what another client releases moves by {moved:.3g}"
            found.violations.append(Violation("another client", cell, what))
            continue
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


def _share(mine: Noised, moved: float, unit: Unit, cell: str, found: Found) -> None:
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
    found: Found,
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
