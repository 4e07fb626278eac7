"""The statement: what a run claims, to whom, for whom, and where it claims nothing.

Rows are the unit that is protected, columns who looks. Each cell holds ε of the worst client at delta, or ∞ with the
reasons. The table is never better than the truth: whatever no accountant can price is ∞.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Release, Unit

RELATIONS: Mapping[Unit, str] = {
    "sample": "add or remove one example of one client",
    "client": "one client's data is zeroed out",
}
"""The neighbouring relation of each row, in words."""

NOTHING = "nothing derived from the data reaches this observer"


@dataclass(frozen=True)
class Counted:
    """One release as the worst client made it: its name, its mechanism in words, how often."""

    name: str
    mechanism: str
    count: int


@dataclass(frozen=True)
class Distribution:
    """ε over the clients. All but ``maximum`` may be rounded up; a quartile is the ε of a client, never between two."""

    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float
    worst_client: int


@dataclass(frozen=True)
class Cell:
    """The claim for one unit before one observer; ``bound.epsilon`` is ∞ exactly if there are ``reasons``."""

    unit: Unit
    observer: Observer
    relation: str
    bound: Bound
    releases: tuple[Counted, ...]
    reasons: tuple[str, ...]
    clients: Distribution
    note: str

    @property
    def epsilon(self) -> float:
        """ε of the worst client."""
        return self.bound.epsilon


@dataclass(frozen=True)
class Sweep:
    """What several runs on the same clients spent together: ε for each (unit, observer)."""

    runs: int
    epsilons: tuple[tuple[Unit, Observer, float], ...]


@dataclass(frozen=True)
class Statement:
    """The four cells of a run at ``delta``; print it, or show it in a notebook or a report."""

    delta: float
    clients: int
    cells: tuple[Cell, ...]
    reproducible_noise: bool
    caveats: tuple[str, ...] = ()
    sweep: Sweep | None = None

    def cell(self, unit: Unit, observer: Observer) -> Cell:
        """The cell in row ``unit`` and column ``observer``."""
        return next(cell for cell in self.cells if (cell.unit, cell.observer) == (unit, observer))

    def with_sweep(self, ledgers: Sequence[Ledger]) -> Statement:
        """The same statement, telling also what all the runs behind ``ledgers`` spent together.

        A sweep that returns its best run has released something about every run, so ``ledgers`` are those of *all*
        runs, on the same clients.
        """
        together = make_statement(Ledger.merged(ledgers), self.delta, reproducible_noise=self.reproducible_noise)
        epsilons = tuple((cell.unit, cell.observer, cell.epsilon) for cell in together.cells)
        return replace(self, sweep=Sweep(len(ledgers), epsilons))

    def to_json(self) -> str:
        """The statement as JSON text; infinity is written as the string "inf"."""
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """The statement that :meth:`to_json` wrote; raises :class:`PrivacyError` for anything else."""
        try:
            data = _infinite(json.loads(text))
            cells = tuple(
                Cell(
                    **cell
                    | {
                        "bound": Bound(**cell["bound"]),
                        "releases": tuple(Counted(**release) for release in cell["releases"]),
                        "reasons": tuple(cell["reasons"]),
                        "clients": Distribution(**cell["clients"]),
                    }
                )
                for cell in data["cells"]
            )
            sweep = data["sweep"] and Sweep(
                data["sweep"]["runs"], tuple(tuple(row) for row in data["sweep"]["epsilons"])
            )
            return cls(**data | {"cells": cells, "caveats": tuple(data["caveats"]), "sweep": sweep})
        except (ValueError, TypeError, KeyError) as error:
            raise PrivacyError(
                f"this is not a privacy statement ({error}): give the text of a statement.json."
            ) from error

    def __str__(self) -> str:
        from privfl.privacy.accounting.rendering import to_text

        return to_text(self)

    def to_html(self) -> str:
        """The statement as an HTML fragment, without scripts, styles or links."""
        from privfl.privacy.accounting.rendering import to_html

        return to_html(self)

    def _repr_html_(self) -> str:
        return self.to_html()


def make_statement(ledger: Ledger, delta: float, *, reproducible_noise: bool, caveats: Sequence[str] = ()) -> Statement:
    """The statement of everything in ``ledger`` at ``delta`` (0 <= delta < 1).

    ``reproducible_noise`` says that noise or coins came from a fixed key: then the run must not be released, and the
    statement says so. ``caveats`` are printed below the table, one sentence each.
    """
    check_delta(delta)
    done: dict[tuple[Any, ...], Population] = {}
    cells = tuple(_cell(ledger, unit, observer, delta, done) for unit in UNITS for observer in OBSERVERS)
    return Statement(delta, ledger.clients, cells, reproducible_noise, tuple(caveats))


def _cell(
    ledger: Ledger, unit: Unit, observer: Observer, delta: float, done: dict[tuple[Any, ...], Population]
) -> Cell:
    histories = ledger.histories(unit, observer)
    priced = [price(release, unit, observer) for release in histories.releases]
    kinds, counts, leaking = in_kinds(histories, priced)
    key = (tuple(kinds), counts.shape, counts.data.tobytes(), counts.indices.tobytes(), counts.indptr.tobytes())
    if kinds and not leaking.all() and key not in done:
        done[key] = account(kinds, counts, delta)
    epsilons: Array = done[key].epsilons.copy() if key in done else np.zeros(len(histories))
    epsilons[leaking] = math.inf
    worst = int(np.argmax(epsilons)) if leaking.any() or key not in done else done[key].worst
    note = done[key].note if key in done and not leaking.any() else ""
    if leaking.any():
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
        reasons=_reasons(histories, priced),
        clients=_distribution(epsilons, histories, worst),
        note=note,
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


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_infinite(item) for item in value]
    return math.inf if value == "inf" else value
