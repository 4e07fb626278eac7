"""The ledger: who released what, how often. It lives outside every engine and is saved with the checkpoint."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import NeighboringRelation
from scipy import sparse

from privfl.errors import ConfigError, DataError, PrivacyError, unknown
from privfl.privacy.accounting.events import decode, encode
from privfl.privacy.accounting.grouping import Integers, distinct_rows
from privfl.privacy.accounting.release import Cost, Observer, Release, Unit

_FORMAT = 1


@dataclass(frozen=True)
class Histories:
    """What one observer saw of every client, clients with equal histories taken together.

    ``counts`` has one row per distinct history and one column per release in ``releases``; ``group[c]`` is the row of
    client c. Releases of which the observer learns nothing are left out.
    """

    releases: tuple[Release, ...]
    counts: sparse.csr_array
    group: Integers

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __iter__(self) -> Iterator[tuple[Integers, dict[Release, int]]]:
        """(clients, {release: how often}) for each distinct history."""
        order = np.argsort(self.group, kind="stable")
        for row, clients in enumerate(np.split(order, np.cumsum(np.bincount(self.group, minlength=len(self)))[:-1])):
            yield clients, self.row(row)

    def row(self, row: int) -> dict[Release, int]:
        """{release: how often} of one distinct history."""
        start, stop = self.counts.indptr[row : row + 2]
        columns, numbers = self.counts.indices[start:stop], self.counts.data[start:stop]
        return {
            self.releases[column]: int(number) for column, number in zip(columns, numbers, strict=True) if number > 0
        }


class _Tally:
    """How often each client made one release: a number for everyone, and sparse or dense numbers on top."""

    def __init__(self) -> None:
        self.everyone = 0
        self.clients: Integers = np.empty(0, dtype=np.int64)
        self.counts: Integers = np.empty(0, dtype=np.int64)
        self.most = 0
        """The largest of ``counts``, kept so that nobody has to go through all clients for it."""

    @classmethod
    def of(cls, everyone: int, clients: Integers, counts: Integers) -> _Tally:
        tally = cls()
        tally.everyone, tally.clients, tally.counts = everyone, clients, counts
        tally.most = int(counts.max(initial=0))
        return tally

    def copy(self) -> _Tally:
        return _Tally.of(self.everyone, self.clients, self.counts.copy())

    def add(self, clients: Integers, count: int, total: int) -> None:
        self._add(clients, count, total)
        touched = clients if len(self.clients) == total else np.searchsorted(self.clients, clients)
        self.most = max(self.most, int(self.counts[touched].max()))

    def _add(self, clients: Integers, count: int, total: int) -> None:
        if len(self.clients) == total:
            np.add.at(self.counts, clients, count)
        elif len(self.clients) == 1 and clients.tolist() == [self.clients[0]]:
            self.counts[0] += count
        else:
            merged, where = np.unique(np.concatenate([self.clients, clients]), return_inverse=True)
            counts = np.zeros(len(merged), dtype=np.int64)
            counts[where[: len(self.clients)]] = self.counts
            np.add.at(counts, where[len(self.clients) :], count)
            if len(merged) > total // 4:
                dense = np.zeros(total, dtype=np.int64)
                dense[merged] = counts
                merged, counts = np.arange(total), dense
            self.clients, self.counts = merged, counts


class Ledger:
    """Counts every release of every client, by client.

    Only names that were declared, here or with :meth:`declare`, can be recorded; releases of one name may differ in
    their cost (a rate that changes from round to round). ``fingerprint`` names the configuration, for instance a hash
    of the resolved experiment: a state is restored only under the same one.
    """

    def __init__(self, clients: int, declared: Iterable[str] = (), fingerprint: str = "") -> None:
        if clients < 1:
            raise ConfigError(f"a ledger for {clients} clients: there must be at least one.")
        self.clients = clients
        self.fingerprint = fingerprint
        self._declared: dict[str, None] = dict.fromkeys(declared)
        self._tallies: dict[Release, _Tally] = {}

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the releases that may be recorded, in the order in which they were declared."""
        return tuple(self._declared)

    @property
    def releases(self) -> tuple[Release, ...]:
        """All distinct releases recorded so far."""
        return tuple(self._tallies)

    def most(self) -> list[int]:
        """For each of :attr:`releases`, how often it was made by the client that made it most."""
        return [tally.everyone + tally.most for tally in self._tallies.values()]

    def declare(self, *names: str) -> None:
        """Allow releases of these names to be recorded."""
        self._declared.update(dict.fromkeys(names))

    def record(self, release: Release, clients: Sequence[int] | npt.NDArray[Any] | None, count: int = 1) -> None:
        """Note that each of ``clients`` (``None``: every client) made ``release`` ``count`` times.

        A client listed twice made it twice as often. Raises :class:`PrivacyError` for an undeclared name and
        :class:`DataError` for a client that does not exist or a negative count.
        """
        if release.name not in self._declared:
            raise PrivacyError(f"{unknown('release', release.name, self._declared)} Declare it before it is sent.")
        if count < 0 or count != int(count):
            raise DataError(f"release '{release.name}' recorded {count} times: give a whole number from 0 on.")
        tally = self._tallies.setdefault(_as_key(release), _Tally())
        if clients is None:
            tally.everyone += int(count)
            return
        chosen = np.asarray(clients).reshape(-1)
        if not len(chosen):
            return
        if chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= self.clients:
            raise DataError(
                f"release '{release.name}' recorded for clients {chosen.min()} to {chosen.max()}: clients are whole "
                f"numbers from 0 to {self.clients - 1}."
            )
        tally.add(chosen.astype(np.int64), int(count), self.clients)

    def histories(self, unit: Unit, observer: Observer) -> Histories:
        """The histories of all clients in one cell of the statement, equal ones taken together."""
        visible = [(release, tally) for release, tally in self._tallies.items() if release.cost(unit, observer)]
        columns = [np.full(len(tally.clients), column) for column, (_, tally) in enumerate(visible)]
        rows = [tally.clients for _, tally in visible]
        numbers = [tally.counts for _, tally in visible]
        empty: list[Integers] = [np.empty(0, dtype=np.int64)]
        own = sparse.coo_array(
            (np.concatenate(numbers + empty), (np.concatenate(rows + empty), np.concatenate(columns + empty))),
            shape=(self.clients, len(visible)),
        ).tocsr()
        first, group = distinct_rows(own) if visible else (np.zeros(1, np.int64), np.zeros(self.clients, np.int64))
        shared = np.array([tally.everyone for _, tally in visible], dtype=np.int64)
        common = np.flatnonzero(shared)
        everyone = sparse.csr_array(
            (np.tile(shared[common], len(first)), np.tile(common, len(first)), len(common) * np.arange(len(first) + 1)),
            shape=(len(first), len(visible)),
        )
        return Histories(tuple(release for release, _ in visible), (own[first] + everyone).tocsr(), group)

    def with_releases(self, planned: Iterable[tuple[Release, Sequence[int] | npt.NDArray[Any] | None, int]]) -> Ledger:
        """A copy of the ledger as it would be after ``planned`` (release, clients, count)."""
        trial = Ledger(self.clients, self._declared, self.fingerprint)
        trial._tallies = dict(self._tallies)
        copied: set[Release] = set()
        for release, clients, count in planned:
            key = _as_key(release)
            if key in self._tallies and key not in copied:
                trial._tallies[key] = self._tallies[key].copy()
                copied.add(key)
            trial.record(release, clients, count)
        return trial

    @classmethod
    def merged(cls, ledgers: Sequence[Ledger]) -> Ledger:
        """One ledger of several runs on the same clients: what a whole sweep released."""
        if not ledgers or len({ledger.clients for ledger in ledgers}) > 1:
            raise ConfigError(
                f"ledgers over {[ledger.clients for ledger in ledgers]} clients cannot be merged: give at least one, "
                "all over the same clients."
            )
        total = cls(ledgers[0].clients)
        for ledger in ledgers:
            total.declare(*ledger.declared)
            for release, tally in ledger._tallies.items():
                into = total._tallies.setdefault(release, _Tally())
                into.everyone += tally.everyone
                for count in np.unique(tally.counts[tally.counts > 0]):
                    into.add(tally.clients[tally.counts == count], int(count), total.clients)
        return total

    def state(self) -> dict[str, Any]:
        """The whole ledger as JSON data."""
        return {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "clients": self.clients,
            "declared": list(self._declared),
            "releases": [
                _encode_release(release)
                | {"everyone": tally.everyone, "who": _pack(tally.clients), "counts": _pack(tally.counts)}
                for release, tally in self._tallies.items()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], fingerprint: str = "") -> Ledger:
        """The ledger that :meth:`state` described.

        Raises :class:`PrivacyError` if it was written under another ``fingerprint`` (another configuration) or is not
        a ledger's state.
        """
        try:
            if state["format"] != _FORMAT:
                raise PrivacyError(f"the saved ledger has format {state['format']}: this version reads {_FORMAT}.")
            if state["fingerprint"] != fingerprint:
                raise PrivacyError(
                    f"the saved ledger belongs to configuration '{state['fingerprint']}', not to '{fingerprint}': "
                    "resume the run that wrote it, or start a new one."
                )
            ledger = cls(int(state["clients"]), state["declared"], fingerprint)
            for entry in state["releases"]:
                tally = _Tally.of(int(entry["everyone"]), _unpack(entry["who"]), _unpack(entry["counts"]))
                _check_tally(tally, ledger.clients, entry["name"] in ledger._declared)
                ledger._tallies[_decode_release(entry)] = tally
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            if isinstance(error, PrivacyError):
                raise
            raise PrivacyError(f"the saved ledger is damaged ({error}): it cannot be restored.") from error
        return ledger


def _as_key(release: Release) -> Release:
    """The release itself, or its twin with tuples for lists, so that it can be a key."""
    try:
        hash(release)
    except TypeError:
        return _decode_release(_encode_release(release))
    return release


def _check_tally(tally: _Tally, total: int, declared: bool) -> None:
    who = tally.clients
    sound = len(who) == len(tally.counts) and tally.everyone >= 0 and bool((tally.counts >= 0).all())
    if len(who):
        sound = sound and int(who[0]) >= 0 and int(who[-1]) < total and bool((np.diff(who) > 0).all())
    if not (sound and declared):
        raise PrivacyError("the saved ledger is damaged: clients, counts or names do not fit together.")


def _pack(numbers: Integers) -> str:
    return base64.b64encode(zlib.compress(numbers.astype("<i8").tobytes(), 1)).decode()


def _unpack(text: str) -> Integers:
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype="<i8").astype(np.int64)


def _encode_release(release: Release) -> dict[str, Any]:
    costs = [
        {
            "unit": unit,
            "observer": observer,
            "event": None if cost.event is None else encode(cost.event),
            "relation": cost.relation.name,
            "reason": cost.reason,
        }
        for (unit, observer), cost in release.costs
    ]
    return {"name": release.name, "costs": costs}


def _decode_release(data: Mapping[str, Any]) -> Release:
    costs = {
        (cost["unit"], cost["observer"]): Cost(
            event=None if cost["event"] is None else decode(cost["event"]),
            relation=NeighboringRelation[cost["relation"]],
            reason=cost["reason"],
        )
        for cost in data["costs"]
    }
    return Release.of(data["name"], costs)
