"""What a ledger earns: the history of every client priced for each unit before each observer.

The table is never better than the truth: whatever no accountant can price is ∞, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import Bound, check_delta
from privfl.privacy.accounting.events import InfiniteLoss, Kind, describe, elementary
from privfl.privacy.accounting.ledger import Histories, Ledger
from privfl.privacy.accounting.loss import Array
from privfl.privacy.accounting.population import Population, account
from privfl.privacy.accounting.release import (
    BARE_TRAINING,
    NO_CLIENT_NOISE,
    OBSERVERS,
    SIZE_RESPONSE,
    UNITS,
    Observer,
    Release,
    Unit,
)
from privfl.privacy.accounting.statement import NOTHING, RELATIONS, Answers, Cell, Counted, Distribution, Statement

TOO_LARGE = (
    "delta = {:g} is above one over the number of {}: what a claim at this delta allows may show one of them as it is. "
    "Set privacy.target_delta well below {}."
)
EMPTY = "ε would be 0 only because delta = {:g}, above one over the number of {}, allows all that was released"
_PLURALS: Mapping[Unit, str] = {"sample": "examples", "client": "clients"}


def make_statement(
    ledger: Ledger,
    delta: float,
    *,
    reproducible_noise: bool,
    caveats: Sequence[str] = (),
    public: str = "",
    server: str = "",
    units: Mapping[Unit, int] | None = None,
    interval: bool = True,
) -> Statement:
    """The statement of everything in ``ledger`` at ``delta`` (0 <= delta < 1).

    ``reproducible_noise`` says that noise or coins came from a fixed key: then the run must not be released, and the
    statement says so. ``caveats`` and what is ``public`` by assumption are printed below the table, and what the
    ``server`` may do in its cells. ``units`` says how many of each unit there are: a finite claim at a delta above one
    over that is called too weak, and one of ε = 0 is none. Without ``interval``, claims come alone, which is quicker.
    """
    check_delta(delta)
    done: dict[tuple[Any, ...], Population] = {}
    weak = {unit for unit in units or {} if too_large(delta, (units or {})[unit])}
    cells = tuple(
        _cell(ledger, unit, observer, delta, done, weak=unit in weak, interval=interval)
        for unit in UNITS
        for observer in OBSERVERS
    )
    claimed = {cell.unit for cell in cells if cell.releases and not cell.reasons}
    doubts = [_doubt(delta, unit, (units or {})[unit]) for unit in UNITS if unit in weak & claimed]
    return Statement(
        delta, ledger.clients, cells, reproducible_noise, tuple(dict.fromkeys((*caveats, *doubts))), public, server
    )


def too_large(delta: float, units: int) -> bool:
    """Whether ``delta`` is above one over the number of protected ``units``.

    A mechanism that publishes each unit with probability delta satisfies every claim at that delta, so that one of them
    is to be expected then.
    """
    return delta * units > 1


def doubted(statement: Statement, unit: Unit) -> bool:
    """Whether ``statement`` says that its delta is too large for so many of ``unit`` as there are."""
    said = [*statement.caveats, *(reason for cell in statement.cells for reason in cell.reasons)]
    return any(f"above one over the number of {_PLURALS[unit]}" in one for one in said)


def _doubt(delta: float, unit: Unit, units: int) -> str:
    """The caveat for a delta that is too large; how many clients there are is public, how many examples is not."""
    return TOO_LARGE.format(delta, _PLURALS[unit], f"{1 / units:.3g}" if unit == "client" else "that")


def _cell(
    ledger: Ledger,
    unit: Unit,
    observer: Observer,
    delta: float,
    done: dict[tuple[Any, ...], Population],
    *,
    weak: bool,
    interval: bool,
) -> Cell:
    histories = ledger.histories(unit, observer)
    priced = [price(release, unit, observer) for release in histories.releases]
    kinds, counts, leaking = in_kinds(histories, priced)
    key = (tuple(kinds), counts.shape, counts.data.tobytes(), counts.indices.tobytes(), counts.indptr.tobytes())
    if kinds and not leaking.all() and key not in done:
        done[key] = account(kinds, counts, delta, interval=interval)
    epsilons: Array = done[key].epsilons.copy() if key in done else np.zeros(len(histories))
    epsilons[leaking] = math.inf
    worst = int(np.argmax(epsilons)) if leaking.any() or key not in done else done[key].worst
    note = done[key].note if key in done and not leaking.any() else ""
    reasons = _reasons(histories, priced)
    if weak and key in done and not leaking.any() and epsilons[worst] == 0:
        names = ", ".join(dict.fromkeys(release.name for release in histories.row(worst)))
        reasons, epsilons = (f"{names}: {EMPTY.format(delta, _PLURALS[unit])}",), np.full(len(histories), math.inf)
    if reasons:
        bound = Bound(math.inf, "none", math.inf, math.inf, math.inf, "see the reasons")
    elif key in done:
        bound = done[key].bound
    else:
        bound = Bound(0.0, "none", 0.0, 0.0, 0.0, NOTHING)
    return Cell(
        unit=unit,
        observer=observer,
        relation=RELATIONS[unit],
        bound=bound,
        releases=_counted(histories.row(worst), unit, observer),
        reasons=reasons,
        clients=_distribution(epsilons, histories, worst),
        note=note,
        answers=_answers(histories, priced, delta) if interval and leaking.any() and not weak else None,
    )


def price(release: Release, unit: Unit, observer: Observer) -> dict[Kind, int] | str:
    """The elementary kinds of one release, or the reason why it has no finite price."""
    cost = release.cost(unit, observer)
    if cost is None:
        return {}
    if cost.event is None:
        return cost.reason
    try:
        return elementary(cost.event, cost.relation)
    except InfiniteLoss:
        return cost.reason or f"it reveals {describe(cost.event)}, without any noise that counts."
    except PrivacyError as refusal:
        return str(refusal)


def in_kinds(
    histories: Histories, priced: Sequence[dict[Kind, int] | str]
) -> tuple[list[Kind], sparse.csr_array, npt.NDArray[np.bool_]]:
    """(elementary kinds, how often each history holds each, which histories hold a release without a price)."""
    finite = [cost if isinstance(cost, dict) else {} for cost in priced]
    kinds = list(dict.fromkeys(kind for cost in finite for kind in cost))
    place = {kind: column for column, kind in enumerate(kinds)}
    entries = [(row, place[kind], number) for row, cost in enumerate(finite) for kind, number in cost.items()]
    rows, columns, numbers = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    into = sparse.csr_array((numbers, (rows, columns)), shape=(len(priced), len(kinds)))
    counts = (histories.counts @ into).tocsr()
    counts.sort_indices()
    without = np.array([isinstance(cost, str) for cost in priced], dtype=np.int64)
    return kinds, counts, np.asarray(histories.counts @ without).reshape(-1) > 0


def _reasons(histories: Histories, priced: Sequence[dict[Kind, int] | str]) -> tuple[str, ...]:
    made = np.asarray(histories.counts.sum(axis=0)).reshape(-1) > 0
    names: dict[str, dict[str, None]] = {}
    for release, cost, happened in zip(histories.releases, priced, made, strict=True):
        if isinstance(cost, str) and happened:
            names.setdefault(cost, {})[release.name] = None
    return tuple(f"{', '.join(who)}: {reason}" for reason, who in names.items())


def _answers(histories: Histories, priced: Sequence[dict[Kind, int] | str], delta: float) -> Answers | None:
    """What answers about sizes cost by themselves, if training alone has no price, for want of a mechanism.

    Each answer is made of a size and of the client's own coins, so it is private whatever training sends. Of no other
    message is anything said: one that was computed from unprotected ones, or is the very one that a defect of the run
    took the guarantee from, costs nobody knows what without them.
    """
    made = np.asarray(histories.counts.sum(axis=0)).reshape(-1) > 0
    happened = [(release, cost) for release, cost, did in zip(histories.releases, priced, made, strict=True) if did]
    if any(cost not in (BARE_TRAINING, NO_CLIENT_NOISE) for _, cost in happened if isinstance(cost, str)):
        return None
    if {release.name for release, cost in happened if isinstance(cost, dict)} != {SIZE_RESPONSE}:
        return None
    kinds, counts, _ = in_kinds(histories, priced)
    if not kinds:
        return None
    found = account(kinds, counts, delta, interval=False)
    if not math.isfinite(found.bound.epsilon):
        return None
    most = sum(count for release, count in histories.row(found.worst).items() if release.name == SIZE_RESPONSE)
    return Answers(found.bound.epsilon, most)


def _counted(history: Mapping[Release, int], unit: Unit, observer: Observer) -> tuple[Counted, ...]:
    """The releases of one client, those of one name with different parameters taken together."""
    named: dict[str, list[tuple[Release, int]]] = {}
    for release, count in history.items():
        named.setdefault(release.name, []).append((release, count))
    counted = []
    for name, rows in named.items():
        cost = max(rows, key=lambda row: row[1])[0].cost(unit, observer)
        words = "in clear" if cost is None or cost.event is None else describe(cost.event)
        more = f" (the most frequent of {len(rows)} settings)" if len(rows) > 1 else ""
        counted.append(Counted(name, words + more, sum(count for _, count in rows)))
    return tuple(counted)


def _distribution(epsilons: Array, histories: Histories, worst: int) -> Distribution:
    per_client = epsilons[histories.group]
    quantiles = np.quantile(per_client, [0.0, 0.25, 0.5, 0.75, 1.0], method="higher")
    client = int(np.flatnonzero(histories.group == worst)[0])
    minimum, lower, median, upper, maximum = (float(value) for value in quantiles)
    return Distribution(minimum, lower, median, upper, maximum, client)
